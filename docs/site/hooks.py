"""What the site changes in the pages of docs/ (mkdocs.yml)."""

import html
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

EXAMPLES = Path(__file__).parents[2] / "examples"
# Notebooks are pages of the site; other files beside docs/ have none: their names stay, without the link.
NOTEBOOK = re.compile(r"\]\(\.\./examples/(\w+)\.ipynb\)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s]+)\)")
# In a notebook: its neighbours, and the pages of docs/.
NEIGHBOUR = re.compile(r"\]\((\w+)\.ipynb\)")
SCRIPT = re.compile(r"\[([^\]]+)\]\(\w+\.py\)")
PAGE = re.compile(r"\]\(\.\./docs/([^)\s]+)\)")
# What pymdownx.arithmatex leaves of $...$ and $$...$$.
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
# Code in running text and in cells; blocks are left as they are.
CODE = re.compile(r"<pre\b.*?</pre>|<code>([^<]*)</code>", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*|--\[no-\][\w-]+)")
FIGURE = re.compile(r'<img(?=( [^>]*src="([^"]+\.svg)"[^>]*>))[^>]*>')
LARGER = 1.3
DOCS = Path(__file__).parents[1]
LOGO = Path(__file__).parents[2] / "src" / "lamina" / "serve" / "page" / "favicon.svg"


def on_files(files: Files, *, config: Any) -> Files:
    """Notebooks become pages, and the logo is that of the page of `lamina serve`: there is one of it."""
    files.append(File.generated(config, "site/logo.svg", abs_src_path=str(LOGO)))
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        files.append(File.generated(config, f"examples/{path.stem}.md", content=notebook_page(path)))
    return files


def notebook_page(path: Path) -> str:
    """A notebook's text and code; it is kept without outputs."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            parts.append(f"```python\n{text}\n```")
        else:
            parts.append(SCRIPT.sub(r"\1", PAGE.sub(r"](../\1)", NEIGHBOUR.sub(r"](\1.md)", text))))
    title, *rest = parts
    return "\n\n".join([title, f"*This is the notebook `examples/{path.name}`, to be run in Jupyter.*", *rest, ""])


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)
    if not folder:
        markdown = NOTEBOOK.sub(r"](examples/\1.md)", markdown)

    def link(match: re.Match[str]) -> str:
        is_outside = posixpath.normpath(posixpath.join(folder, match[2])).startswith("..")
        return match[1] if is_outside else match[0]

    return LINK.sub(link, markdown)


def on_page_content(content: str, page: Any, **_: Any) -> str:
    """Formulas become MathML here, so that the reader's browser needs no script for them."""
    folder = posixpath.dirname(page.file.src_uri)
    content = FIGURE.sub(lambda match: f'<img width="{shown_width(posixpath.join(folder, match[2]))}"{match[1]}', content)
    content = BLOCK.sub(lambda match: convert(html.unescape(match[1].strip()), display="block"), content)
    content = INLINE.sub(lambda match: convert(html.unescape(match[1])), content)
    return CODE.sub(lambda match: match[0] if match[1] is None else f"<code>{breakable(match[1])}</code>", content)


def shown_width(figure: str) -> int:
    """In pixels: figures are drawn for a printed column, and larger on a screen."""
    size = re.search(r'<svg[^>]* width="([\d.]+)(pt)?"', (DOCS / figure).read_text(encoding="utf-8"))
    assert size is not None, figure
    return round(float(size[1]) * (LARGER * 4 / 3 if size[2] else 1))


def breakable(code: str) -> str:
    """Options stay whole; long names break after an underscore, a slash or a point, and not within a word."""
    whole = OPTION.sub(r'<span class="whole">\1</span>', code)
    return whole if "<span" in whole else re.sub(r"(?<=\w)([_/.])(?=\w)", r"\1<wbr>", whole)
