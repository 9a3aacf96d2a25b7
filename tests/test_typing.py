"""A script that uses the Python interface from one end to the other type-checks under mypy --strict, and runs."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = '''
    """Train a small translator, look inside, prune it, and save what is left."""

    import copy
    import itertools
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    import lamina
    from lamina.models.build import build_model

    WORDS = {"the": "LE", "a": "UN", "old": "VIEUX", "small": "PETIT", "boat": "BATEAU", "moon": "LUNE"}


    def pairs() -> Iterator[tuple[str, str]]:
        for sentence in itertools.product(("the", "a"), ("old", "small"), ("boat", "moon")):
            yield " ".join(sentence), " ".join(WORDS[word] for word in sentence)


    def focal(log_probs: torch.Tensor, batch: lamina.AnyBatch) -> torch.Tensor:
        right = log_probs.gather(-1, batch.target[..., None])[..., 0]
        return -((1 - right.exp()) ** 2) * right


    class Curve:
        def __init__(self) -> None:
            self.points: list[tuple[int, float]] = []

        def __call__(self, event: lamina.Event) -> None:
            if event.kind == "validation":
                self.points.append((event.num_updates, event.figures["ppl"]))
            if event.kind == "update" and event.num_updates == 40:
                event.stop("enough")


    def main(folder: Path) -> None:
        data = lamina.prepare(train=pairs(), valid=list(pairs()), source_lang="en", target_lang="xx", out=folder / "data",
                              workers=1)
        curve = Curve()
        model = lamina.train(data, arch="tiny", max_update=60, lr=5e-3, warmup_updates=10, encoder_layerdrop=0.2,
                             criterion=focal, callbacks=[curve], save_dir=str(folder / "ck"), log_format="none",
                             log_interval=10, cpu=True)
        losses: list[str | int | float | None] = [row["loss"] for row in model.history if row["where"] == "train"]
        print(len(losses), curve.points[-1], data.languages)

        text: str = model.translate("the old boat").text
        several = model(["a small moon", "the boat"], beam=2, lenpen=1.0)
        print(text, [found.score for found in several], "".join(model.stream_tokens("the moon")))

        states = model.encode(["the old boat"], layers="all")
        attention = model.attention("the old boat")
        print(states.final.shape, len(states.layers), attention.weights.shape, model.score(("a boat", "UN BATEAU")).total)
        print(model.fusion_weights(), model.num_parameters)

        small = model.prune(encoder=1).save(folder / "small.pt")
        loaded = lamina.load(small, device="cpu", dtype=torch.float32, task="translation", prepack=False).to("cpu")
        print(loaded, loaded.translate(["the moon"])[0].tokens, sorted(loaded.state_dict())[0])

        config: lamina.ModelConfig = lamina.register.arch["tiny"]()
        net = build_model(config, *map(len, data.vocabularies))
        inputs = next(data.batches("train", max_tokens=64)).inputs
        own = lamina.save(net, folder / "own.pt", config=config, data=data)
        print(net.log_probs(*inputs).shape, copy.deepcopy(lamina.load(own, device="cpu")))


    if __name__ == "__main__":
        main(Path.cwd())
'''


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT).lstrip(), encoding="utf-8")
    assert 50 <= len((tmp_path / "script.py").read_text().splitlines()) <= 80
    return tmp_path / "script.py"


def test_it_runs(script):
    done = subprocess.run([sys.executable, script.name], cwd=script.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "training stopped: a callback asked for it: enough" in done.stdout
    assert (script.parent / "small.pt").exists()


def test_it_is_strictly_typed(script):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports", "silent", script.name]
    environ = {**os.environ, "MYPYPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run(command, cwd=script.parent, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
