"""docs/extending.md, executed: its blocks are files, its commands run with them."""

import re
import shlex
from pathlib import Path

import pytest

from lamina.cli import main
from lamina.plug_ins import restored
from tiny import make_data, write_text

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture
def my_parts(tmp_path, monkeypatch):
    """The page's files in a folder, beside data; what they register is gone afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_parts").mkdir()
    blocks = re.findall(r"```python\n# (my_parts/\w+\.py)\n(.*?)```", PAGE, flags=re.DOTALL)
    for name, text in blocks:
        (tmp_path / name).write_text(text, encoding="utf-8")
    text = write_text(tmp_path / "raw", 20)
    write_text(text, 6, seed=1, split="valid")
    make_data(tmp_path)
    for split in ("train", "valid"):
        (tmp_path / f"one.{split}").write_text((text / f"{split}.en").read_text())
    (tmp_path / "text.txt").write_text((text / "valid.en").read_text())
    assert main(["preprocess", "--only-source", "--trainpref", "one.train", "--validpref", "one.valid", "--destdir", "text",
                 "--workers", "1"]) == 0
    with restored():
        yield [name for name, _ in blocks]


def test_every_block_is_a_file_and_every_command_runs(my_parts, capsys):
    assert my_parts == [f"my_parts/{name}.py" for name in ("half", "top_two", "skip_to_input", "confidence", "sign", "exact",
                                                           "denoising")]
    lines = "".join(re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)).replace("\\\n", " ").splitlines()
    assert len(lines) == 11
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "lamina"
        assert main(words[1:]) == 0, (line, capsys.readouterr().err[-2000:])
    said = capsys.readouterr()
    assert "criterion confidence_penalty" in said.err + said.out
    assert "exact match = 100.0\nmetric:exact\nBLEU4 = 100.00, " in said.out
    assert "Generate valid with beam=5: exact match = " in said.out
    assert main(["prune", "checkpoints/two/checkpoint_last.pt", "--encoder-layers-to-keep", "0", "--output", "x.pt",
                 "--user-dir", "my_parts"]) == 2
    assert "--fusion top-two cannot be pruned" in capsys.readouterr().err
    assert main(["prune", "checkpoints/again/checkpoint_last.pt", "--encoder-layers-to-keep", "0", "--output", "x.pt",
                 "--user-dir", "my_parts"]) == 2
    assert "--mixing input-again cannot be pruned" in capsys.readouterr().err
    assert main(["train", "--help", "--user-dir", "my_parts"]) == 0
    assert "--top-two-share" in capsys.readouterr().out
