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

# The fonts and colours of the documentation's site.
STYLE = """\
:root { color-scheme: light dark; --ground: #fff; --text: #202124; --muted: #5b6068; --line: #d9dce1; --sunk: #f5f5f5;
  --link: #0b5cad; --accent: #d55e00; --head: #1f3a5f; }
@media (prefers-color-scheme: dark) { :root { --ground: #1b1f27; --text: #e2e4e9; --muted: #a3a8b3; --line: #3a404c;
  --sunk: #252a34; --link: #8db8e8; --accent: #f0a060; --head: #c9daf0; } }
body { font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; color: var(--text);
  background: var(--ground); max-width: 46rem; margin: 2rem auto 4rem; padding: 0 1rem; overflow-wrap: anywhere; }
h1, h2 { color: var(--head); line-height: 1.25; } h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.8rem; }
a { color: var(--link); }
nav ol { columns: 2 16rem; padding-left: 1.3rem; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .92rem; }
td, th { text-align: left; vertical-align: top; padding: .15rem 1rem .15rem 0; min-width: 5rem; }
td { font-variant-numeric: tabular-nums; }
th { font-weight: normal; color: var(--muted); }
code, pre { font: .82rem/1.5 ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "Noto Sans Mono", monospace; }
pre { white-space: pre-wrap; background: var(--sunk); padding: .7rem .9rem; border-radius: .3rem; }
img { display: block; max-width: 100%; height: auto; margin: .9rem 0; background: #fff; border-radius: .3rem; }
.absent { color: var(--muted); }
.conclusion { border-left: .25rem solid var(--accent); padding: .1rem 0 .1rem .9rem; }
@media print { body { margin: 0; } nav { display: none; } section { break-inside: avoid; } }"""


@dataclass(frozen=True)
class Section:
    """One analysis. Without a figure, the text says why there is none."""

    name: str  # of its files: NAME.png, NAME.csv
    title: str
    text: str
    conclusion: str = ""  # what to take from it, and what not
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
        part.write_text(_page(title, about, command, [_contents(sections), *body]), encoding="utf-8")
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


def _contents(sections: Sequence[Section]) -> str:
    items = (f'<li><a href="#{section.name}">{escape(section.title)}</a></li>' for section in sections)
    return "\n".join(('<nav aria-label="Contents"><ol>', *items, "</ol></nav>"))


def _section(section: Section, image: Path | None) -> str:
    lines = [f'<section id="{section.name}">', f"<h2>{escape(section.title)}</h2>"]
    kind = "" if image else ' class="absent"'
    lines.append(f"<p{kind}>{escape(section.text)}</p>")
    if image is not None:
        content = base64.b64encode(image.read_bytes()).decode("ascii")
        lines.append(f'<img alt="{escape(section.alt)}" style="width: {_inches(section.figure):.2f}in" '
                     f'src="data:image/png;base64,{content}">')
    if section.conclusion:
        lines.append(f'<p class="conclusion">{escape(section.conclusion)}</p>')
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
