"""A language model from text to perplexity and to texts: preprocess, train, eval-lm, interactive, Python."""

import io
import json
import math
import re
import shlex

import numpy as np
import pytest
import torch

import lamina
from golden_files import place_of
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.errors import ConfigError
from tiny import write_text

TINY = ("--task language_modeling --arch tiny_lm --decoder-layers 3 --decoder-embed-dim 16 --decoder-ffn-embed-dim 32 "
        "--decoder-attention-heads 2 --tokens-per-sample 16 --max-tokens 128 --lr 0.005 --warmup-updates 4 --max-epoch 2 "
        "--decoder-layerdrop 0.2")
ADAPTIVE = ("--criterion adaptive_loss --adaptive-softmax-cutoff 10,20 --adaptive-softmax-factor 2 --adaptive-input "
            "--adaptive-input-cutoff 10,20 --adaptive-input-factor 2 --tie-adaptive-weights --tie-adaptive-proj "
            "--adaptive-softmax-dropout 0.1")


def run(line):
    return main(shlex.split(line))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    text = write_text(folder / "text", 60)
    write_text(text, 10, seed=1, split="valid")
    write_text(text, 8, seed=2, split="test")
    assert run(f"preprocess --only-source --trainpref {text}/train.en --validpref {text}/valid.en --testpref {text}/test.en "
               f"--destdir {folder}/data --workers 1") == 0
    assert run(f"preprocess --only-source --source-lang en --trainpref {text}/train --validpref {text}/valid "
               f"--testpref {text}/test --destdir {folder}/pieces --workers 1 --subword bpe --vocab-size 60") == 0
    return folder


@pytest.fixture(scope="module")
def model(data):
    assert run(f"train {data}/data {TINY} {ADAPTIVE} --save-dir {data}/checkpoints") == 0
    return data / "checkpoints" / "checkpoint_best.pt"


@pytest.fixture(scope="module")
def piece_model(data):
    assert run(f"train {data}/pieces {TINY} --tokens-per-sample 40 --sample-break-mode complete "
               f"--save-dir {data}/piece-checkpoints") == 0
    return data / "piece-checkpoints" / "checkpoint_best.pt"


def evaluated(line, capsys):
    """The figures that eval-lm prints: bits and perplexity."""
    capsys.readouterr()
    assert run(f"eval-lm {line}") == 0
    out = capsys.readouterr().out
    bits, perplexity = re.search(r"^Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)$", out, re.MULTILINE).groups()
    assert float(perplexity) == pytest.approx(2 ** float(bits), rel=1e-3)
    return float(bits), out


def error_of(capsys):
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_training_says_what_it_learns(data, capsys):
    assert run(f"train {data}/data {TINY} {ADAPTIVE} --save-dir {data}/said --max-epoch 1") == 0
    out = capsys.readouterr().out
    assert "| [text] dictionary: 24 types" in out
    assert re.search(r"data/train: \d+ blocks in \d+ batches", out)
    assert "criterion adaptive_loss" in out
    assert re.search(r"valid on 'valid' subset \| loss [\d.]+ \| nll_loss [\d.]+ \| ppl [\d.]+", out)
    assert load_checkpoint(data / "said" / "checkpoint_last.pt").task == "language_modeling"


def test_resuming_gives_the_bits_of_a_run_that_never_stopped(data):
    line = f"train {data}/data {TINY} {ADAPTIVE} --dropout 0.1 --max-epoch 0 --no-epoch-checkpoints"
    assert run(f"{line} --max-update 8 --save-dir {data}/whole") == 0
    assert run(f"{line} --max-update 3 --save-dir {data}/parts") == 0
    assert run(f"{line} --max-update 8 --save-dir {data}/parts") == 0
    whole, parts = (load_checkpoint(data / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    assert whole.training["progress"]["updates"] == parts.training["progress"]["updates"] == 8
    assert all(torch.equal(whole.weights[name], parts.weights[name]) for name in whole.weights)


def test_eval_lm_agrees_with_validation_and_with_python(data, model, capsys):
    stored = load_checkpoint(model)
    bits, out = evaluated(f"{data}/data --path {model} --gen-subset valid", capsys)
    assert bits == pytest.approx(stored.metrics["nll_loss"], abs=1e-4)
    # Not those of the copies that decoding on a CPU makes: projections shared by input and output count once.
    assert f"num. model params: {sum(weight.numel() for weight in stored.weights.values())}\n" in out
    # Sentence by sentence, the same as texts that are scored one by one.
    bits, _ = evaluated(f"{data}/data --path {model} --gen-subset valid --sample-break-mode eos", capsys)
    lines = (data / "text" / "valid.en").read_text().splitlines()
    scores = lamina.load(model, device="cpu").score(lines)
    total, count = sum(score.total for score in scores), sum(len(score.ids) for score in scores)
    assert bits == pytest.approx(-total / count / math.log(2), abs=1e-4)


@pytest.mark.parametrize("by_word", [False, True])
def test_figures_as_json(data, piece_model, capsys, tmp_path, by_word):
    path = tmp_path / "figures.json"
    flags = "--remove-bpe" if by_word else ""
    bits, out = evaluated(f"{data}/pieces --path {piece_model} --gen-subset valid {flags} --json {path}", capsys)
    found, other = json.loads(path.read_text()), "token" if by_word else "word"
    assert found["figures"]["loss"] == pytest.approx(bits, abs=1e-4)
    assert f"Perplexity: {found['figures']['ppl']:.2f}\n" in out
    assert f"| by {other}: Loss (base 2): {found['figures'][f'{other}_loss']:.4f}, " in out
    assert f"Perplexity: {found['figures'][f'{other}_ppl']:.2f} (" in out
    assert found["tokens"] > found["words"] > 0


@pytest.mark.parametrize("flags", ["--max-tokens 16", "--batch-size 1", "--softmax-batch 3", "--cpu", "--max-sentences 3",
                                   "--num-shards 1 --shard-id 0"])
def test_how_batches_are_cut_changes_nothing(data, model, capsys, flags):
    line = f"{data}/data --path {model} --gen-subset valid"
    assert evaluated(f"{line} {flags}", capsys)[0] == pytest.approx(evaluated(line, capsys)[0], abs=1e-4)


def test_a_context_window_is_read_and_not_counted(data, model, capsys):
    line = f"{data}/data --path {model} --gen-subset valid --output-word-probs"
    plain, windowed = (evaluated(f"{line} {flags}", capsys) for flags in ("", "--context-window 8"))
    assert plain[0] != windowed[0]
    words = [re.findall(r"(\S+) \[(-[\d.]+)\]", out) for _, out in (plain, windowed)]
    # The same words in the same order, whatever the blocks are.
    assert [word for word, _ in words[0]] == [word for word, _ in words[1]]
    # As much as the model takes is read: each block is what a text of the tokens before it and its own would be.
    scored = lamina.load(model, device="cpu")
    ids = [scored.vocabulary.id(word) for word, _ in words[0]]
    tokens = torch.tensor([[2, *ids[:15]]])
    expected = scored.models[0].log_probs(tokens)[0].gather(1, torch.tensor(ids[:16])[:, None])[:, 0]
    found = torch.tensor([float(score) for _, score in words[1][:16]])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_words_of_subwords(data, piece_model, capsys):
    line = f"{data}/pieces --path {piece_model} --gen-subset valid"
    by_token, out = evaluated(line, capsys)
    by_word, bpe_out = evaluated(f"{line} --remove-bpe --output-word-probs --output-word-stats", capsys)
    assert evaluated(f"{line} --post-process subword_nmt", capsys)[0] == by_word
    text = (data / "text" / "valid.en").read_text()
    num_words = len(text.split()) + len(text.splitlines())  # </s> counts
    assert f"({num_words} words)" in out
    num_tokens = int(re.search(r"\((\d+) tokens\)", bpe_out)[1])
    assert by_word * num_words == pytest.approx(by_token * num_tokens, rel=1e-4)
    spelled = " ".join(word for word, _ in re.findall(r"(\S+) \[(-[\d.]+)\]", bpe_out)).replace("</s>", "\n")
    cut = sum(line.strip() not in text for line in spelled.splitlines())
    assert cut <= len(re.findall(r"^\d+ ", bpe_out, re.MULTILINE)), "only a block's end may cut a word"
    stats = dict(re.findall(r"^(\S+)\t(\d+)\t-[\d.]+\t(?:True|False)\t-?[\d.]+\t\d+$", bpe_out, re.MULTILINE))
    assert stats["</s>"] == str(len(text.splitlines()))


def test_an_ensemble_and_other_options(data, model, capsys):
    line = f"{data}/data --gen-subset test"
    single = evaluated(f"{line} --path {model}", capsys)[0]
    assert evaluated(f"{line} --path {model}:{model}", capsys)[0] == pytest.approx(single, abs=1e-4)
    assert evaluated(f"{line} --path {model} --bf16 --cpu", capsys)[0] == pytest.approx(single, rel=0.05)
    assert evaluated(f"{data}/data --path {model}", capsys)[0] == pytest.approx(single, abs=1e-4), "test is the default"
    overrides = "--model-overrides \"{'max_target_positions': 32}\""
    assert evaluated(f"{line} --path {model} --tokens-per-sample 32 {overrides}", capsys)[0] != single


def test_the_published_line_with_layers_to_keep(data, model, capsys):
    line = f"{data}/data --path {model} --model-overrides \"{{'decoder_layers_to_keep':'0,2'}}\""
    bits, out = evaluated(line, capsys)
    assert "| Pruning model to specified layer configuration" in out
    assert evaluated(f"{data}/data --path {model} --decoder-layers-to-keep 0,2", capsys)[0] == bits
    assert run(f"prune {model} --decoder-layers-to-keep 0,2 --output {data}/pruned.pt") == 0
    assert evaluated(f"{data}/data --path {data}/pruned.pt", capsys)[0] == bits


def test_the_average_of_language_models_is_one(data, model, capsys):
    folder = model.parent
    assert run(f"average --inputs {folder}/checkpoint1.pt {folder}/checkpoint2.pt --output {data}/average.pt") == 0
    evaluated(f"{data}/data --path {data}/average.pt", capsys)


def test_going_on_with_another_task_is_an_error(data, model, capsys):
    assert run(f"train {data}/data --task masked_lm --arch tiny_masked --max-tokens 64 --save-dir {model.parent}") == 2
    assert "was trained with --task language_modeling, not masked_lm" in error_of(capsys)


def test_folders_that_fairseq_made(tmp_path, data, capsys):
    folder = place_of("fairseq_main_lm_layerdrop")
    for name in ("dict.txt", "valid.bin", "valid.idx"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    for ending in ("bin", "idx"):
        (tmp_path / f"train.{ending}").write_bytes((folder / f"valid.{ending}").read_bytes())
    assert run(f"train {tmp_path} {TINY} --save-dir {tmp_path}/checkpoints") == 0
    evaluated(f"{tmp_path} --path {tmp_path}/checkpoints/checkpoint_best.pt --gen-subset valid", capsys)


def test_prompts_are_continued(model, monkeypatch, capsys):
    lines = ["the old boat", "", "bird sings zzz"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(("\n".join(lines) + "\n").encode())))
    capsys.readouterr()
    assert run(f"interactive --path {model} --beam 3 --nbest 2 --max-len-b 6") == 0
    out = capsys.readouterr().out
    for number, line in enumerate(lines):
        assert f"S-{number}\t{line}" in out
        found = re.findall(rf"^H-{number}\t(-[\d.]+)\t(.*)$", out, re.MULTILINE)
        assert len(found) == 2
        for _, text in found:
            assert text.startswith(line.replace("zzz", "<unk>"))
            assert 1 <= len(text.split()) - len(line.split()) <= 6
    assert len(re.findall(r"^P-0\t", out, re.MULTILINE)) == 2


def test_generation_from_python(model):
    loaded = lamina.load(model, device="cpu")
    assert isinstance(loaded, lamina.LanguageModel)
    (best,) = loaded.generate(["the old boat"], beam=2, max_len_b=5)
    assert best.text.startswith("the old boat ")
    assert len(best.ids) == len(best.token_scores)
    # Scores are those of the text as a whole.
    scores = loaded.models[0].log_probs(torch.tensor([[2, *best.ids[:-1]]]))[0].gather(1, torch.tensor(best.ids)[:, None])[:, 0]
    np.testing.assert_allclose(scores.detach().numpy(), best.token_scores, atol=1e-4)
    drawn = [loaded.generate(["the"], sampling=True, sampling_topk=5, beam=1, max_len_b=8, seed=seed)[0].text
             for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1
    together = loaded.generate(["the", "a small old red", "river"], beam=2, max_len_b=5)
    assert [text.text for text in together] == [loaded.generate([prompt], beam=2, max_len_b=5)[0].text
                                                for prompt in ("the", "a small old red", "river")]
    assert [text.text for text in loaded.stream(["the", "river"], beam=2, max_len_b=5, buffer_size=1)] == [
        together[0].text, together[2].text]


def test_a_prompt_that_fills_the_model(model):
    loaded, said = lamina.load(model, device="cpu"), []
    long = " ".join(["the old boat"] * 10)
    (text,) = loaded.generate([long], max_len_b=4, beam=1, warn=said.append)
    assert "30 tokens" in said[0]
    assert "cut to its last 11" in said[0]
    assert text.text.startswith("old boat the old boat")
    assert loaded.generate([long], max_len_b=4, too_long="skip", warn=said.append)[0].is_skipped
    assert loaded.generate("the", max_len_b=4).text == loaded.generate(["the"], max_len_b=4)[0].text
    with pytest.raises(ConfigError, match="--constraints is for translations"):
        loaded.generate(["the"], constraint_order="ordered")


def test_commands_for_other_models_say_what_this_one_is(data, model, capsys):
    for line in (f"generate {data}/data --path {model}", f"rescore --path {model} --source x --target y"):
        assert run(line) == 2
        assert "is a language model: `lamina eval-lm` measures it" in error_of(capsys)
    assert run(f"interactive --path {model} --print-alignment --input {data}/text/test.en") == 2
    assert "a language model has none" in error_of(capsys)


@pytest.mark.parametrize(("flags", "message"), [
    ("--tokens-per-sample 32", "more than the 16 positions"),
    ("--context-window 16", "leaves nothing to measure"),
    ("--gen-subset nothing", "has no text 'nothing'"),
    ("--softmax-batch 0", "must be at least 1"),
    ("--context-window -1", "must be 0 or more"),
    ("--add-bos-token", "--add-bos-token is not supported"),
])
def test_eval_lm_errors(data, model, capsys, flags, message):
    assert run(f"eval-lm {data}/data --path {model} {flags}") == 2
    assert message in error_of(capsys)


def test_eval_lm_wants_the_models_own_dictionary(data, model, capsys):
    assert run(f"eval-lm {data}/pieces --path {model}") == 2
    assert re.search(r"was made with the dictionary \w+, but .* expects \w+", error_of(capsys))


def test_too_long_sentences(tmp_path, data, model, capsys):
    (tmp_path / "long.en").write_text(" ".join(["the old boat"] * 10) + "\nthe old boat\n")
    assert run(f"preprocess --only-source --srcdict {data}/data/dict.txt --testpref {tmp_path}/long.en --workers 1 "
               f"--destdir {tmp_path}/data") == 0
    line = f"{tmp_path}/data --path {model} --sample-break-mode eos"
    assert run(f"eval-lm {line}") == 2
    assert "1 of 2 blocks" in error_of(capsys)
    evaluated(f"{line} --skip-invalid-size-inputs-valid-test", capsys)


@pytest.mark.parametrize(("flags", "message"), [
    ("--task language_modeling --arch tiny", "--arch tiny is a preset for --task translation"),
    ("--arch transformer_lm", "Add --task language_modeling"),
    ("--task language_modeling --encoder-layers 3", "--encoder-layers has no effect with --task language_modeling"),
    ("--task language_modeling --share-all-embeddings", "has no effect with --task language_modeling"),
    ("--tokens-per-sample 512", "has no effect with --task translation"),
    ("--adaptive-softmax-cutoff 20", "has no effect with --task translation"),
    ("--task language_modeling --criterion adaptive_loss", "needs an adaptive softmax"),
    ("--task language_modeling --adaptive-softmax-cutoff 9 --criterion label_smoothed_cross_entropy --label-smoothing 0.1",
     "would need every word's probability"),
    ("--task language_modeling --tie-adaptive-weights", "--tie-adaptive-weights"),
    ("--task language_modeling --adaptive-input-factor 2", "no effect without --adaptive-input"),
    ("--task language_modeling --character-embeddings", "words are embedded whole"),
    ("--task language_modeling --past-target", "predicts the future alone"),
    ("--task language_modeling --output-dictionary-size 50", "--nwordssrc"),
    ("--task language_modeling --sample-break-mode lines", "one of none, complete, complete_doc, eos"),
])
def test_training_flags_that_make_no_sense(flags, message, capsys):
    assert run(f"train DATA --max-tokens 64 {flags}") == 2
    assert message in error_of(capsys)


def test_label_smoothing_works_without_an_adaptive_softmax(data):
    assert run(f"train {data}/data {TINY} --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --no-save "
               "--max-epoch 1") == 0


def test_positions_follow_the_blocks():
    def config(*words):
        given, notices = parse("lamina train", TrainConfig, "", ["DATA", "--task", "language_modeling", *words])
        return resolve(TrainConfig, {"max-tokens": "4096", **given}), notices

    assert config()[0].arch == "transformer_lm"
    assert config("--tokens-per-sample", "512")[0].model.embedding.max_target_positions == 512
    assert config("--tokens-per-sample", "512", "--max-target-positions", "600")[0].model.embedding.max_target_positions == 600
    assert any("--future-target has no effect" in notice for notice in config("--future-target")[1])


def test_the_wikitext_recipe_runs_as_it_is(data):
    """The published line, with a smaller model and fewer updates."""
    line = ("--task language_modeling --arch transformer_lm_wiki103 --max-update 286000 --max-lr 1.0 --t-mult 2 "
            "--lr-period-updates 270000 --lr-scheduler cosine --lr-shrink 0.75 --warmup-updates 16000 --warmup-init-lr 1e-07 "
            "--min-lr 1e-09 --optimizer nag --lr 0.0001 --clip-norm 0.1 --criterion adaptive_loss --max-tokens 3072 "
            "--update-freq 3 --tokens-per-sample 3072 --seed 1 --sample-break-mode none --skip-invalid-size-inputs-valid-test "
            "--ddp-backend=no_c10d --stop-min-lr 1e-09")
    given, _ = parse("lamina train", TrainConfig, "", ["DATA", *shlex.split(line)])
    config = resolve(TrainConfig, given)
    assert config.model.embedding.max_target_positions == 3072
    assert config.model.lm.softmax_cutoff == (20000, 60000)
    smaller = ("--decoder-layers 2 --decoder-embed-dim 16 --decoder-ffn-embed-dim 32 --decoder-attention-heads 2 "
               "--max-update 3 --adaptive-softmax-cutoff 10,20 --adaptive-input-cutoff 10,20 --no-save")
    assert run(f"train {data}/data {line} {smaller}") == 0
