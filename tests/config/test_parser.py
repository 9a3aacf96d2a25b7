"""The command line: the references' hard cases, recipes, help."""

import re
import shlex
import subprocess
import sys

import pytest
import yaml

from lamina.cli import main
from lamina.command_line import COMMANDS, load
from lamina.config.command_help import EVERYDAY
from lamina.config.parser import parse, resolve, spelled_out
from lamina.config.recipe_options import RecipeRunConfig
from lamina.config.train_options import TrainConfig
from lamina.errors import ConfigError
from lamina.fields import flatten, unique_leaves
from lamina.recipes.recipe_file import find_recipe
from lamina.registry import register


def train_config(*words):
    given, _ = parse("lamina train", TrainConfig, "", ["DATA", *words])
    return resolve(TrainConfig, {"max-tokens": "4096", **given})


def test_the_references_hard_cases():
    config = train_config("-s", "de", "-t", "en", "--adam-betas", "(0.9, 0.98)", "--relu-dropout", "0.1",
                          "--ddp-backend=no_c10d", "--update-freq", "8", "--max-sentences", "16", "--lr", "7e-4",
                          "--no-epoch-checkpoints", "--max_tokens", "512", "--share-all-embeddings")
    assert (config.data.source_lang, config.data.target_lang) == ("de", "en")
    assert config.optimization.optimizer.betas == (0.9, 0.98)
    assert config.model.dropout.activation_p == 0.1
    assert config.optimization.update_freq == (8,)
    assert config.batches.max_sentences == 16
    assert config.batches.max_tokens == 512
    assert config.optimization.lr == (7e-4,)
    assert not config.saving.has_epochs
    assert config.model.embedding.share_all


@pytest.mark.parametrize("flags", ["--arch tiny_lm --cpu", "--adam_betas '(0.9, 0.98)'  --arch tiny_lm"])
def test_a_value_of_several_options_keeps_its_underscores(flags):
    given, _ = parse("lamina recipe run", RecipeRunConfig, "", ["together", "--data", "data", "--train_flags", flags])
    config = resolve(RecipeRunConfig, given)
    assert config.train_words == shlex.split(flags)


def test_preset_then_recipe_then_flags(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("arch: transformer_iwslt_de_en\nencoder_layers: 3\ndropout: 0.3\nlr: 1e-07\nno-epoch-checkpoints: true\n")
    config = train_config("--config", str(recipe), "--dropout", "0.2")
    assert config.model.encoder.ffn_dim == 1024
    assert config.model.encoder.num_layers == 3
    assert config.model.dropout.dropout_p == 0.2
    assert config.optimization.lr == (1e-7,)
    assert not config.saving.has_epochs


def test_print_config_is_a_recipe_that_gives_itself(tmp_path, capsys):
    flags = ["train", "DATA", "--max-tokens", "100", "--arch", "transformer_iwslt_de_en", "--optimizer", "nag", "--lr", "0.25",
             "--lr-scheduler", "fixed", "--momentum", "0.9"]
    assert main([*flags, "--print-config"]) == 0
    text = capsys.readouterr().out
    (tmp_path / "recipe.yaml").write_text(text)
    assert main(["train", "--config", str(tmp_path / "recipe.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == text
    assert yaml.safe_load(text)["momentum"] == 0.9


@pytest.mark.parametrize(("text", "message"), [
    ("max-tokens: [", "not YAML"), ("- a\n- b\n", "`flag: value` lines"), ("max-tokns: 5\n", "Did you mean --max-tokens"),
    ("max-tokens: many\n", "a whole number"), ("cross-self-attention: true\n", "not supported"),
])
def test_bad_recipes(tmp_path, text, message):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(ConfigError, match=message):
        train_config("--config", str(recipe))


def test_a_recipe_may_use_old_names(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("max-sentences: 16\nrelu_dropout: 0.2\nuser-dir: plugins\nmin-lr: -1\n")
    given, notices = parse("lamina train", TrainConfig, "", ["DATA", "--config", str(recipe)])
    config = resolve(TrainConfig, given)
    assert config.batches.max_sentences == 16
    assert config.model.dropout.activation_p == 0.2
    assert len(notices) == 1


def test_a_missing_recipe():
    with pytest.raises(ConfigError, match="cannot be read"):
        train_config("--config", "nowhere.yaml")


@pytest.mark.parametrize(("words", "message"), [
    (["--max-token", "5"], "Did you mean --max-tokens"),
    (["--optimizer", "sgd", "--adam-betas", "(0.9, 0.98)"], "has no effect with --optimizer sgd"),
    (["--label-smoothing", "0.1"], "belongs to --criterion label_smoothed_cross_entropy"),
    (["--eval-bleu-print-samples"], "without --eval-bleu"),
    (["--eval-bleu-detok", "moses"], "without --eval-bleu"),
    (["--eval-bleu", "--eval-bleu-detok", "nltk"], "moses, space"),
    (["--eval-bleu", "--eval-tokenized-bleu", "--eval-bleu-detok", "moses"], "Leave one out"),
    (["--patience", "3", "--disable-validation"], "together with --disable-validation"),
    (["--fp16", "--bf16"], "exclude each other"),
    (["--dropout", "1.5"], r"must lie in \[0, 1\)"),
    (["--arch", "transformer_iwslt_de_fr"], "Did you mean transformer_iwslt_de_en"),
    (["--encoder-attention-heads", "7"], "cannot be split over 7"),
    (["--encoder-layers", "0"], "--encoder-layers or --decoder-layers is 0; it must be at least 1"),
    (["--max-tokens", "0"], "--max-tokens is 0"),
    (["--update-freq", "0"], "--update-freq is 0; it"),
    (["--best-checkpoint-metric", "bleu"], "--eval-bleu"),
    (["--best-checkpoint-metric", "rougeL", "--eval-bleu"], "add --eval-rouge"),
    (["--cross-self-attention"], "not supported"),
    (["--sf-gate", "0.8"], "has no effect with --surfacefusion none; it belongs to --surfacefusion att or mean or max"),
    (["--surfacefusion", "att", "--sf-gate", "1.0"], "where 0 means a learned gate"),
    (["--surfacefusion", "att", "--sf-mode", "soft", "--sf-gate", "0.8"], "belongs to --sf-mode hard"),
    (["--surfacefusion", "att", "--sf-mode", "hard", "--sf-softmax-tau", "0.8"], "belongs to --sf-mode soft or postnorm"),
    (["--surfacefusion", "att", "--sf-gate", "0.8", "--sf-dropout", "0.5"], "--sf-dropout is for a learned gate"),
    (["--surfacefusion", "att", "--sf-mode", "soft", "--sf-dropout", "1"], "--sf-dropout is 1.0; it must lie in"),
    (["--sf-dropout", "0.5"], "has no effect with --surfacefusion none"),
    (["--surfacefusion", "mean", "--sf-idx", "2"], "belongs to --surfacefusion att"),
    (["--surfacefusion", "att", "--sf-idx", "6"], "the decoder has 6 layers; choose 0 to 5"),
    (["--surfacefusion", "looklinear"], "must be one of"),
    (["--surfacefusion", "max", "--encoder-embed-dim", "256", "--decoder-embed-dim", "512"], "use --surfacefusion att"),
    (["--fine-grained-ta"], "without --transparent-attention"),
    (["--transparent-attention", "--ta-posedemb"], "without --ta-source-embedding"),
    (["--layer-wise-attention", "--layer-wise-reads", "1,2"], "give one for each"),
    (["--addtional-source-output", "final"], "not supported"),
    (["--addtional-source-output"], "not supported"),
    (["--optimizer", "adadelta"], "must be one of"),
    (["more", "words"], "unexpected argument"),
    (["--lr"], "expected one argument. Where its value begins with a dash, write --lr=VALUE"),
    (["--max-source-positions", "0"], "at least 1"),
    (["--share-all-embeddings", "--arch", "transformer_iwslt_de_en", "--encoder-embed-dim", "256"], "needs one width"),
])
def test_bad_flags_are_one_line(words, message, capsys):
    with pytest.raises(ConfigError, match=message):
        train_config(*words)
    assert main(["train", "DATA", "--max-tokens", "5", *words]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert error[0].startswith("error: ")


def test_the_line_that_later_releases_of_fairseq_recommend():
    config, notices = parse("lamina train", TrainConfig, "", shlex.split(
        """DATA --eval-bleu --eval-bleu-args '{"beam": 5, "max_len_a": 1.2}' --eval-bleu-detok moses --eval-bleu-remove-bpe
        --eval-bleu-print-samples --best-checkpoint-metric bleu --maximize-best-checkpoint-metric --keep-best-checkpoints 5"""))
    assert sorted(notice.split(" ")[0] for notice in notices) == [
        "--eval-bleu-args", "--keep-best-checkpoints"]
    assert (config["eval-bleu-detok"], config["eval-bleu-remove-bpe"]) == ("moses", "@@ ")


def test_data_and_a_limit_are_required(capsys):
    assert main(["train"]) == 2
    assert "DATA is missing" in capsys.readouterr().err
    assert main(["train", "DATA"]) == 2
    assert "--max-tokens" in capsys.readouterr().err


def test_what_the_system_says_against_a_file_is_one_line(monkeypatch, capsys):
    def refused(config):
        raise PermissionError(13, "Permission denied", "/some/folder")

    monkeypatch.setattr("lamina.commands.info.run", refused)
    assert main(["info", "x.pt"]) == 2
    assert capsys.readouterr().err == ("error: /some/folder: Permission denied. Check the name, the permissions and the space "
                                       "on the disk.\n")
    monkeypatch.setattr("lamina.commands.info.run", lambda config: (_ for _ in ()).throw(OSError("of our own making")))
    with pytest.raises(OSError, match="of our own making"):
        main(["info", "x.pt"])


def test_unknown_commands_suggest(capsys):
    assert main(["trian"]) == 2
    assert "Did you mean train" in capsys.readouterr().err


def test_the_decoder_follows_the_encoder_only_where_the_references_do():
    assert train_config("--encoder-embed-dim", "256").model.decoder.model_dim == 256
    assert train_config("--arch", "transformer_iwslt_de_en", "--encoder-embed-dim", "256").model.decoder.model_dim == 512


def test_presets_match_the_published_architectures():
    flat = {name: flatten(preset()) for name, preset in register.arch.items()}
    assert flat["transformer_wmt_en_de_big_t2t"]["encoder-normalize-before"]
    assert flat["transformer_wmt_en_de_big_t2t"]["activation-dropout"] == 0.1
    assert flat["transformer_vaswani_wmt_en_de_big"]["dropout"] == 0.3
    assert flat["transformer_vaswani_wmt_en_fr_big"]["dropout"] == 0.1
    assert flat["transformer_wmt_en_de_big"]["attention-dropout"] == 0.1
    assert flat["transformer_iwslt_de_en"]["decoder-attention-heads"] == 4
    assert flat["transformer_wmt_en_de"] == flat["transformer"]


# -- help

@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(command, capsys):
    assert main([command, "--help-all"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: lamina {command}")
    # Some have none to tell.
    assert "default: " in text or command in ("convert", "fold", "completion", "recipe list", "recipe prepare", "recipe table")


def test_help_shows_what_people_use_and_says_how_to_see_the_rest(capsys):
    assert main(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--max-tokens" in shown
    assert "ta-dropconnect" not in shown
    assert "--mask-prob" not in shown, "of another task"
    assert re.search(r"\d+ more: `lamina train --help\s+WORD` searches\s+them", shown)
    assert main(["train", "--task", "masked_lm", "-h"]) == 0
    shown = capsys.readouterr().out
    assert "--mask-prob" in shown
    assert "--source-lang" not in shown


@pytest.mark.parametrize("word", ["dropconnect", "DropConnect", "ta_dropconnect"])
def test_help_finds_options_by_a_word(word, capsys):
    assert main(["train", "--help", word]) == 0
    shown = capsys.readouterr().out
    assert "--[no-]ta-dropconnect" in shown
    assert "--max-tokens" not in shown


def test_help_about_an_unknown_word_says_so(capsys):
    assert main(["train", "--help", "wamup"]) == 0
    assert "No option of `lamina train` has 'wamup'" in capsys.readouterr().out


@pytest.mark.parametrize("command", EVERYDAY)
def test_everyday_options_exist(command):
    names = {leaf.name for leaf in unique_leaves(load(COMMANDS[command].config))}
    assert set(EVERYDAY[command].split()) <= names


# What few would change, even of those who repeat a paper.
RARELY = {"ffn-init", "lr-shrink", "stop-min-lr", "skip-invalid-size-inputs-valid-test"}


@pytest.mark.parametrize("recipe", ["wmt16_en_ro_surfacefusion", "iwslt14_de_en_admin", "wmt14_en_de_admin",
                                    "wikitext103_layerdrop", "wmt_en_de_layerdrop"])
def test_help_shows_the_options_of_the_published_commands(recipe):
    train = {key for run in find_recipe(recipe).variants.values() for key in run.train}
    assert {leaf for leaf in train if not leaf.startswith("no-")} - RARELY <= set(EVERYDAY["train"].split())


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_the_overview_fits_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert "  fold" in shown


@pytest.mark.parametrize("columns", [80, 100])
def test_help_fits_the_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["train", "--help-all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if "{" not in line and "--" not in line) <= columns


def test_a_packaged_recipe_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert flatten(train_config("--config", "gec"))["sf-gate"] == 0.8
    (tmp_path / "gec").write_text("surfacefusion: att\nsf-gate: 0.5\n")
    assert flatten(train_config("--config", "gec"))["sf-gate"] == 0.5, "a file of that name wins"
    with pytest.raises(ConfigError, match=r"--config gek: cannot be read"):
        train_config("--config", "gek")


def test_help_does_not_import_torch():
    code = ("import sys; from lamina.cli import main\n"
            "main(['train', '--help'])\n"
            "assert not {'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules), 'heavy imports'")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--adam-betas" in done.stdout


def test_overview_and_version(capsys):
    assert main(["--help"]) == 0
    assert all(command in capsys.readouterr().out for command in ["preprocess"])
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lamina ")


def test_an_arch_belongs_to_a_task():
    with pytest.raises(ConfigError, match="--arch tiny_lm is a preset for --task language_modeling, and the task is trans"):
        train_config("--arch", "tiny_lm")


@pytest.mark.parametrize(("command", "words"), [
    ("analyze fusion", ["a.pt", "data dir", "--out", "x", "--sentence", "it's $5", "--metric", "loss", "--target=-3"]),
    ("analyze fusion", ["a.pt", "data", "--out", "x", "--remove-bpe"]),
    ("score", ["--ref", "a,b", "c d", "--metric", "bleu,chrf"]),
    ("interactive", ["--path", "x.pt", "--lenpen", "0.6", "--unkpen", "-0.5"]),
])
def test_a_configuration_spelled_out_gives_itself(command, words):
    cls = load(COMMANDS[command].config)
    config = resolve(cls, parse(f"lamina {command}", cls, "", words)[0])
    line = spelled_out(f"lamina {command}", config)
    assert line.startswith(f"lamina {command} ")
    again = shlex.split(line)[1 + len(command.split()):]
    assert resolve(cls, parse(f"lamina {command}", cls, "", again)[0]) == config
