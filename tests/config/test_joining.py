"""What --remove-bpe takes."""

import pytest

from lamina.config.analyze_options import AnalyzeFusionConfig
from lamina.config.eval_lm_options import EvalLmConfig
from lamina.config.generate_options import GenerateConfig, InteractiveConfig
from lamina.config.joining import Joiner, joiner_of
from lamina.config.parser import resolve
from lamina.config.prune_options import PruneConfig
from lamina.config.train_options import TrainConfig
from lamina.errors import ConfigError


@pytest.mark.parametrize(("text", "joiner"), [
    ("@@ ", Joiner("@@")), ("@@", Joiner("@@")), ("subword_nmt", Joiner("@@")), ("##", Joiner("##")), ("", Joiner("")),
    ("sentencepiece", Joiner("▁", is_space=True)), ("wordpiece", Joiner("_", is_space=True)),
    ("letter", Joiner("|", is_space=True, is_at_end=True)), ("none", Joiner("")),
])
def test_marks_and_names_of_rules(text, joiner):
    assert joiner_of(text) == joiner


FILES = {"checkpoint": "x.pt", "data": "d", "output": "o.pt", "search": True, "decoder-layers": 1, "metric": "bleu"}


@pytest.mark.parametrize(("config", "given", "name"), [
    (GenerateConfig, {"path": "x.pt", "data": "d"}, "remove-bpe"), (InteractiveConfig, {"path": "x.pt"}, "remove-bpe"),
    (EvalLmConfig, {"path": "x.pt", "data": "d"}, "remove-bpe"), (PruneConfig, FILES, "remove-bpe"),
    (AnalyzeFusionConfig, {"checkpoint": "x.pt", "data": "d", "out": "o"}, "remove-bpe"),
    (TrainConfig, {"data": "d", "max-tokens": 9, "eval-bleu": True}, "eval-bleu-remove-bpe")])
def test_names_that_are_no_marks_are_refused_by_every_command(config, given, name):
    assert resolve(config, given | {name: "subword_nmt"})
    with pytest.raises(ConfigError, match=f"^--{name} gpt2: its pieces stand for bytes"):
        resolve(config, given | {name: "gpt2"})
    with pytest.raises(ConfigError, match=f"^--{name} fastbpe: .* Write --{name} subword_nmt"):
        resolve(config, given | {name: "fastbpe"})
