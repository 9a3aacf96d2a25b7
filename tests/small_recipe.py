"""A corpus and a recipe for tests: seconds on a processor."""

from pathlib import Path

import yaml

from tiny import write_text

TRAIN = {"arch": "tiny", "encoder-layers": 2, "decoder-layers": 2, "encoder-embed-dim": 16, "encoder-ffn-embed-dim": 32,
         "encoder-attention-heads": 2, "decoder-attention-heads": 2, "share-all-embeddings": True, "max-tokens": 256,
         "lr": 0.005, "warmup-updates": 4, "max-update": 9, "save-interval-updates": 3, "keep-interval-updates": 2,
         "no-epoch-checkpoints": True, "log-interval": 1, "distributed-world-size": 1}
RECIPE = {
    "about": "a recipe for tests", "data": "small", "seeds": [1, 2], "baseline": "plain",
    "tiers": {1: {"variants": ["plain"], "seeds": [1]}, 2: {}},
    "train": TRAIN, "average": {"num-update-checkpoints": 2}, "decode": {"beam": 2, "max-len-b": 5},
    "variants": {"plain": {}, "fused": {
        "train": {"surfacefusion": "att", "sf-gate": 0.8},
        "cuts": {"half": {"encoder-layers-to-keep": "every:2", "decoder-layers-to-keep": "0,"}}}},
}
CORPUS = {"languages": ["en", "xx"], "train": ["train.{lang}"], "valid": ["valid.{lang}"], "tests": {"news": "test.{lang}"},
          "preprocess": {"joined-dictionary": True}, "score": {"metric": "bleu,chrf"}}
LM_TRAIN = {"task": "language_modeling", "arch": "tiny_lm", "decoder-layers": 2, "decoder-embed-dim": 16,
            "decoder-ffn-embed-dim": 32, "decoder-attention-heads": 2, "tokens-per-sample": 16, "max-tokens": 64,
            "max-update": 4, "warmup-updates": 2, "no-epoch-checkpoints": True, "log-interval": 1, "distributed-world-size": 1}
LM_RECIPE = {"data": "text", "train": LM_TRAIN, "model": "checkpoint_last.pt",
             "cuts": {"first": {"decoder-layers-to-keep": "0,"}, "searched": {"search": {"decoder-layers": 1}}}}
LM_CORPUS = {"languages": [], "train": ["train.en"], "valid": ["valid.en"], "tests": {"test": "test.en"}}


def write_recipe(folder: Path, name: str = "small", recipe: dict = RECIPE, corpus: dict = CORPUS) -> Path:
    """The recipe's file, its corpus beside it, and downloads/ with the text."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / f"{recipe['data']}.yaml").write_text(yaml.safe_dump(corpus))
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    for number, split in enumerate(("train", "valid", "test")):
        write_text(folder / "downloads", 40 if split == "train" else 6, seed=number, split=split)
    return path
