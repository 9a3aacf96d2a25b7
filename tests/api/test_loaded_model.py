"""What all loaded models can do: move, copies, pickles, pruning, saving, states; and several threads at once."""

import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import lamina
from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.errors import CheckpointError, ConfigError
from lamina.nn.linear import has_onednn
from lamina.nn.prepacked import is_prepacked
from tiny import TINY_FLAGS, make_data

LINES = ["the old boat sings", "a bird", "the small red bird reads near the river", "moon"]
OPTIONS = {"max_len_b": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaded")
    data = make_data(folder)
    flags = [str(data), *TINY_FLAGS, "--max-update", "12", "--encoder-layers", "3", "--decoder-layers", "3"]
    for name, own in (("plain", ["--encoder-layerdrop", "0.2", "--decoder-layerdrop", "0.2"]),
                      ("fused", ["--transparent-attention", "--surfacefusion", "att", "--sf-mode", "hard", "--sf-gate", "0",
                                 "--init-type", "admin"])):
        assert main(["train", *flags, *own, "--save-dir", str(folder / name)]) == 0
    return folder


@pytest.fixture(scope="module")
def path(folder):
    return folder / "plain" / "checkpoint_last.pt"


@pytest.fixture
def model(path):
    return lamina.load(path, device="cpu", task="translation")


def texts(model):
    return [found.text for found in model.translate(LINES, beam=2, **OPTIONS)]


COPIES = {"pickle": lambda model: pickle.loads(pickle.dumps(model)), "deepcopy": copy.deepcopy,
          "to": lambda model: copy.deepcopy(model).to("cpu")}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("options", [{}, {"prepack": False}, {"quantize": "int8"}], ids=str)
def test_copies_translate_the_same(path, how, options):
    if options.get("quantize") and not has_onednn():
        pytest.skip("no oneDNN kernels here")
    model = lamina.load(path, device="cpu", **options)
    assert is_prepacked(model.models[0]) == (has_onednn() and options.get("prepack", True))
    other = COPIES[how](model)
    assert texts(other) == texts(model)
    assert is_prepacked(other.models[0]) == is_prepacked(model.models[0])


def test_back_in_float32_the_weights_are_the_stored_ones(path, model):
    half = lamina.load(path, device="cpu", dtype="bf16")
    assert half.to(dtype="fp32") is half
    assert texts(half) == texts(model)
    assert all(torch.equal(half.state_dict()[name], weight) for name, weight in model.state_dict().items())


def test_a_pickle_works_in_another_process(model, tmp_path):
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    code = f"import pickle; print(pickle.load(open({str(tmp_path / 'model.pkl')!r}, 'rb')).translate('a bird').text)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == model.translate("a bird").text


def test_state_dict_has_the_weights_of_the_checkpoint(model, path):
    stored, own = load_checkpoint(path).weights, model.state_dict()
    assert all(torch.equal(own[name], weight) for name, weight in stored.items())
    assert isinstance(torch.nn.functional.normalize(next(iter(own.values()))), torch.Tensor)


def test_repr_says_what_it_is(model, path):
    assert repr(model).startswith("Translator(en -> xx, 3 encoder layers, 3 decoder layers, ")
    assert repr(model).endswith(f"k parameters, float32 on cpu{', prepacked' if has_onednn() else ''})")
    pair = lamina.load([path, path], device="cpu", dtype="bfloat16")
    assert "2 models" in repr(pair)
    assert "bfloat16 on cpu" in repr(pair)
    with pytest.raises(ConfigError, match=r"state_dict\(\) is for one model, and this is an ensemble of 2"):
        pair.state_dict()


def test_one_text_or_several(model):
    one = model("a bird", beam=2, **OPTIONS)
    assert one == model.translate(["a bird"], beam=2, **OPTIONS)[0]
    phrase = one.tokens[0]
    assert phrase in model.translate("a bird", constraints=[phrase], **OPTIONS).tokens
    assert model.score(("a bird", "BIRD A")).ids == model.score([("a bird", "BIRD A")])[0].ids


@pytest.mark.parametrize("name", ["float32", "torch.float32", "float", "fp32", torch.float32])
def test_precisions_have_several_names(path, name):
    assert lamina.load(path, device="cpu", dtype=name).dtype == torch.float32


def test_devices_and_precisions_that_are_not_there_are_named(path, model):
    with pytest.raises(ConfigError, match="device is 'gpu'; it must be cpu, cuda, or a GPU by number"):
        lamina.load(path, device="gpu")
    with pytest.raises(ConfigError, match="must be a floating point type"):
        lamina.load(path, device="cpu", dtype=torch.int8)
    with pytest.raises(ConfigError, match=r"dtype is 'bfloat32'; it must be one of fp32, .* float32, float16"):
        model.to(dtype="bfloat32")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match=r"device is cuda, but this torch (sees no GPU|was built without CUDA)"):
            lamina.load(path, device="cuda")
        with pytest.raises(ConfigError, match="device is cuda:1, but this torch"):
            model.to("cuda:1")
    with pytest.raises(CheckpointError, match="is of --task translation, not masked_lm"):
        lamina.load(path, device="cpu", task="masked_lm")


def test_pruning_in_python_is_pruning_on_the_command_line(model, path, tmp_path):
    small = model.prune(encoder=2, decoder=[0, 2])
    flags = ["--encoder-layers-to-keep", "even:2", "--decoder-layers-to-keep", "0,2", "--output", str(tmp_path / "cli.pt")]
    assert main(["prune", str(path), *flags]) == 0
    assert small.save(tmp_path / "small.pt") == tmp_path / "small.pt"
    ours, theirs = load_checkpoint(tmp_path / "small.pt"), load_checkpoint(tmp_path / "cli.pt")
    assert ours.config == theirs.config
    assert ours.training == theirs.training
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(torch.equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)
    assert texts(lamina.load(tmp_path / "small.pt", device="cpu")) == texts(small)
    assert "3 encoder layers, 3 decoder" in repr(model)
    with pytest.raises(ConfigError, match="which layers are to stay"):
        model.prune()
    with pytest.raises(ConfigError, match="asks for 9 layers"):
        model.prune(encoder=9)


def test_pruning_a_model_that_never_dropped_layers_warns_and_keeps_its_techniques(folder):
    fused = lamina.load(folder / "fused" / "checkpoint_last.pt", device="cpu", task="translation")
    with pytest.warns(UserWarning, match="was trained without --decoder-layerdrop"):
        small = fused.prune(decoder=2)
    assert small.fusion_weights().shares.shape[0] == 2
    assert "2 decoder layers" in repr(small)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_saving_writes_the_stored_weights_whatever_it_computes_in(path, tmp_path, dtype):
    lamina.load(path, device="cpu", dtype=dtype).save(tmp_path / "copy.pt")
    stored, copied = (load_checkpoint(file).weights for file in (path, tmp_path / "copy.pt"))
    assert stored.keys() == copied.keys()
    assert all(torch.equal(weight, stored[name]) for name, weight in copied.items())


def test_saving_writes_what_was_changed_since(path, tmp_path):
    model = lamina.load(path, device="cpu", dtype="bf16")
    with torch.no_grad():
        model.models[0].head.table.weight += 1
    model.save(tmp_path / "changed.pt")
    name = next(name for name, weight in model.models[0].named_parameters() if weight is model.models[0].head.table.weight)
    assert torch.equal(load_checkpoint(tmp_path / "changed.pt").weights[name], model.models[0].head.table.weight.float())


@pytest.mark.skipif(not has_onednn(), reason="no oneDNN kernels here")
def test_what_is_rounded_to_8_bits_is_not_saved(path, tmp_path):
    with pytest.raises(CheckpointError, match=r"rounded to 8 bits\. Load it without quantize"):
        lamina.load(path, device="cpu", quantize="int8").save(tmp_path / "model.pt")


@pytest.mark.parametrize("name", ["plain", "fused"])
def test_states_are_those_of_the_models_own_pass(folder, name):
    model = lamina.load(folder / name / "checkpoint_last.pt", device="cpu", task="translation", prepack=False)
    states = model.encode(LINES, layers="all", batch_size=2)
    assert len(states.layers) == 4
    assert states.mask.sum(dim=1).tolist() == [len(own) for own in states.tokens] == [5, 3, 9, 2]
    for number, line in enumerate(LINES):
        ids = torch.from_numpy(model.encode_source(line))[None]
        output = model.models[0].encode(ids).output
        # float32, padded rows
        torch.testing.assert_close(states.final[number][states.mask[number]], output.final[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(states.layers[0][number][states.mask[number]],
                                   model.models[0].source_embedding(ids, model.models[0].encode(ids).layout).input[0])
    for place, layer in enumerate((1, 3)):
        torch.testing.assert_close(model.encode(LINES, layers=[1, -1]).layers[place], states.layers[layer])
    assert model.encode("a bird").layers == ()
    with pytest.raises(ConfigError, match="numbers from 0, the stack's input, to 3"):
        model.encode("a bird", layers=4)


def test_attention_of_any_layer(folder):
    model = lamina.load(folder / "fused" / "checkpoint_last.pt", device="cpu", task="translation")
    whole = model.attention("the old boat", "BOAT OLD THE", layer="all")
    assert whole.weights.shape == (3, 4, 4)
    assert (whole.source, whole.target) == (["the", "old", "boat", "</s>"], ["BOAT", "OLD", "THE", "</s>"])
    torch.testing.assert_close(whole.weights.sum(dim=-1), torch.ones(3, 4))
    torch.testing.assert_close(model.attention("the old boat", "BOAT OLD THE", layer=1).weights, whole.weights[1])
    assert model.attention("the old boat", "BOAT OLD THE", layer="surface").weights.shape == (4, 4)
    found = model.translate("the old boat", beam=1, with_alignment=True)
    assert model.attention("the old boat").target[:-1] == found.tokens
    with pytest.raises(ConfigError, match="the decoder has 3 layers"):
        model.attention("the old boat", layer=3)


def test_fusion_weights_and_gates(folder, model):
    fused = lamina.load(folder / "fused" / "checkpoint_last.pt", device="cpu", task="translation")
    np.testing.assert_allclose(fused.fusion_weights().shares.sum(axis=1), 1.0, rtol=1e-5)
    gates = fused.gates([("a bird", "BIRD A"), ("the old boat", "BOAT")], batch_size=1)
    assert len(gates.values) == len(gates.tokens) == 5
    assert ((gates.values > 0) & (gates.values < 1)).all()
    assert model.fusion_weights() is None
    with pytest.raises(ConfigError, match="has no gate"):
        model.gates([("a bird", "BIRD A")])
    with pytest.raises(ConfigError, match="softmax of this model does not attend"):
        model.attention("a bird", layer="surface")


@pytest.mark.parametrize("options", [{}, {"sampling": True, "seed": 3}, {"min_len": 4}, {"no_repeat_ngram_size": 2}], ids=str)
def test_streamed_tokens_are_the_greedy_translation(model, options):
    for line in [*LINES, ""]:
        pieces = list(model.stream_tokens(line, **options, **OPTIONS))
        assert "".join(pieces) == model.translate([line], beam=1, **options, **OPTIONS)[0].text
    assert len(list(model.stream_tokens(LINES[2], min_len=5, **OPTIONS))) > 2
    with pytest.raises(ConfigError, match="unknown option 'beem'"):
        next(model.stream_tokens("a bird", beem=2))


def test_threads_translate_at_once_with_the_same_results(model):
    def work(number):
        line = LINES[number % len(LINES)]
        match number % 4:
            case 0:
                return model.translate(line, beam=2, **OPTIONS).text
            case 1:
                return model.translate(line, beam=2, with_alignment=True, **OPTIONS).alignment
            case 2:
                return model.encode(line, layers="all").layers[2].sum().item()
            case _:
                return "".join(model.stream_tokens(line, **OPTIONS))

    expected = [work(number) for number in range(16)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(16))) == expected


@pytest.mark.parametrize(("call", "message"), [
    (lambda model: model.translate(None), "sentences is a NoneType; it must be text, one or a list of them."),
    (lambda model: model.translate(["a", 1]), "sentences must be text, one or a list of them; there is a int among them."),
    (lambda model: next(model.stream("the old boat")), "sentences is a str; it must be something that gives texts"),
    (lambda model: next(model.stream_tokens(["a bird"])), "sentence is a list; it must be one text, as a string."),
    (lambda model: next(model.stream_tokens("a bird", beam=5)), "tokens are streamed from one hypothesis: beam and nbest"),
    (lambda model: model.encode([]), "there is no text to encode: the list is empty."),
    (lambda model: model.attention(["a bird"]), "source is a list; it must be one text, as a string."),
    (lambda model: model.attention("a bird", layer="top"), "layer is 'top'; the decoder has 3 layers, 0 to 2."),
    (lambda model: model.score(["a bird", "BIRD A"]), "pairs has 'a bird'; expected a source and its translation as a tuple"),
    (lambda model: model.score(7), "pairs has 7; expected a source and its translation"),
    (lambda model: model.translate("a bird", do_sample=True), "unknown option 'do-sample'. Did you mean --sampling?"),
    (lambda model: model.translate("a bird", num_beams=5), "unknown option 'num-beams'. Did you mean --beam?"),
    (lambda model: model.translate("a bird", top_p=0.5), "unknown option 'top-p'. Did you mean --sampling-topp?"),
    (lambda model: model.translate("a bird", max_new_tokens=5), "unknown option 'max-new-tokens'. Did you mean --max-len-b?"),
])
def test_mistakes_are_told_in_one_line(model, call, message):
    with pytest.raises(ConfigError) as found:
        call(model)
    assert message in str(found.value)


def test_a_precision_may_stand_where_torch_takes_it(model):
    assert model.to(torch.bfloat16).dtype == torch.bfloat16
    assert model.to("float32").dtype == torch.float32


def test_one_pair_has_gates_of_its_own(folder):
    fused = lamina.load(folder / "fused" / "checkpoint_last.pt", device="cpu", task="translation")
    np.testing.assert_array_equal(fused.gates(("a bird", "BIRD A")).values, fused.gates([("a bird", "BIRD A")]).values)


def test_perplexity_of_a_score(model):
    score = model.score(("a bird", "BIRD A"))
    assert score.perplexity == pytest.approx(float(np.exp(-np.mean(score.token_scores))))


def test_warnings_are_about_the_line_that_called(folder):
    fused = lamina.load(folder / "fused" / "checkpoint_last.pt", device="cpu", task="translation")
    with pytest.warns(UserWarning, match="without --decoder-layerdrop") as found:
        fused.prune(decoder=2)
    assert {warning.filename for warning in found} == {__file__}
