"""The notebooks of examples/ run from top to bottom, show what they say, and are kept without outputs."""

import json
import re
import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
README = EXAMPLES.parent / "README.md"
LINK = re.compile(r"\]\(([^)\s#]+)[^)\s]*\)")

# What each claims, as code that runs in its last cell.
CLAIMS = {
    "translate_your_own_data": """
        import json
        assert corpus_bleu(outputs, references) > 75
        assert max(bleu.values()) > 75
        written = (folder / "checkpoints" / "train.jsonl").read_text(encoding="utf-8").splitlines()
        assert model.history == [json.loads(line) for line in written]
        assert path.exists()
    """,
    "choose_the_depth_later": """
        assert curves["plain"][0] > 90 and curves["LayerDrop"][0] > 90
        assert curves["LayerDrop"][-1] > 60 and curves["plain"][-1] < 30
        assert path.exists() and "3 encoder layers, 3 decoder layers" in repr(small)
    """,
    "look_inside": """
        assert abs(found.shares.sum(axis=1) - 1).max() < 1e-5
        assert aligned > 0.8
        assert accuracy[0] < 0.65 and max(accuracy) > 0.85
    """,
    "write_your_own_residual": """
        assert perplexity["Post-LN"] > 15
        assert perplexity["Admin"] < 8 and perplexity["ours"] < 8
        from lamina.cli import main
        saved = models["quiet"].save("quiet.pt")
        assert main(["fold", str(saved), "--output", "plain.pt"]) == 0
        line = "the small white house sees a black river"
        scores = [lamina.load(name, task="translation").score((line, "la petite maison")).total for name in (saved, "plain.pt")]
        assert abs(scores[0] - scores[1]) < 1e-3  # float32, another order of products
    """,
}


def notebooks():
    return sorted(EXAMPLES.glob("*.ipynb"))


def cells(path, kind):
    book = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == kind]


def test_each_is_tested():
    assert [path.stem for path in notebooks()] == sorted(CLAIMS)


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_it_is_kept_in_a_form_with_small_differences(path):
    text = path.read_text(encoding="utf-8")
    book = json.loads(text)
    assert text == json.dumps(book, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in book["cells"]), "clear all outputs"
    names = [cell["id"] for cell in book["cells"]]
    assert len(set(names)) == len(names)
    assert set(book["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_its_links_lead_somewhere_and_pages_lead_to_it(path):
    for text in cells(path, "markdown"):
        for link in LINK.findall(text):
            assert (path.parent / link).exists(), link
    assert f"examples/{path.name}" in README.read_text(encoding="utf-8")
    assert f"examples/{path.name}" in (README.parent / "docs" / "python.md").read_text(encoding="utf-8")
    assert f"examples/{path.stem}.md" in (README.parent / "mkdocs.yml").read_text(encoding="utf-8")


@pytest.mark.extra
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_it_runs_and_shows_what_it_says(path, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="pip install 'lamina[notebook]'")
    pytest.importorskip("ipykernel", reason="pip install 'lamina[notebook]'")
    import nbformat

    shutil.copy(EXAMPLES / "little_french.py", tmp_path)
    book = nbformat.read(path, as_version=4)
    book.cells.append(nbformat.v4.new_code_cell(re.sub(r"^ {8}", "", CLAIMS[path.stem].strip("\n"), flags=re.MULTILINE)))
    here = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=None, kernel_name="python3", resources=here).execute()
    assert any("image/png" in output.get("data", {}) for cell in book.cells for output in cell.get("outputs", []))
