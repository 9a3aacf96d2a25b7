"""A page of figures, each with a sentence that says what it shows: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from lamina.analysis.drawing import save_figure
from lamina.errors import ConfigError
from lamina.files import whole_file

PAGE_NAME, SUMMARY_NAME = "index.html", "summary.csv"

STYLE = """\
body { font: 16px/1.5 Georgia, serif; color: #222; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; } td, th { text-align: left; vertical-align: top; padding: .1rem 1rem .1rem 0; }
th { font-weight: normal; color: #555; } code, pre { font: .85rem/1.5 monospace; }
pre { white-space: pre-wrap; background: #f4f4f4; padding: .6rem .8rem; }
img { display: block; max-width: 100%; margin: .8rem 0; } .absent { color: #555; }
@media print { body { margin: 0; } section { break-inside: avoid; } }"""


@dataclass(frozen=True)
class Section:
    """One analysis. Without a figure, the text says why there is none."""

    name: str  # of its files: NAME.png, NAME.csv
    title: str
    text: str
    figure: Any = None
    alt: str = ""  # what the figure shows, for those who do not see it
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    facts: Mapping[str, float | str] = field(default_factory=dict)


def open_folder(name: str) -> Path:
    """Before the work begins: what --out names, made if it is not there."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {name} cannot be a folder: {error.strerror or error}. Choose another name.") from None
    return folder


def write_page(folder: Path, *, title: str, about: Mapping[str, str], command: str, sections: Iterable[Section]) -> list[Path]:
    """Figures, their numbers, a summary of all facts, and the page last; what an earlier run had and this one has not goes."""
    written: list[Path] = []
    body: list[str] = []
    sections = list(sections)
    for section in sections:
        path = folder / f"{section.name}.png"
        if section.figure is not None:
            written += save_figure(path, section.figure, section.columns, section.rows)
            body.append(_section(section, path))
        else:
            for stale in (path, path.with_suffix(".csv")):
                stale.unlink(missing_ok=True)
            body.append(_section(section, None))
    with whole_file(folder / SUMMARY_NAME) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("analysis", "fact", "value"))
        writer.writerows((section.name, name, f"{value:.8g}" if isinstance(value, float) else value)
                         for section in sections for name, value in section.facts.items())
    with whole_file(folder / PAGE_NAME) as part:
        part.write_text(_page(title, about, command, body), encoding="utf-8")
    return [*written, folder / SUMMARY_NAME, folder / PAGE_NAME]


def figures_of(sections: Iterable[Section]) -> dict[str, float]:
    """The facts that are numbers, as `--json` writes them."""
    return {f"{section.name}: {name}": value for section in sections for name, value in section.facts.items()
            if not isinstance(value, str)}


def _page(title: str, about: Mapping[str, str], command: str, body: Sequence[str]) -> str:
    return "\n".join((
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">', f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>", "</head>", "<body>", f"<h1>{escape(title)}</h1>", _table(about),
        f"<pre>{escape(command)}</pre>", *body, "</body>", "</html>", ""))


def _section(section: Section, image: Path | None) -> str:
    lines = [f'<section id="{section.name}">', f"<h2>{escape(section.title)}</h2>"]
    kind = "" if image else ' class="absent"'
    lines.append(f"<p{kind}>{escape(section.text)}</p>")
    if image is not None:
        content = base64.b64encode(image.read_bytes()).decode("ascii")
        lines.append(f'<img alt="{escape(section.alt)}" style="width: {_inches(section.figure):.2f}in" '
                     f'src="data:image/png;base64,{content}">')
    if section.facts:
        lines.append(_table({name: shown(value) for name, value in section.facts.items()}))
    if image is not None:
        table = image.with_suffix(".csv").name
        lines.append(f'<p>Numbers: <a href="{table}">{table}</a></p>')
    return "\n".join((*lines, "</section>"))


def _inches(figure: Any) -> float:
    """On a screen, half as large again as in print."""
    return 1.5 * float(figure.get_size_inches()[0])


def _table(rows: Mapping[str, str]) -> str:
    cells = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows.items())
    return "\n".join(("<table>", *cells, "</table>"))


def shown(value: float | str) -> str:
    """Four digits are enough to read."""
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else f"{value:.4g}"
