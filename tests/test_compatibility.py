"""Everything composes: each task with each technique through each step works, or is refused in so many words."""

import importlib.util
import shlex
import shutil

import pytest
from compatibility import STACKS, STEPS, cells, refusal

import lamina
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from tiny import make_data, write_text

SMALL = "--{stack}-layers 2 --{stack}-embed-dim 16 --{stack}-ffn-embed-dim 32 --{stack}-attention-heads 2"
OF_TASK = {
    "translation": f"--arch tiny {SMALL.replace('{stack}', 'encoder')} {SMALL.replace('{stack}', 'decoder')} --max-tokens 64",
    "language_modeling": f"--arch tiny_lm {SMALL.replace('{stack}', 'decoder')} --tokens-per-sample 16 --max-tokens 64",
    "masked_lm": f"{SMALL.replace('{stack}', 'encoder')} --max-positions 64 --max-tokens 64",
    "sentence_prediction": f"{SMALL.replace('{stack}', 'encoder')} --max-positions 64 --num-classes 2 --batch-size 8",
}
HAS_CTRANSLATE2 = importlib.util.find_spec("ctranslate2") is not None


def run(line):
    return main(shlex.split(line))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Data of each task."""
    folder = tmp_path_factory.mktemp("compatibility")
    text = write_text(folder / "text")
    write_text(text, 6, seed=1, split="valid")
    for split in ("train", "valid"):
        lines = (text / f"{split}.en").read_text().splitlines()
        (text / f"{split}.label").write_text("".join(f"{'odd' if len(line) % 2 else 'even'}\n" for line in lines))
    for name, ending in (("lm", "en"), ("task/input0", "en"), ("task/label", "label")):
        assert run(f"preprocess --only-source --trainpref {text}/train.{ending} --validpref {text}/valid.{ending} "
                   f"--destdir {folder}/{name} --workers 1") == 0
    return {"translation": make_data(folder), "language_modeling": folder / "lm", "masked_lm": folder / "lm",
            "sentence_prediction": folder / "task"}


def use(task, model, data):
    match task:
        case "translation":
            return run(f"generate {data} --path {model} --gen-subset valid --beam 2 --max-len-b 3 --quiet --cpu")
        case "language_modeling":
            prompt = data.parent / "prompt"
            prompt.write_text("the old boat\n")
            return (run(f"eval-lm {data} --path {model} --gen-subset valid --cpu")
                    or run(f"interactive --path {model} --input {prompt} --beam 2 --max-len-b 3 --cpu"))
        case "masked_lm":
            return 0 if lamina.load(model, device="cpu").fill_mask("the <mask> boat", topk=2) else 1
        case _:
            return 0 if lamina.load(model, device="cpu").predict("sentence_classification_head", "the old boat") else 1


@pytest.mark.parametrize("cell", cells(), ids=" ".join)
def test_every_step_works_or_says_why_not(cell, folders, tmp_path, capsys):
    data, task = folders[cell.task], cell.task
    last = tmp_path / "run" / "checkpoint_last.pt"
    train = (f"train {data} --task {task} {OF_TASK[task]} {cell.flags} --lr 0.001 --warmup-updates 2 --cpu --num-workers 0 "
             f"--no-epoch-checkpoints --save-dir {last.parent}")
    keep = " ".join(f"--{stack}-layers-to-keep 1," for stack in STACKS[task])
    attempts = {
        "train": lambda: run(f"{train} --max-update 2"),
        "resume": lambda: run(f"{train} --max-update 3"),
        "prune": lambda: run(f"prune {last} {keep} --output {tmp_path}/pruned.pt") or use(task, tmp_path / "pruned.pt", data),
        "average": lambda: (run(f"average --inputs {last} {tmp_path}/earlier.pt --output {tmp_path}/mean.pt")
                            or use(task, tmp_path / "mean.pt", data)),
        "use": lambda: use(task, last, data),
        "safetensors": lambda: run(f"export {last} --output {tmp_path}/safe") or use(task, tmp_path / "safe", data),
        "fairseq": lambda: (run(f"export {last} --format fairseq --output {tmp_path}/fairseq")
                            or run(f"convert {tmp_path}/fairseq/model.pt --output {tmp_path}/back.pt")),
        "CTranslate2": lambda: run(f"export {last} --format ctranslate2 --output {tmp_path}/ct2"),
    }
    assert attempts.keys() == STEPS.keys()
    for step, attempt in attempts.items():
        capsys.readouterr()
        expected = refusal(cell, step)
        if step == "CTranslate2" and expected is None and not HAS_CTRANSLATE2:
            continue
        code, error = attempt(), capsys.readouterr().err
        if expected is None:
            assert code == 0, f"{step}: {error}"
        else:
            assert code == 2, step
            assert expected.message in error, step
        if step == "train" and expected is not None:
            return  # there is no model to go on with
        if step == "train":
            shutil.copy(last, tmp_path / "earlier.pt")
        if step == "resume":
            assert load_checkpoint(last).training["progress"]["updates"] == 3


def test_an_admin_model_gets_to_fairseq_by_folding(folders, tmp_path):
    """As the page's remark says."""
    last = tmp_path / "run" / "checkpoint_last.pt"
    assert run(f"train {folders['translation']} {OF_TASK['translation']} --init-type admin --max-update 2 --cpu "
               f"--save-dir {last.parent}") == 0
    assert run(f"fold {last} --output {tmp_path}/folded.pt") == 0
    assert run(f"export {tmp_path}/folded.pt --format fairseq --output {tmp_path}/fairseq") == 0
