"""What the site changes in the pages of docs/ (mkdocs.yml)."""

import html
import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

EXAMPLES = Path(__file__).parents[2] / "examples"
# Notebooks are pages of the site; other files beside docs/ have none: their names stay, without the link.
NOTEBOOK = re.compile(r"\]\(\.\./examples/(\w+)\.ipynb\)")
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)\s]+\)")
# In a notebook: its neighbours, and the pages of docs/.
NEIGHBOUR = re.compile(r"\]\((\w+)\.ipynb\)")
SCRIPT = re.compile(r"\[([^\]]+)\]\(\w+\.py\)")
PAGE = re.compile(r"\]\(\.\./docs/([^)\s]+)\)")
# What pymdownx.arithmatex leaves of $...$ and $$...$$.
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)


def on_files(files: Files, *, config: Any) -> Files:
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


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    if page.file.src_uri.startswith("examples/"):
        return markdown
    return OUTSIDE.sub(r"\1", NOTEBOOK.sub(r"](examples/\1.md)", markdown))


def on_page_content(content: str, **_: Any) -> str:
    """Formulas become MathML here, so that the reader's browser needs no script for them."""
    content = BLOCK.sub(lambda match: convert(html.unescape(match[1].strip()), display="block"), content)
    return INLINE.sub(lambda match: convert(html.unescape(match[1])), content)
