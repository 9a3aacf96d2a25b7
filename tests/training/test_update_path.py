"""What happens in one update, and in one decoding step: the way through the code that docs/architecture.md writes down."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import lamina
from lamina.config.search_options import SearchConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.decode.search import Search
from lamina.parts.criteria import CrossEntropy
from lamina.text.vocabulary import EOS
from lamina.training.update import Updater
from tiny import batch_of, tiny_model

SOURCE = Path(lamina.__file__).parent
PAGE = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
# The model, and a rule's formula: what an update or a step applies, and not its way.
INSIDE = ("nn/", "models/", "data/", "packed.py", "parts/update_rules.py")


def section(title):
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def hops(title):
    """(file, function) by number, as the table of a section has them."""
    rows = re.findall(r"^\| \d+ \| `([\w.]+)` \| `([\w/.]+)` \|", section(title), flags=re.MULTILINE)
    return [(file, function) for function, file in rows]


def leaves(title):
    """Calls on the way whose names say all, as the sentence below the table has them."""
    return set(re.findall(r"`(\w+)`", section(title).partition("need not be opened:")[2].partition(".\n")[0]))


def called(work, start):
    """(file, function) in the order of the first calls, from `start` until it returns, the first time that it is called."""
    seen, whole = [], []

    def note(frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(str(SOURCE)) or "<" in code.co_name:
            return
        place = Path(code.co_filename).relative_to(SOURCE).as_posix(), code.co_name
        if event == "return" and place == start:
            whole.append(True)
        if event != "call" or whole or (place != start and not seen) or place in seen or place[0].startswith(INSIDE):
            return
        seen.append(place)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


def update():
    updater = Updater(tiny_model(), OptimizationConfig(criterion=CrossEntropy()), PrecisionConfig())
    updater.update([batch_of(slice(0, 8))], 0.1, seed=1)


def search():
    sources = [np.array([5, 6, 7, EOS]), np.array([8, EOS])]
    found = Search([tiny_model()], SearchConfig(beam=2, max_length_offset=3))
    assert len(dict(found.each(sources, num_slots=2, device=torch.device("cpu")))) == 2


@pytest.mark.parametrize(("title", "work", "start"), [
    ("One update", update, ("training/update.py", "Updater.update")),
    ("One decoding step", search, ("decode/beam_step.py", "BeamStep.step_")),
])
def test_the_way_is_the_one_that_the_page_shows_and_short(title, work, start):
    path = hops(title)
    assert path[0] == start
    assert len(path) - 1 <= 12, "hops from one function to the next"
    assert len({file for file, _ in path}) <= 6
    names = [(file, function.rpartition(".")[2]) for file, function in path]
    seen = called(work, names[0])
    assert [place for place in seen if place in names] == names, "in this order"
    others = {name for file, name in seen if (file, name) not in names}
    assert others <= leaves(title), "a call on the way that is on no list"


def test_the_functions_on_the_way_exist():
    for title in ("One update", "One decoding step"):
        for file, function in hops(title):
            module = importlib.import_module(f"lamina.{file.removesuffix('.py').replace('/', '.')}")
            owner, _, name = function.rpartition(".")
            assert hasattr(getattr(module, owner) if owner else module, name), function
