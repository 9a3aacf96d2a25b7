"""What the site changes in the pages of docs/ (mkdocs.yml)."""

import re
from typing import Any

# Files beside docs/ have no page of their own: their names stay, without the link.
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)\s]+\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return OUTSIDE.sub(r"\1", markdown)
