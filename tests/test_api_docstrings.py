"""The reference: every public name says what it takes and gives, and its example runs."""

import doctest
import inspect
import re

import pytest

import lamina
from lamina.cli import main
from tiny import TINY_FLAGS, make_data

CLASSES = (lamina.Translator, lamina.LanguageModel, lamina.MaskedLanguageModel, lamina.Data)
FUNCTIONS = ("load", "prepare", "save", "train", "Event")


def methods(cls):
    """Public methods and properties with what they are, those that a class of ours hands down included."""
    found = {}
    for base in reversed([base for base in cls.__mro__ if base.__module__.startswith("lamina.")]):
        found |= {name: value for name, value in vars(base).items() if not name.startswith("_")
                  and (inspect.isfunction(value) or isinstance(value, property))}
    return found


# What others call as well: the inside of the commands, and parts of data that its class shows.
INSIDE = {"describe", "prepack", "join_target", "phrase_problem", "translation", "open", "languages", "vocabularies",
          "subwords", "splits"}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docstrings")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--max-update", "2", "--save-dir", str(folder)]) == 0
    text = folder / "text" / "train.en"
    assert main(["preprocess", "--only-source", "--trainpref", str(text), "--validpref", str(text), "--destdir",
                 str(folder / "lm"), "--workers", "1"]) == 0
    assert main(["train", str(folder / "lm"), "--task", "language_modeling", "--arch", "tiny_lm",
                 "--decoder-layers", "1", "--max-tokens", "64", "--tokens-per-sample", "32", "--max-update", "2", "--save-dir",
                 str(folder / "lm-run")]) == 0
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    from lamina.api.masked_model import MaskedLanguageModel
    from lamina.text.subword import Whitespace
    from lamina.text.vocabulary import Vocabulary
    from tiny import WORDS, tiny_masked_model

    words = Vocabulary.build(dict.fromkeys([*WORDS, "<mask>"], 1), padding_factor=1)
    model = tiny_masked_model(num_classes=2)
    symbols = [*words.symbols, *(f"filler{number}" for number in range(40))][:40]
    fitting = Vocabulary.from_text("".join(f"{symbol} 1\n" for symbol in symbols[4:]), "a test")
    labels = Vocabulary.from_text("good 1\nbad 1\n", "a test")
    return MaskedLanguageModel([model], (fitting, labels), (Whitespace(), Whitespace()), device="cpu")


def check(name, value, namespace):
    text = inspect.getdoc(value)
    assert text, f"{name} has no docstring"
    described = re.findall(r"^    (\w[\w, ]*): ", text.partition("Arguments:\n")[2].partition("\n\n")[0], flags=re.MULTILINE)
    if inspect.isfunction(value):  # each argument by itself, or the reference has no type and no default for it
        assert set(described) <= {*inspect.signature(value).parameters}, name
    examples = doctest.DocTestParser().get_doctest(text, namespace, name, None, 0)
    assert examples.examples, f"{name} has no example"
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL, verbose=False)
    said = []
    assert runner.run(examples, out=said.append).failed == 0, "".join(said)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_examples_of_methods_run(cls, places, classifier, monkeypatch):
    import torch

    monkeypatch.chdir(places)
    if cls is lamina.Translator:
        model = lamina.load("checkpoint_best.pt", device="cpu")
    elif cls is lamina.LanguageModel:
        model = lamina.load("lm-run/checkpoint_last.pt", device="cpu")
    else:
        model = classifier
    namespace = {"lamina": lamina, "torch": torch, "model": model, "data": lamina.Data("data")}
    assert cls.__doc__
    for name, value in methods(cls).items():
        own = vars(cls).get(name)
        if name in INSIDE or (own is None and cls is not lamina.Translator):  # what is handed down is tried once
            continue
        check(f"{cls.__name__}.{name}", value, namespace)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_examples_of_functions_run(name, places, monkeypatch):
    monkeypatch.chdir(places)
    check(name, getattr(lamina, name), {"lamina": lamina, "data": lamina.Data("data"),
                                        "model": lamina.load("checkpoint_best.pt", device="cpu")})


def test_everything_public_has_a_docstring():
    for name in lamina.__all__:
        assert name.startswith("__") or inspect.getdoc(getattr(lamina, name)), name


@pytest.mark.parametrize("name", [name for name in lamina.__all__ if not name.startswith("__")])
def test_nothing_public_is_any(name):
    value = getattr(lamina, name)
    if not getattr(value, "__module__", "").startswith("lamina.api"):
        return
    values = [(name, value)] if inspect.isfunction(value) else [
        (f"{name}.{key}", own.fget if isinstance(own, property) else own) for key, own in methods(value).items()
    ] if isinstance(value, type) else []
    for where, function in values:
        for parameter, kind in inspect.get_annotations(function).items():
            assert "Any" not in str(kind).replace("AnyBatch", "").replace("AnyModel", ""), (where, parameter)


def test_a_directory_of_the_package_lists_what_it_offers():
    assert {"load", "prepare", "save", "Translator", "register"} <= set(dir(lamina))


def test_option_types_are_up_to_date():
    import write_option_types

    assert write_option_types.PATH.read_text(encoding="utf-8") == write_option_types.text(), "run `make docs`"
