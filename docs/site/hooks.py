"""What the site changes in the pages of docs/ (mkdocs.yml)."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

# Files beside docs/ have no page of their own: their names stay, without the link.
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)\s]+\)")
# What pymdownx.arithmatex leaves of $...$ and $$...$$.
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTSIDE.sub(r"\1", markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas become MathML here, so that the reader's browser needs no script for them."""
    content = BLOCK.sub(lambda match: convert(html.unescape(match[1].strip()), display="block"), content)
    return INLINE.sub(lambda match: convert(html.unescape(match[1])), content)
