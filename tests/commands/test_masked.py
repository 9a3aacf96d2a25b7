"""Masked language models and sentence classifiers: `lamina train` and what `lamina.load` makes of the result."""

import json
import re
import shlex
import shutil

import numpy as np
import pytest
import torch

import lamina
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.errors import ConfigError, DataError
from lamina.training import run as run_module
from tiny import TINY_MASKED_FLAGS, write_text

SUBJECTS, VERBS, PLACES = "cat dog bird child".split(), "sat slept sang ran".split(), "mat tree garden river".split()
GOOD, BAD = "lovely fine happy bright".split(), "awful sad gloomy broken".split()


def sentences(number, seed):
    """The verb follows from the subject, and the label from the adjective."""
    generator = np.random.default_rng(seed)
    for _ in range(number):
        subject, adjective, place = generator.integers(4), generator.integers(8), PLACES[generator.integers(4)]
        text = f"the {(GOOD + BAD)[adjective]} {SUBJECTS[subject]} {VERBS[subject]} on the {place} ."
        yield text, "pos" if adjective < 4 else "neg"


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def preprocess(*flags):
    assert main(["preprocess", "--only-source", "--workers", "1", *map(str, flags)]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """text/, and data folders lm/ and task/{input0,input1,label}."""
    folder = tmp_path_factory.mktemp("masked")
    text = folder / "text"
    for split, number, seed in (("train", 240, 0), ("valid", 40, 1)):
        rows = list(sentences(number, seed))
        write_lines(text / f"{split}.txt", [row for row, _ in rows])
        write_lines(text / f"{split}.label", [label for _, label in rows])
        # Of a pair: are both halves of one mood?
        others = [row for row, _ in sentences(number, seed + 10)]
        write_lines(text / f"{split}.other", others)
        write_lines(text / f"{split}.number", [(label == "pos") - 0.5 for _, label in rows])
    preprocess("--trainpref", text / "train.txt", "--validpref", text / "valid.txt", "--destdir", folder / "lm")
    for name, ending, flags in (("input0", "txt", ["--srcdict", folder / "lm" / "dict.txt"]), ("label", "label", [])):
        preprocess("--trainpref", text / f"train.{ending}", "--validpref", text / f"valid.{ending}", *flags,
                   "--destdir", folder / "task" / name)
    return folder


def train(data, save_dir, *flags):
    return main(["train", str(data), *TINY_MASKED_FLAGS, "--save-dir", str(save_dir), *map(str, flags)])


def error_of(capsys):
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


# -- masked language models

FINE = ("--task", "sentence_prediction", "--num-classes", "2", "--batch-size", "16", "--lr", "0.003", "--warmup-updates", "10")
MASKED = ("--task", "masked_lm", "--sample-break-mode", "eos", "--max-tokens", "256", "--lr", "0.01", "--warmup-updates", "10")


@pytest.fixture(scope="module")
def pretrained(folder):
    assert train(folder / "lm", folder / "mlm", *MASKED, "--mask-prob", "0.2", "--max-epoch", "30", "--encoder-layerdrop",
                 "0.1", "--disable-validation", "--no-epoch-checkpoints", "--save-interval", "30") == 0
    return folder / "mlm" / "checkpoint_last.pt"


def test_gaps_are_filled(pretrained):
    model = lamina.load(pretrained, device="cpu")
    for subject, verb in zip(SUBJECTS, VERBS, strict=True):
        found = model.fill_mask(f"the happy {subject} <mask> on the mat .", topk=3)
        assert len(found) == 3
        assert (found[0].token, found[0].text) == (verb, f"the happy {subject} {verb} on the mat .")
        assert 0.6 < found[0].probability <= 1.0
        assert found[0].probability > found[1].probability > found[2].probability
    every = model.fill_mask("the <mask> .", topk=10_000)
    assert 0.99 < sum(own.probability for own in every) <= 1.0 + 1e-5
    assert not {own.token for own in every} & {"<s>", "<pad>", "</s>", "<unk>", "<mask>"}
    ensemble = lamina.load([pretrained, pretrained], device="cpu").fill_mask("the <mask> .", topk=1)
    assert ensemble[0].probability == pytest.approx(every[0].probability)


def test_texts_that_cannot_be_filled(pretrained):
    model = lamina.load(pretrained, device="cpu")
    with pytest.raises(DataError, match="has no <mask>"):
        model.fill_mask("the cat sat .")
    with pytest.raises(DataError, match=r"has 2 <mask>s.* one gap at a time"):
        model.fill_mask("the <mask> <mask> .")
    with pytest.raises(DataError, match="more than the 64 positions"):
        model.fill_mask("<mask>" + " the" * 100)
    with pytest.raises(ConfigError, match="topk is 0"):
        model.fill_mask("the <mask>", topk=0)
    with pytest.raises(ConfigError, match="it has none: fine-tune it first"):
        model.predict("any", "the cat sat .")


def test_a_masked_run_reports_loss_and_perplexity(folder, tmp_path, capsys):
    assert train(folder / "lm", tmp_path, *MASKED, "--max-epoch", "1", "--mask-whole-words", "--freq-weighted-replacement") == 0
    out = capsys.readouterr().out
    assert re.search(r"240 blocks in \d+ batches", out)
    assert "criterion masked_lm" in out
    assert re.search(r"valid on 'valid' subset \| loss [\d.]+ \| nll_loss [\d.]+ \| ppl [\d.]+", out)
    checkpoint = load_checkpoint(tmp_path / "checkpoint_last.pt")
    assert (checkpoint.task, checkpoint.languages) == ("masked_lm", ("text",))
    assert checkpoint.dictionaries[0].endswith("<mask> 1\n")
    assert len(checkpoint.weights["head.bias"]) == len(checkpoint.vocabularies()[0])


@pytest.mark.parametrize("mode", ["none", "complete", "complete_doc", "eos"])
def test_ways_to_cut_the_text(folder, tmp_path, mode):
    flags = ["--sample-break-mode", mode, "--tokens-per-sample", "32", "--max-update", "2"]
    assert train(folder / "lm", tmp_path, *MASKED, *flags) == 0


def test_resuming_a_masked_run_equals_not_stopping(folder, tmp_path):
    flags = [*MASKED, "--dropout", "0.1", "--encoder-layerdrop", "0.3", "--mask-whole-words"]
    assert train(folder / "lm", tmp_path / "whole", *flags, "--max-epoch", "4") == 0
    assert train(folder / "lm", tmp_path / "parts", *flags, "--max-update", "7") == 0
    assert train(folder / "lm", tmp_path / "parts", *flags, "--max-epoch", "4", "--num-workers", "0") == 0
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert one.metrics == other.metrics


def test_subwords_of_raw_text(tmp_path, folder):
    text = folder / "text"
    preprocess("--trainpref", text / "train.txt", "--validpref", text / "valid.txt", "--destdir", tmp_path / "data",
               "--subword", "sentencepiece", "--vocab-size", "40")
    assert train(tmp_path / "data", tmp_path / "out", *MASKED, "--mask-whole-words", "--max-epoch", "2") == 0
    model = lamina.load(tmp_path / "out" / "checkpoint_last.pt", device="cpu")
    for found in model.fill_mask("the happy <mask>.", topk=30):
        assert found.text.endswith(".")
        if found.token.startswith("▁"):
            assert found.text == f"the happy {found.token[1:]}."
        else:
            assert found.text == f"the happy{found.token}."


@pytest.mark.parametrize(("flags", "message"), [
    ([*MASKED, "--mask-prob", "1"], "--mask-prob is 1.0; it must lie strictly between 0 and 1"),
    ([*MASKED, "--leave-unmasked-prob", "0.6", "--random-token-prob", "0.6"], "together they must not exceed 1"),
    ([*MASKED, "--num-classes", "2"], "--num-classes has no effect with --task masked_lm"),
    ([*MASKED, "--decoder-layers", "3"], "--decoder-layers has no effect with --task masked_lm"),
    ([*MASKED, "--decoder-layers-to-keep", "0"], "--decoder-layers-to-keep has no effect with --task masked_lm"),
    ([*MASKED, "--surfacefusion", "att"], "--surfacefusion has no effect with --task masked_lm"),
    ([*MASKED, "--share-decoder-input-output-embed"], "has no effect with --task masked_lm"),
    ([*MASKED, "--eval-bleu"], "--eval-bleu has no effect with --task masked_lm"),
    ([*MASKED, "--criterion", "sentence_prediction"], "--criterion sentence_prediction belongs to"),
    ([*MASKED, "--tokens-per-sample", "65"], "at most --max-positions 64"),
    ([*MASKED, "--best-checkpoint-metric", "accuracy"], "is not measured by this run"),
])
def test_what_cannot_be_masked(folder, tmp_path, capsys, flags, message):
    assert train(folder / "lm", tmp_path / "out", *flags) == 2
    assert message in error_of(capsys)
    assert not (tmp_path / "out").exists()


def test_a_text_that_holds_the_mask(folder, tmp_path, capsys):
    write_lines(tmp_path / "text", ["the <mask> sat", "a cat sat"] * 4)
    preprocess("--trainpref", tmp_path / "text", "--validpref", tmp_path / "text", "--destdir", tmp_path / "data")
    capsys.readouterr()
    assert train(tmp_path / "data", tmp_path / "out", *MASKED, "--max-update", "1") == 2
    assert "holds <mask> already" in error_of(capsys)


def test_commands_for_translation_say_what_the_model_is(pretrained, capsys):
    for command in (["interactive"], ["generate", str(pretrained.parent)]):
        assert main([*command, "--path", str(pretrained)]) == 2
        assert "is a masked language model" in error_of(capsys)


def test_averages_and_half_precision(pretrained, folder, tmp_path, capsys):
    assert main(["average", "--inputs", str(pretrained), str(pretrained), "--output", str(tmp_path / "mean.pt")]) == 0
    paths = (pretrained, tmp_path / "mean.pt")
    one, other = (lamina.load(path, device="cpu").fill_mask("the <mask> .", topk=1) for path in paths)
    assert one[0].probability == pytest.approx(other[0].probability)
    assert train(folder / "lm", tmp_path / "bf16", *MASKED, "--bf16", "--max-update", "2") == 0
    assert train(folder / "task", tmp_path / "bf16-task", *FINE, "--bf16", "--max-update", "2") == 0


@pytest.mark.parametrize("task", ["lm", "task"])
def test_admin_profiles_an_encoder_alone(folder, tmp_path, capsys, task):
    flags = MASKED if task == "lm" else FINE
    assert train(folder / task, tmp_path, *flags, "--init-type", "admin", "--max-update", "2") == 0
    assert re.search(r"Admin: omega \S+ to \S+ over 4 encoder sub-layers", capsys.readouterr().out)
    assert "encoder.layers.1.ffn_residual.add.omega" in load_checkpoint(tmp_path / "checkpoint_last.pt").weights


SMALL = ("--encoder-layers", "1", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads",
         "2", "--max-update", "2", "--cpu")


def test_the_references_lines(folder, tmp_path, capsys):
    """Pretraining and GLUE as published, verbatim but for folders, sizes and the number of updates."""
    pretraining = ("train --fp16 DATA --task masked_lm --criterion masked_lm --arch roberta_base --sample-break-mode complete "
                   "--tokens-per-sample 512 --optimizer adam --adam-betas '(0.9,0.98)' --adam-eps 1e-6 --clip-norm 0.0 "
                   "--lr-scheduler polynomial_decay --lr 0.0005 --warmup-updates 10000 --total-num-update 125000 --dropout 0.1 "
                   "--attention-dropout 0.1 --weight-decay 0.01 --max-sentences 16 --update-freq 16 --max-update 125000 "
                   "--log-format simple --log-interval 1 --save-dir OUT")
    glue = ("train DATA --restore-file ROBERTA --max-positions 512 --max-sentences 16 --max-tokens 4400 "
            "--task sentence_prediction --reset-optimizer --reset-dataloader --reset-meters --required-batch-size-multiple 1 "
            "--init-token 0 --separator-token 2 --arch roberta_large --criterion sentence_prediction --num-classes 2 "
            "--dropout 0.1 --attention-dropout 0.1 --weight-decay 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' "
            "--adam-eps 1e-06 --clip-norm 0.0 --lr-scheduler polynomial_decay --lr 2e-05 --total-num-update 2036 "
            "--warmup-updates 122 --fp16 --fp16-init-scale 4 --threshold-loss-scale 1 --fp16-scale-window 128 --max-epoch 10 "
            "--find-unused-parameters --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --save-dir OUT")
    roberta = str(tmp_path / "lm" / "checkpoint_last.pt")
    for line, data, out in ((pretraining, folder / "lm", tmp_path / "lm"), (glue, folder / "task", tmp_path / "task")):
        words = shlex.split(line.replace("DATA", str(data)).replace("OUT", str(out)).replace("ROBERTA", roberta))
        assert main([*words, *SMALL]) == 0
        assert (out / "checkpoint_best.pt").exists()
    assert f"weights taken from {roberta}" in capsys.readouterr().out


@pytest.mark.parametrize("task", ["lm", "task"])
def test_pretrained_embeddings(folder, tmp_path, task):
    write_lines(tmp_path / "vectors.txt", ["1 32", "cat " + " ".join(["0.5"] * 32)])
    flags = [*(MASKED if task == "lm" else FINE), "--lr", "1e-12", "--max-update", "1"]
    assert train(folder / task, tmp_path / "out", *flags, "--encoder-embed-path", tmp_path / "vectors.txt") == 0
    checkpoint = load_checkpoint(tmp_path / "out" / "checkpoint_last.pt")
    row = checkpoint.weights["source_embedding.table.weight"][checkpoint.vocabularies()[0].id("cat")]
    torch.testing.assert_close(row, torch.full((32,), 0.5), rtol=0, atol=1e-6)


@pytest.mark.parametrize("task", ["lm", "task"])
def test_a_printed_configuration_is_a_recipe(folder, tmp_path, capsys, task):
    flags = MASKED if task == "lm" else FINE
    assert train(folder / task, tmp_path / "out", *flags, "--print-config") == 0
    printed = capsys.readouterr().out
    (tmp_path / "recipe.yaml").write_text(printed)
    assert main(["train", "--config", str(tmp_path / "recipe.yaml"), "--print-config"]) == 0
    assert capsys.readouterr().out == printed


# -- from one to the other

RESET = ("--reset-optimizer", "--reset-dataloader", "--reset-meters")


def test_finetuning_a_pretrained_model(pretrained, folder, tmp_path, capsys):
    """The references' line; the whole model and half of it."""
    line = [*FINE, "--init-token", "0", "--separator-token", "2", "--restore-file", pretrained, *RESET, "--max-epoch", "3",
            "--criterion", "sentence_prediction", "--best-checkpoint-metric", "accuracy", "--maximize-best-checkpoint-metric"]
    before = load_checkpoint(pretrained)
    assert train(folder / "task", tmp_path / "still", *line, "--max-update", "1", "--lr", "1e-12") == 0
    assert f"weights taken from {pretrained}" in capsys.readouterr().out
    after = load_checkpoint(tmp_path / "still" / "checkpoint_last.pt")
    assert after.training["progress"]["updates"] == 1
    torch.testing.assert_close({name: after.weights[name] for name in before.weights}, before.weights, rtol=0, atol=1e-6)
    assert train(folder / "task", tmp_path / "whole", *line) == 0
    assert load_checkpoint(tmp_path / "whole" / "checkpoint_best.pt").metrics["accuracy"] > 0.95
    capsys.readouterr()
    assert train(folder / "task", tmp_path / "half", *line, "--encoder-layers-to-keep", "0") == 0
    assert "| Pruning model to specified layer configuration" in capsys.readouterr().out
    half = load_checkpoint(tmp_path / "half" / "checkpoint_best.pt")
    assert half.config["encoder-layers"] == 1
    assert half.metrics["accuracy"] > 0.9
    model = lamina.load(tmp_path / "half" / "checkpoint_best.pt", device="cpu")
    assert model.predict("sentence_classification_head", "the gloomy bird sang on the tree .").label == "neg"
    assert model.fill_mask("the <mask> bird sang on the tree .")


def test_a_head_with_an_output_matrix_of_its_own(folder, tmp_path, capsys):
    """--untie-weights-roberta: trained, saved, fine-tuned and given to fairseq."""
    assert train(folder / "lm", tmp_path / "mlm", *MASKED, "--untie-weights-roberta", "--max-update", "3") == 0
    path = tmp_path / "mlm" / "checkpoint_last.pt"
    stored = load_checkpoint(path)
    assert stored.weights["head.table.weight"].shape == stored.weights["source_embedding.table.weight"].shape
    assert not torch.equal(stored.weights["head.table.weight"], stored.weights["source_embedding.table.weight"])
    assert lamina.load(path, device="cpu").fill_mask("the <mask> bird sang on the tree .")
    assert main(["export", str(path), "--format", "fairseq", "--output", str(tmp_path / "folder")]) == 0
    again = lamina.load(tmp_path / "folder" / "model.pt", device="cpu")
    tokens = torch.tensor([[0, 5, 6, 7, 2]])
    assert torch.equal(again.models[0].logits(tokens), lamina.load(path, device="cpu").models[0].logits(tokens))
    begin = [*FINE, "--finetune-from-model", path, "--max-update", "1"]
    assert train(folder / "task", tmp_path / "fine", *begin, "--untie-weights-roberta") == 0
    capsys.readouterr()
    assert train(folder / "task", tmp_path / "tied", *begin) == 2
    assert "--untie-weights-roberta" in capsys.readouterr().err


def test_a_pruned_model_fills_what_the_whole_one_fills_with_layers_skipped(pretrained):
    from lamina.nn.stack import ActiveLayers

    whole, half = lamina.load(pretrained, device="cpu"), lamina.load(pretrained, device="cpu", encoder_layers_to_keep=[1])
    tokens = torch.tensor([[0, 5, 6, 7, 2]])
    assert torch.equal(half.models[0].encode(tokens).final,
                       whole.models[0].encode(tokens, ActiveLayers(encoder=(False, True))).final)
    with pytest.raises(ConfigError, match=r"masked_lm model .* has no decoder"):
        lamina.load(pretrained, decoder_layers_to_keep=[0])


def test_prune_writes_and_searches(pretrained, classifier, folder, tmp_path, capsys):
    assert main(["prune", str(pretrained), "--encoder-layers-to-keep", "1", "--output", str(tmp_path / "one.pt")]) == 0
    small = lamina.load(tmp_path / "one.pt", device="cpu")
    expected = lamina.load(pretrained, device="cpu", encoder_layers_to_keep=[1])
    text = "the happy cat <mask> on the mat ."
    assert small.fill_mask(text) == expected.fill_mask(text)
    begin = ["--finetune-from-model", tmp_path / "one.pt", "--max-update", "1"]
    assert train(folder / "task", tmp_path / "fine", *FINE, *begin) == 0
    assert load_checkpoint(tmp_path / "fine" / "checkpoint_last.pt").config["encoder-layers"] == 1
    capsys.readouterr()
    for path, data in ((pretrained, folder / "lm"), (classifier, folder / "task")):
        assert main(["prune", str(path), str(data), "--search", "--encoder-layers", "1", "--metric", "loss", "--cpu",
                     "--output", str(tmp_path / f"{data.name}.pt")]) == 0
        assert "<- kept" in capsys.readouterr().out
        assert lamina.load(tmp_path / f"{data.name}.pt", device="cpu").fill_mask(text)


def test_a_dictionary_of_other_data(pretrained, folder, tmp_path, capsys):
    data = tmp_path / "task"
    shutil.copytree(folder / "task", data)
    shutil.rmtree(data / "input0")
    preprocess("--trainpref", folder / "text" / "train.other", "--validpref", folder / "text" / "valid.other",
               "--destdir", data / "input0")
    capsys.readouterr()
    assert train(data, tmp_path / "out", *FINE, "--restore-file", pretrained, "--max-update", "1", *RESET) == 0
    assert re.search(r"\d+ of \d+ types keep their row", capsys.readouterr().out)


# -- sentence classification

@pytest.fixture(scope="module")
def classifier(folder):
    """Trained from scratch, which these sentences are easy enough for."""
    assert train(folder / "task", folder / "cls", *FINE, "--max-epoch", "6", "--best-checkpoint-metric", "accuracy",
                 "--maximize-best-checkpoint-metric", "--no-epoch-checkpoints") == 0
    return folder / "cls" / "checkpoint_best.pt"


def test_a_separable_task_is_learned_and_judged(classifier, folder):
    checkpoint = load_checkpoint(classifier)
    assert checkpoint.task == "sentence_prediction"
    assert checkpoint.metrics["accuracy"] > 0.95
    assert checkpoint.metrics["f1"] > 0.95
    assert checkpoint.languages == ("input", "label")
    assert checkpoint.dictionaries[0].endswith("<mask> 1\n")


def test_predictions_from_python(classifier, folder):
    model = lamina.load(classifier, device="cpu")
    (head,) = model.heads
    found = model.predict(head, "the happy dog slept on the mat .")
    assert found.label == "pos"
    assert found.probability > 0.5
    assert found.probabilities.keys() == {"pos", "neg"}
    assert sum(found.probabilities.values()) == pytest.approx(1.0)
    lines = (folder / "text" / "valid.txt").read_text().splitlines()
    labels = (folder / "text" / "valid.label").read_text().splitlines()
    predicted = [own.label for own in model.predict_all(head, lines, batch_size=7)]
    expected = load_checkpoint(classifier).metrics["accuracy"]
    assert np.mean([one == other for one, other in zip(predicted, labels, strict=True)]) == pytest.approx(expected)
    with pytest.raises(ConfigError, match="no sentence head 'mnli'; its heads are sentence_classification_head"):
        model.predict("mnli", "the dog")
    with pytest.raises(DataError, match="more than the 64 positions"):
        model.predict(head, "the " * 100)


def test_resuming_a_classifier_equals_not_stopping(folder, tmp_path):
    flags = [*FINE, "--dropout", "0.1", "--pooler-dropout", "0.1"]
    assert train(folder / "task", tmp_path / "whole", *flags, "--max-epoch", "2") == 0
    assert train(folder / "task", tmp_path / "parts", *flags, "--max-update", "9") == 0
    assert train(folder / "task", tmp_path / "parts", *flags, "--max-epoch", "2") == 0
    one, other = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "parts"))
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    assert one.metrics == other.metrics


def test_pairs_of_sentences(folder, tmp_path, capsys):
    text, data = folder / "text", tmp_path / "task"
    shutil.copytree(folder / "task", data)
    given = ["--srcdict", folder / "lm" / "dict.txt", "--destdir", data / "input1"]
    preprocess("--trainpref", text / "train.other", "--validpref", text / "valid.other", *given)
    assert train(data, tmp_path / "out", *FINE, "--init-token", "0", "--separator-token", "2", "--max-update", "2") == 0
    model = lamina.load(tmp_path / "out" / "checkpoint_last.pt", device="cpu")
    assert model.token_ids("the", "cat").tolist()[0] == 0
    assert model.token_ids("the", "cat").tolist()[2:4] == [2, 2]
    assert model.predict("sentence_classification_head", "the cat sat .", "the dog ran .").label in ("pos", "neg")
    # Half of a pair is missing.
    write_lines(tmp_path / "short", ["the cat"])
    preprocess("--trainpref", tmp_path / "short", "--validpref", tmp_path / "short", *given)
    capsys.readouterr()
    assert train(data, tmp_path / "out2", *FINE) == 2
    assert "40 inputs and 1 second inputs" in error_of(capsys)


def test_numbers_instead_of_classes(folder, tmp_path, capsys):
    data = tmp_path / "task"
    shutil.copytree(folder / "task", data)
    for split in ("train", "valid"):
        shutil.copy(folder / "text" / f"{split}.number", data / "label" / f"{split}.label")
    flags = [*FINE, "--num-classes", "1", "--regression-target", "--best-checkpoint-metric", "pearson"]
    assert train(data, tmp_path / "out", *flags, "--max-epoch", "6") == 0
    assert re.search(r"valid on 'valid' subset .* mse [\d.]+ \| pearson [\d.]+ \| best_pearson", capsys.readouterr().out)
    checkpoint = load_checkpoint(tmp_path / "out" / "checkpoint_best.pt")
    assert checkpoint.metrics["pearson"] > 0.9
    model = lamina.load(tmp_path / "out" / "checkpoint_best.pt", device="cpu")
    values = [model.predict("sentence_classification_head", f"the {word} dog slept on the mat .").value
              for word in ("happy", "sad")]
    assert values[0] > values[1] + 0.3
    write_lines(data / "label" / "valid.label", ["1.5", "two"])
    capsys.readouterr()
    assert train(data, tmp_path / "out2", *flags) == 2
    assert "valid.label, line 2: expected a number, found 'two'" in error_of(capsys)


@pytest.mark.parametrize(("flags", "message"), [
    (["--task", "sentence_prediction", "--batch-size", "4"], "needs --num-classes"),
    ([*FINE, "--num-classes", "1"], "has 2 labels"),
    ([*FINE, "--criterion", "cross_entropy"], "has --criterion sentence_prediction and no other"),
    ([*FINE, "--f1-label", "neutral"], "--f1-label is 'neutral'"),
    ([*FINE, "--best-checkpoint-metric", "pearson"], "is not measured by this run"),
    ([*FINE, "--regression-target"], "--num-classes is 1, not 2"),
    ([*FINE, "--mask-prob", "0.3"], "--mask-prob has no effect with --task sentence_prediction"),
    ([*FINE, "--no-shuffle"], "--no-shuffle is not supported"),
    ([*FINE, "--arch", "tiny"], "is a preset for --task translation"),
    ([*FINE, "--init-token", "900"], "--init-token is 900, but the dictionary has"),
])
def test_what_cannot_be(folder, tmp_path, capsys, flags, message):
    assert train(folder / "task", tmp_path / "out", *flags) == 2
    assert message in error_of(capsys)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_inputs(folder, tmp_path, capsys):
    assert train(folder / "lm", tmp_path / "out", *FINE) == 2
    assert "there is no" in (line := error_of(capsys))
    assert "input0" in line


def test_labels_that_training_lacks(folder, tmp_path, capsys):
    data = tmp_path / "task"
    shutil.copytree(folder / "task", data)
    write_lines(tmp_path / "valid.label", ["pos"] * 39 + ["neutral"])
    preprocess("--validpref", tmp_path / "valid.label", "--srcdict", data / "label" / "dict.txt", "--destdir", data / "label")
    capsys.readouterr()
    assert train(data, tmp_path / "out", *FINE) == 2
    assert "label 39 of" in error_of(capsys)


def test_a_head_for_other_labels(classifier, folder, tmp_path, capsys):
    data = tmp_path / "task"
    shutil.copytree(folder / "task", data)
    shutil.rmtree(data / "label")
    for split in ("train", "valid"):
        labels = (folder / "text" / f"{split}.label").read_text().replace("pos", "yes").replace("neg", "no").split()
        write_lines(tmp_path / f"{split}.label", labels)
    preprocess("--trainpref", tmp_path / "train.label", "--validpref", tmp_path / "valid.label", "--destdir", data / "label")
    capsys.readouterr()
    begin = ["--finetune-from-model", classifier, "--max-update", "1"]
    assert train(data, tmp_path / "out", *FINE, *begin) == 2
    assert "another --classification-head-name" in error_of(capsys)
    assert train(data, tmp_path / "out", *FINE, *begin, "--classification-head-name", "mood") == 0
    model = lamina.load(tmp_path / "out" / "checkpoint_last.pt", device="cpu")
    assert model.heads == ("mood",)
    assert set(model.labels) == {"yes", "no"}


def test_a_sentence_that_is_too_long(folder, tmp_path, capsys):
    flags = [*FINE, "--max-positions", "8", "--max-update", "1"]
    assert train(folder / "task", tmp_path / "out", *flags) == 2
    assert "nothing that fits" in error_of(capsys)
    assert train(folder / "task", tmp_path / "out", *flags, "--truncate-sequence") == 0


def test_f1_of_one_label(folder, tmp_path, capsys):
    assert train(folder / "task", tmp_path / "out", *FINE, "--max-update", "1", "--f1-label", "pos") == 0
    assert re.search(r"accuracy [\d.]+ \| f1 [\d.]+ \| best_loss", capsys.readouterr().out)


def test_numbered_parts_are_added(folder, tmp_path, capsys):
    data = tmp_path / "task"
    shutil.copytree(folder / "task", data)
    for name in ("input0", "label"):
        for ending in ("bin", "idx"):
            shutil.copy(data / name / f"valid.{ending}", data / name / f"train1.{ending}")
    assert train(data, tmp_path / "out", *FINE, "--max-update", "1") == 0
    assert "280 sentences in" in capsys.readouterr().out


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Sentences of many lengths: lm/ and task/, where the label says whether there are more than five words."""
    folder = tmp_path_factory.mktemp("uneven")
    for split, number, seed in (("train", 150, 0), ("valid", 20, 1)):
        text = write_text(folder / "text", number, seed=seed, split=split)
        lines = (text / f"{split}.en").read_text(encoding="utf-8").splitlines()
        write_lines(text / f"{split}.label", ["long" if len(line.split()) > 5 else "short" for line in lines])
    for name, ending in (("lm", "en"), ("task/input0", "en"), ("task/label", "label")):
        preprocess("--trainpref", text / f"train.{ending}", "--validpref", text / f"valid.{ending}", "--destdir", folder / name)
    return folder


BLOCKS = "--task masked_lm --tokens-per-sample 24 --sample-break-mode"
KINDS = {"masked": ("lm", f"{BLOCKS} eos --max-tokens 200"),
         "blocks": ("lm", f"{BLOCKS} complete --max-tokens 200"),
         "layerdrop": ("lm", f"{BLOCKS} eos --max-tokens 400 --encoder-layerdrop 0.5"),
         "classes": ("task", "--task sentence_prediction --num-classes 2 --batch-size 16")}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_shape_train_as_rows_without_pads_do(uneven, tmp_path, monkeypatch, kind):
    """As a GPU packs them, which a CPU never chooses."""
    data, flags = KINDS[kind]
    found = []
    for is_packed in (False, True):
        monkeypatch.setattr(run_module, "is_packed", lambda *_, is_packed=is_packed: is_packed)
        save_dir = tmp_path / str(is_packed)
        assert train(uneven / data, save_dir, *flags.split(), "--max-epoch", 2, "--required-batch-size-multiple", 1, "--lr",
                     0.003, "--warmup-updates", 4, "--log-interval", 1) == 0
        rows = map(json.loads, (save_dir / "train.jsonl").read_text(encoding="utf-8").splitlines())
        found.append([row["loss"] for row in rows if row["where"] in ("train", "valid")])
    flat, packed = found
    assert len(set(flat)) >= 8
    assert packed == pytest.approx(flat, rel=1e-5)
