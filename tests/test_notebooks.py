"""The notebooks of examples/ run from top to bottom, show what they say, and are kept without outputs."""

import json
import re
import shutil
from pathlib import Path

import pytest

from lamina.plug_ins import restored

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


CELL = """
from dataclasses import dataclass
import lamina
from lamina.fields import flag
from lamina.parts import Criterion

@lamina.register.criterion("cell")
@dataclass(frozen=True, kw_only=True)
class Cell(Criterion):
    'A cell of a notebook.'
    share: float = flag(DEFAULT, "a share", name="cell-share")

    def loss(self, model, batch, active, *, is_compiled):
        raise NotImplementedError
"""


def test_a_cell_that_registers_a_part_may_run_again():
    from lamina.api.keyword_options import given_by
    from lamina.config.parser import resolve
    from lamina.config.train_options import TrainConfig

    with restored():
        for default in (0.5, 0.25):
            exec(CELL.replace("DEFAULT", str(default)), {"__name__": "__main__"})
            given = given_by("train", TrainConfig, {"criterion": "cell", "max_tokens": 10}, ["data"])
            assert resolve(TrainConfig, given).optimization.criterion.share == default


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


INTERRUPTED = """
import lamina
pairs = [(f"{a} {b}", f"{b} {a}") for a in "abcdefgh" for b in "abcdefgh"]
data = lamina.prepare(pairs, valid=pairs[:4], out="data", workers=1)
began = lambda event: print("begun", flush=True) if event.kind == "update" and event.num_updates == 2 else None
options = dict(arch="tiny", encoder_layers=1, decoder_layers=1, max_tokens=64, save_dir="ck", epoch_checkpoints=False, cpu=True,
               log_interval=1)
model = lamina.train(data, max_update=100_000, callbacks=[began], **options)
"""
RESUMED = """
import json
import signal
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
done = [json.loads(line)["num_updates"] for line in open("ck/train.jsonl")][-1]
model = lamina.train(data, max_update=done + 20, **options)
assert done >= 2 and model.history[-1]["num_updates"] == done + 20, (done, model.history[-1])
"""


@pytest.mark.extra
def test_the_stop_button_saves_and_the_same_cell_resumes(tmp_path):
    manager_module = pytest.importorskip("jupyter_client.manager", reason="pip install 'lamina[notebook]'")
    pytest.importorskip("ipykernel", reason="pip install 'lamina[notebook]'")
    manager, client = manager_module.start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    told = []

    def hear(message):
        content = message["content"]
        told.append(content.get("text") or content.get("data", {}).get("text/html") or content.get("ename") or "")
        if "begun" in content.get("text", ""):
            manager.interrupt_kernel()

    try:
        reply = client.execute_interactive(INTERRUPTED, output_hook=hear, timeout=300)["content"]
        assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt"), "".join(told)
        assert "<progress" in "".join(told)
        assert (tmp_path / "ck" / "checkpoint_last.pt").exists()
        reply = client.execute_interactive(RESUMED, output_hook=hear, timeout=300)["content"]
        assert reply["status"] == "ok", reply
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
