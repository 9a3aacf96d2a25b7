"""The documents say what is so: generated pages are current, the README's commands run, links lead somewhere."""

import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lamina import __version__
from lamina.cli import main
from lamina.command_line import COMMANDS, find_command
from lamina.config.fairseq_options import FAIRSEQ_OPTIONS, retired_for
from lamina.config.packaged_recipes import all_names
from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.fields import unique_leaves
from lamina.plug_ins import paths_in
from lamina.recipes.recipe_file import find_recipe
from lamina.recipes.results import read_rows
from result_pages import ARCHIVE, CURRENT, SOURCED, figure_pages, with_figures
from write_docs import command_file, config_class, migration_row, pages, write_pages

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
DOCUMENTS += sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "notes").glob("*.md")])
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
# What makes the README's commands quick enough for a test; of a flag that is given twice the last one counts.
QUICKER = {"demo": "--max-update 2 --train-pairs 300 --samples 1", "preprocess": "--workers 1",
           "train": "--max-update 3", "generate": "--beam 2 --max-len-b 5"}


def read(path):
    return path.read_text(encoding="utf-8")


def fenced(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def command_lines(text):
    """The `lamina ...` lines of a document's shell blocks, as lists of words."""
    lines = "".join(fenced(text, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("lamina ")]


# -- generated pages

@pytest.mark.parametrize("name", pages())
def test_generated_pages_are_up_to_date(name):
    path = ROOT / "docs" / name
    assert (read(path) if path.exists() else "") == pages()[name], f"docs/{name} is out of date: run `make docs`"


@pytest.mark.parametrize("name", figure_pages(ROOT / "docs"))
def test_results_are_those_of_the_results_file(name):
    path = ROOT / "docs" / name
    assert (read(path) if path.exists() else "") == figure_pages(ROOT / "docs")[name], f"{name} is out of date: run `make docs`"


def test_a_number_follows_its_rows():
    rows = [{"kind": "run", "recipe": "r", "variant": "v", "cut": cut, "seed": seed, "budget": 1,
             "figures": {"test BLEU": bleu}} for cut, seed, bleu in (("", 1, 40.0), ("", 2, 41.0), ("half", 1, 1234.5))]
    page = "1.9<!--=r/v//test BLEU--> 0.00 ± 9<!--=r/v//test BLEU--> 7<!--=r/v/half/test BLEU--> 3.3<!--=paper--> 2.2"
    assert with_figures(page, rows) == ("40.5<!--=r/v//test BLEU--> 40.50 ± 0.71<!--=r/v//test BLEU--> "
                                        "1,234<!--=r/v/half/test BLEU--> 3.3<!--=paper--> 2.2")
    with pytest.raises(SystemExit, match="no row for r/v//other"):
        with_figures("1<!--=r/v//other-->", rows)


def test_each_score_on_the_page_of_results_says_where_it_comes_from():
    """Numbers with decimals, but for options and settings."""
    page = SOURCED.sub("", read(ROOT / "docs" / "results.md"))
    assert not re.findall(r"[^\n]*\d\.\d[^\n]*", re.sub(r"`[^`]*`|(LayerDrop |rate |\()0\.\d", "", page))


def sections_of(page):
    """By anchor: what stands under each heading of the second level."""
    return {re.sub(r"[^\w\- ]", "", text.partition("\n")[0].lower()).replace(" ", "-"): text
            for text in page.split("\n## ")[1:]}


def recipes_in(name):
    return {row["recipe"] for row in read_rows(ROOT / "docs" / name)}


@pytest.mark.parametrize(("name", "rows"), [("results.md", CURRENT), ("results-archive.md", ARCHIVE)])
def test_no_claim_without_a_run(name, rows):
    """A claim links to a section, which links to pages of recipes that have rows."""
    page = read(ROOT / "docs" / name)
    sections, run = sections_of(page), recipes_in(rows)
    rows = page.split("| claim |")[1].split("\n\n")[0].splitlines()[2:]
    assert rows
    for line in rows:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        (anchor,) = re.findall(r"\(#([\w-]+)\)", cells[-1])
        recipes = set(re.findall(r"results/(\w+)\.md", sections[anchor]))
        assert recipes & run, line


def test_what_was_not_run_is_said():
    page, run = read(ROOT / "docs" / "results.md"), recipes_in(CURRENT)
    for name in all_names():
        if find_recipe(name).tiers:
            assert f"results/{name}.md" in page if name in run else f"`{name}`" in sections_of(page)["not-run"], name


def test_pages_are_written(tmp_path):
    assert [path.relative_to(tmp_path / "new").as_posix() for path in write_pages(tmp_path / "new")] == list(pages())
    assert read(tmp_path / "new" / "options.md") == pages()["options.md"]


def test_every_option_is_listed():
    for command in COMMANDS:
        section = pages()[command_file(command)]
        for leaf in unique_leaves(config_class(command)):
            shown = leaf.name.upper() if leaf.info.positional else leaf.name
            assert re.search(rf"^\| [^|]*`(--|--\[no-\])?{shown}`", section, flags=re.MULTILINE), (command, leaf.name)


def test_defaults_that_depend_on_a_choice_say_so():
    row = next(line for line in pages()["reference/train.md"].splitlines() if line.startswith("| `--warmup-updates`"))
    assert "4000 (inverse_sqrt)" in row


@pytest.mark.parametrize("command", FAIRSEQ_OPTIONS)
def test_migration_says_what_the_command_line_does(command):
    for name in FAIRSEQ_OPTIONS[command]:
        _, status, text = migration_row(command, name)
        assert status in ("same", "alias", "retired", "refused")
        assert text
        assert (status in ("retired", "refused")) == (name in {option.name for option in retired_for(command)})


def test_the_generator_does_not_import_torch():
    code = ("import sys; sys.path.insert(0, 'tools'); import write_docs; write_docs.pages(); "
            "assert not {'torch', 'numpy'} & set(sys.modules)")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# -- commands in documents

def test_the_readme_runs_from_text_to_a_score(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = command_lines(read(ROOT / "README.md"))
    assert [words[0] for words in commands] == ["demo", "preprocess", "train", "generate"]
    for words in commands:
        assert main([*words, *shlex.split(QUICKER[words[0]])]) == 0, words
    output = capsys.readouterr().out
    assert "| test BLEU" in output
    assert re.search(r"valid on 'valid' subset \| .*\| bleu \d", output)
    assert re.search(r"Generate test with beam=2: BLEU4 = [\d.]+, ", output)
    (tmp_path / "lines.en").write_text("The shop is open from Thursday to Sunday.\n")
    for words in command_lines(read(ROOT / "docs" / "quickstart.md")):
        if words[0] in ("interactive", "info"):
            assert main([*words, *(["--max-len-b", "5"] if words[0] == "interactive" else [])]) == 0, words
    for name in ("README.md", "docs/index.md", "docs/quickstart.md"):
        (block,) = fenced(read(ROOT / name), "python")
        exec(compile(block, name, "exec"), {})
        assert capsys.readouterr().out.strip(), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_commands_in_documents_parse(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text("max-tokens: 4096\n")
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for words in command_lines(read(path)):
        words = words[:words.index(">")] if ">" in words else words
        command, rest = find_command(words)
        if paths_in(rest):
            continue  # tests/test_extending.py runs these, with the parts that they name
        cls = config_class(command)
        given, notices = parse(f"lamina {command}", cls, "", rest)
        resolve(cls, given)
        assert not notices, words


def test_benchmarks_named_in_documents_take_these_flags(monkeypatch, capsys):
    commands = [command for path in DOCUMENTS
                for command in re.findall(r"\bpython (benchmarks/\w+\.py)((?:[^`\n]|\\\n)*)", read(path))]
    assert {script for script, _ in commands} >= {f"benchmarks/{name}.py" for name in ("train", "memory", "depth", "scaling")}
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))  # which they do themselves, but for good
    helps = {}
    for script, flags in commands:
        if script not in helps:
            monkeypatch.setattr(sys, "argv", [script, "--help"])
            with pytest.raises(SystemExit, match="0"):
                runpy.run_path(str(ROOT / script), run_name="__main__")
            helps[script] = capsys.readouterr().out
        for flag in re.findall(r"--[\w-]+", flags):
            assert flag in helps[script], (script, flag)


def test_the_recipe_in_the_documents_is_one(tmp_path):
    (text,) = fenced(read(ROOT / "docs" / "formats.md"), "yaml")
    (tmp_path / "recipe.yaml").write_text(text)
    given, _ = parse("lamina train", TrainConfig, "", ["DATA", "--config", str(tmp_path / "recipe.yaml")])
    config = resolve(TrainConfig, given)
    assert config.seed == 1
    assert not config.saving.has_epochs


def test_the_python_of_the_documents_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for number, block in enumerate(fenced(read(ROOT / "docs" / "python.md"), "python")):
        exec(compile(block, f"docs/python.md, block {number + 1}", "exec"), namespace)
    assert namespace["model"].translate("the old boat").text
    assert repr(namespace["data"]) in read(ROOT / "docs" / "python.md")
    assert (tmp_path / "small.pt").exists()
    assert (tmp_path / "ck" / "train.jsonl").exists()


# -- links, citations, versions

@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_links_lead_somewhere(path):
    for link in LINK.findall(read(path)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name) if name else path
        assert target.exists(), f"{path.name}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", read(target), flags=re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}, link


def test_every_cited_paper_has_a_row_and_every_row_a_test():
    page = read(ROOT / "docs" / "papers.md")
    for command in COMMANDS:
        for leaf in unique_leaves(config_class(command)):
            for citation in re.findall(r"[A-Z][^;]*?\d{4}", leaf.info.paper):
                assert citation in page, f"docs/papers.md lacks {citation} (--{leaf.name})"


@pytest.mark.parametrize("name", ["papers.md", "bugs.md"])
def test_the_tests_that_a_page_names_are_there(name):
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", read(ROOT / "docs" / name))
    assert named
    for test, file in named:
        assert f"def {test}(" in read(ROOT / "docs" / file), f"docs/{name}: {file} has no {test}"


def test_the_changelog_begins_with_this_version():
    top = re.search(r"^## \[?([^\]\s]+)", read(ROOT / "CHANGELOG.md"), flags=re.MULTILINE)
    assert top
    assert top[1] in ("Unreleased", __version__)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_documents_name_no_one_machine(path):
    assert not re.search(r"/(?:work|tmp|home)/", read(path))


# -- the site

def test_every_page_is_in_the_site(tmp_path):
    """Built as `make docs` does it, where a link or an anchor that leads nowhere is an error. Nothing comes from elsewhere."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings_handlers.python")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (ROOT / "docs").rglob("*.md"):
        name = path.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        page = read(tmp_path / "site" / name)
        assert not re.search(r'<(?:script|link|img)[^>]+(?:src|href)="(?:https?:)?//', page), name
        assert f'href="{name}"' in read(tmp_path / "site" / "quickstart.html") or path.stem == "quickstart", name
    reference = read(tmp_path / "site" / "api.html")
    assert "The model of a checkpoint, or an ensemble of several" in reference
    assert ":::" not in reference


def test_figures_are_small():
    figures = list((ROOT / "docs" / "figures").iterdir())
    assert figures
    for figure in figures:
        assert figure.stat().st_size < 50_000, figure.name
        assert any(f"figures/{figure.name}" in read(path) for path in DOCUMENTS), f"{figure.name} is in no page"


# -- packaging

# What only those who work on Lamina need.
DEVELOPERS = {"test", "browser", "notebook", "docs", "lint"}


def test_the_extras_that_pages_name_are_those_of_the_package():
    extras = package_metadata("optional-dependencies")
    rows = re.findall(r"^\| ((?:`[a-z0-9]+`(?:, )?)+) \|", read(ROOT / "docs" / "install.md"), flags=re.MULTILINE)
    assert set(re.findall(r"`([a-z0-9]+)`", " ".join(rows))) == extras - DEVELOPERS
    sources = [*DOCUMENTS, *(ROOT / "src").rglob("*.py")]
    named = {name for path in sources for names in re.findall(r"'(?:lamina|\.)\[([a-z0-9,]+)\]'", read(path))
             for name in names.split(",")}
    assert {"demo", "serve", "rouge"} <= named <= extras


def test_classifiers_name_the_versions_that_tests_ran_on():
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', read(ROOT / "pyproject.toml"))
    rows = re.findall(r"^\| (3\.\d+) \|", read(ROOT / "CONTRIBUTING.md"), flags=re.MULTILINE)
    assert classifiers == list(dict.fromkeys(rows))


def package_metadata(table):
    """The keys of a table of [project]."""
    block = re.search(rf"^\[project\.{table}\]\n(.*?)^\[", read(ROOT / "pyproject.toml"), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^([a-z0-9-]+) = ", block[1], flags=re.MULTILINE))
