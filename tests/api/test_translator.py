"""lamina.load and what it gives."""

import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch

import lamina
from lamina.api.outputs import writing_dtype
from lamina.checkpoint.format import load_checkpoint, save_checkpoint
from lamina.cli import main
from lamina.config.search_options import SearchConfig
from lamina.errors import CheckpointError, ConfigError
from lamina.nn.linear import Linear, has_onednn
from lamina.nn.prepacked import Int8Linear, PrepackedLinear
from tiny import TINY_FLAGS, make_data

LINES = ["the old boat sings", "", "a bird", "the small red bird reads near the river along the house", "moon", "garden house"]
OPTIONS = {"max_len_b": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("api")
    data = make_data(folder)
    for seed in ("1", "2"):
        flags = [str(data), *TINY_FLAGS, "--max-update", "12", "--seed", seed, "--save-dir", str(folder / seed),
                 "--max-source-positions", "16", "--max-target-positions", "16"]
        assert main(["train", *flags]) == 0
    return folder


@pytest.fixture(scope="module")
def path(folder):
    return str(folder / "1" / "checkpoint_last.pt")


@pytest.fixture(scope="module")
def translator(path):
    return lamina.load(path, device="cpu")


def texts(translations):
    return [translation.text for translation in translations]


def test_importing_lamina_does_not_import_torch():
    code = "import sys, lamina; assert 'torch' not in sys.modules; print(lamina.__version__)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = lamina.nothing


def test_a_translation_tells_what_it_is(translator):
    found = translator.translate(LINES, beam=3, nbest=2, with_alignment=True, **OPTIONS)
    assert len(found) == len(LINES)
    first = found[0]
    assert first.text == " ".join(first.tokens)
    assert first.ids[-1] == 2
    assert len(first.token_scores) == len(first.ids) == len(first.tokens) + 1
    assert first.score == pytest.approx(sum(first.token_scores) / len(first.ids), abs=1e-5)
    assert [target for _, target in first.alignment] == list(range(len(first.tokens)))
    assert all(0 <= source < 4 for source, _ in first.alignment)
    assert len(first.alternatives) == 1
    assert first.alternatives[0].score <= first.score


def test_an_empty_line_is_an_empty_translation(translator):
    empty = translator.translate(LINES, beam=2, **OPTIONS)[1]
    assert (empty.text, empty.score, empty.tokens, empty.ids, empty.alternatives) == ("", 0.0, [], [], [])
    assert translator.translate([]) == []


def test_batches_streams_and_order_do_not_matter(translator):
    whole = translator.translate(LINES, beam=3, **OPTIONS)
    assert texts(translator.translate(LINES, beam=3, batch_size=1, **OPTIONS)) == texts(whole)
    assert texts(translator.translate(LINES, beam=3, max_tokens=1000, **OPTIONS)) == texts(whole)
    assert texts(translator.stream(iter(LINES), beam=3, buffer_size=2, **OPTIONS)) == texts(whole)
    assert texts(translator.translate(LINES, search=SearchConfig(beam=3, max_length_offset=12))) == texts(whole)


def test_draws_belong_to_a_line(translator):
    draw = {"beam": 2, "sampling": True, "seed": 4, **OPTIONS}
    whole = texts(translator.translate(LINES, **draw))
    assert texts(translator.stream(LINES, buffer_size=1, **draw)) == whole
    assert texts(translator.translate(LINES, batch_size=1, **draw)) == whole
    assert texts(translator.translate(LINES, **{**draw, "seed": 5})) != whole


def test_forbidden_words_in_python_and_on_the_command_line(translator, path, folder, tmp_path, capsys):
    free = translator.translate(LINES, beam=2, **OPTIONS)
    word = free[0].tokens[0]
    (tmp_path / "forbidden").write_text(f"{word}\n", encoding="utf-8")
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    flags = ["--forbidden-words", str(tmp_path / "forbidden")]
    found = translator.translate(LINES, beam=2, forbidden_words=flags[1], **OPTIONS)
    assert texts(found) != texts(free)
    assert not [translation for translation in found if word in translation.tokens]
    assert main(["interactive", "--path", path, "--cpu", "--input", str(tmp_path / "lines"), "--plain", "--beam", "2",
                 "--max-len-b", "12", *flags]) == 0
    assert capsys.readouterr().out.splitlines() == texts(found)
    said = []
    for own in ([], flags):
        assert main(["generate", str(folder / "data"), "--path", path, "--cpu", "--gen-subset", "train", *own]) == 0
        said.append([line for line in capsys.readouterr().out.splitlines() if line.startswith("H-")])
    assert any(word in line.split() for line in said[0])
    assert not any(word in line.split() for line in said[1])


def test_a_stream_reads_no_further_than_its_buffer(translator):
    taken = []

    def lines():
        for number in range(100):
            taken.append(number)
            yield "a bird"

    stream = translator.stream(lines(), beam=1, buffer_size=5, **OPTIONS)
    next(stream)
    assert len(taken) == 5
    with pytest.raises(ConfigError, match="--buffer-size is 0"):
        next(translator.stream([], buffer_size=0))


def test_long_lines_are_cut_or_skipped(translator):
    long = " ".join(["bird"] * 40)
    told: list[str] = []
    cut, fine = translator.translate([long, "moon"], beam=1, warn=told.append, first_number=10, **OPTIONS)
    assert told == ["line 11 has 41 tokens, more than the 16 positions of the model; it was cut to 16."]
    assert not cut.is_skipped
    assert cut.ids
    assert fine.text == translator.translate(["moon"], beam=1, **OPTIONS)[0].text
    with pytest.warns(UserWarning, match="it was skipped"):
        skipped = translator.translate([long], beam=1, too_long="skip", **OPTIONS)[0]
    assert skipped.is_skipped
    assert skipped.text == ""
    with pytest.raises(ConfigError, match="must be truncate or skip"):
        translator.translate(["moon"], too_long="ignore")


def test_scores_of_pairs_are_those_of_the_search(translator):
    found = translator.translate(LINES, beam=3, **OPTIONS)
    pairs = [(line, translation.text) for line, translation in zip(LINES, found, strict=True) if line]
    for score, translation in zip(translator.score(pairs, batch_size=2), (item for item in found if item.ids), strict=True):
        assert score.ids == translation.ids
        assert score.tokens == [*translation.tokens, "</s>"]
        assert score.token_scores == pytest.approx(translation.token_scores, abs=1e-5)
        assert score.total == pytest.approx(sum(score.token_scores))
        assert score.mean == pytest.approx(translation.score, abs=1e-5)


def test_pairs_may_be_empty_or_too_long(translator):
    told: list[str] = []
    long = " ".join(["BIRD"] * 40)
    empty, cut = translator.score([("", ""), ("moon", long)], warn=told.append)
    assert empty.tokens == ["</s>"]
    assert len(cut.ids) == 16
    assert "line 2 has 41 tokens" in told[0]
    skipped = translator.score([("moon", long)], too_long="skip", warn=told.append)[0]
    assert skipped.total == -float("inf")
    assert translator.score([]) == []


def test_an_ensemble_is_named_by_a_list_or_by_colons(folder, path):
    other = str(folder / "2" / "checkpoint_last.pt")
    pair, colons = lamina.load([path, other], device="cpu"), lamina.load(f"{path}:{other}", device="cpu")
    assert len(pair.models) == len(colons.models) == 2
    assert texts(pair.translate(LINES, beam=2, **OPTIONS)) == texts(colons.translate(LINES, beam=2, **OPTIONS))
    single = [lamina.load(name, device="cpu").score([("a bird", "BIRD A")])[0] for name in (path, other)]
    mixed = pair.score([("a bird", "BIRD A")])[0]
    expected = [torch.tensor(scores).exp().mean().log().item()
                for scores in zip(*(score.token_scores for score in single), strict=True)]
    assert mixed.token_scores == pytest.approx(expected, abs=1e-5)


def test_an_ensemble_needs_one_dictionary(folder, path, tmp_path):
    checkpoint = load_checkpoint(path)
    source, target = checkpoint.dictionaries
    lines = target.splitlines()
    lines[0], lines[1] = lines[1], lines[0]
    stranger = tmp_path / "stranger.pt"
    save_checkpoint(stranger, replace(checkpoint, dictionaries=(source, "\n".join(lines) + "\n")))
    with pytest.raises(CheckpointError, match=r"stranger.pt has another target dictionary .* the same data folder"):
        lamina.load([path, stranger], device="cpu")
    with pytest.raises(CheckpointError, match="the list of paths is empty"):
        lamina.load([])
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        lamina.load(tmp_path / "absent.pt")


def test_overrides_reach_the_model_and_others_are_named(path):
    told: list[str] = []
    translator = lamina.load(path, device="cpu", overrides={"max-target-positions": 8, "data": "x"}, notice=told.append)
    assert translator.max_target_positions == 8
    assert told == ["the override data='x' has no effect: models have no such setting"]
    with pytest.raises(ConfigError, match=r"'dropot' is no setting of a model\. Did you mean --dropout"):
        lamina.load(path, device="cpu", overrides={"dropot": 0.5})


def test_half_precision(path):
    translator = lamina.load(path, device="cpu", dtype="bf16")
    assert next(translator.models[0].parameters()).dtype == torch.bfloat16
    assert len(translator.translate(LINES, beam=3, **OPTIONS)) == len(LINES)
    with pytest.raises(ConfigError, match="dtype is 'int8'; it must be one of fp32, fp16, bf16"):
        lamina.load(path, device="cpu", dtype="int8")


def test_pieces_are_joined_where_asked(translator):
    assert translator.join_target(["BI@@", "RD", "A"]) == "BI@@ RD A"
    assert translator.join_target(["BI@@", "RD", "A"], "@@ ") == "BIRD A"


def test_misuse_is_named(translator):
    with pytest.raises(ConfigError, match="sentences must be text, one or a list of them; there is a int"):
        translator.translate(["a bird", 7])
    with pytest.raises(ConfigError, match="beam and search were both given"):
        translator.translate(["a bird"], beam=2, search=SearchConfig())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        translator.translate(["a bird"], beam=1, **OPTIONS)


def test_models_that_write_compute_in_float16_on_a_gpu():
    assert writing_dtype(torch.device("cuda")) is torch.float16
    assert writing_dtype(torch.device("cpu")) is None


def test_a_model_without_numbers_is_noticed(path):
    translator = lamina.load(path, device="cpu")
    torch.nn.init.constant_(translator.models[0].head.table.weight, torch.nan)
    warnings = []
    found = translator.translate(["the boat", "", "a bird"], warn=warnings.append, **OPTIONS)
    assert texts(found) == ["", "", ""]
    (warning,) = warnings
    assert warning.startswith("2 of 2 sentences have no result")
    assert "--fp32" in warning


@pytest.mark.skipif(not has_onednn(), reason="no oneDNN kernels here")
def test_models_on_a_processor_are_packed(path):
    def kinds(**options):
        translator = lamina.load(path, device="cpu", **options)
        assert translator.translate(LINES, beam=2, **OPTIONS)[0].ids[-1] == 2
        return {type(part) for part in translator.models[0].modules() if hasattr(part, "out_features")}

    assert kinds() == {PrepackedLinear}
    assert kinds(quantize="int8") == {Int8Linear}
    assert kinds(dtype="bf16") == {Linear}


def test_what_cannot_be_quantized(path, monkeypatch):
    with pytest.raises(ConfigError, match="quantize is 'int4'; it must be int8"):
        lamina.load(path, device="cpu", quantize="int4")
    with pytest.raises(ConfigError, match="is for a CPU, with float32 between"):
        lamina.load(path, device="cpu", dtype="bf16", quantize="int8")
    monkeypatch.setattr("lamina.api.loading.has_onednn", lambda: False)
    with pytest.raises(ConfigError, match="needs an x86 CPU and a torch with oneDNN"):
        lamina.load(path, device="cpu", quantize="int8")
    assert lamina.load(path, device="cpu").translate(["a bird"], beam=2, **OPTIONS)
