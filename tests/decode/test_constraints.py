"""decode/constraints.py: translations contain their phrases, where the model likes them best."""

import io
import itertools
import random
import sys

import pytest
import torch

import lamina
from lamina.cli import main
from lamina.config.search_options import SearchConfig
from lamina.decode.constraints import Constraints, Phrases, constrained
from lamina.decode.search import Search
from lamina.errors import ConfigError, DataError
from lamina.models.build import build_model
from tiny import TINY_FLAGS, make_data, pad, tiny_config

A, B, C, D = range(4, 8)
SIZE = 8  # of the vocabulary: these four and the special symbols
SAYABLE = [0, 3, A, B, C, D]
ORDERS = ("ordered", "unordered")
CASES = {
    "one token": [[A]],
    "two phrases": [[A, B], [C]],
    "against the order": [[C], [A, B]],
    "repeated": [[A], [A]],
    "a prefix of another": [[A], [A, B]],
    "a prefix of another, later": [[A, B], [A]],
    "a shared prefix": [[A, B], [A, C]],
    "a phrase that begins within itself": [[A, A, B]],
    "overlapping": [[A, B], [B, A]],
    "as long as the limit": [[A, B], [C, A, B]],
}


def small_model(seed=0):
    torch.manual_seed(seed)
    model = build_model(tiny_config(num_layers=1, share_all=False), SIZE, SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.eval()


def holds(ids, phrases, order):
    """By trying every way to place them."""
    orders = [phrases] if order == "ordered" else itertools.permutations(phrases)
    return any(_holds_in_order(list(ids), list(map(list, one))) for one in orders)


def _holds_in_order(ids, phrases):
    if not phrases:
        return True
    size = len(phrases[0])
    return any(ids[start : start + size] == phrases[0] and _holds_in_order(ids[start + size :], phrases[1:])
               for start in range(len(ids) - size + 1))


def run(models, source, constraints, **options):
    models = models if isinstance(models, list) else [models]
    prefix = options.pop("prefix", None)
    return Search(models, SearchConfig(**options)).run(source, prefix, constraints=constraints)


def found_ids(found):
    return [[hypothesis.ids for hypothesis in row] for row in found]


# -- the automaton

@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("phrases", [*CASES.values(), [[A], [A, B], [B]], [[A, B, A], [A], [B, A]], [[A, A], [A], [A, A, A]]])
def test_every_way_to_place_the_phrases_counts(phrases, order):
    automaton = Phrases(phrases, is_ordered=order == "ordered")
    for length in range(8):
        for ids in itertools.product([A, B, C] if length < 6 else [A, B], repeat=length):
            moves = automaton.moves(automaton.read(ids))
            assert moves.is_complete == holds(ids, phrases, order), ids


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_missing_is_the_fewest_tokens_that_complete_it(order):
    phrases = [[A, B, A], [A], [B, A]]
    automaton = Phrases(phrases, is_ordered=order == "ordered")
    for ids in itertools.product([A, B], repeat=4):
        missing = next(number for number in range(7) if any(
            holds((*ids, *more), phrases, order) for more in itertools.product([A, B], repeat=number)))
        assert automaton.num_tokens - automaton.moves(automaton.read(ids)).num_met == missing


def test_a_phrase_that_breaks_off_falls_back_to_what_still_matches():
    automaton = Phrases([[A, A, B]], is_ordered=True)
    assert [automaton.moves(automaton.read([A] * number)).num_met for number in range(4)] == [0, 1, 2, 2]
    assert automaton.moves(automaton.read([A, A, A, B])).is_complete
    assert automaton.moves(automaton.read([A, A, C])).num_met == 0


@pytest.mark.parametrize("phrase", [[], [A, 2], [3], [1, A]])
def test_a_phrase_is_made_of_words(phrase):
    with pytest.raises(DataError, match="empty or holds a special symbol"):
        Phrases([phrase], is_ordered=True)


# -- the search

MAX_LENGTH = 5


@pytest.fixture(scope="module", params=range(3))
def everything(request):
    """A model, a source, and the score of every translation of up to five tokens."""
    model = small_model(request.param)
    generator = torch.Generator().manual_seed(request.param)
    source = torch.cat([torch.randint(4, SIZE, (1, 4), generator=generator), torch.tensor([[2]])], dim=1)
    scores = {}
    with torch.no_grad():
        for length in range(1, MAX_LENGTH + 1):
            rows = torch.tensor(list(itertools.product(SAYABLE, repeat=length)))
            ends = torch.full((len(rows), 1), 2)
            log_probs = model.log_probs(source.expand(len(rows), -1), torch.cat([ends, rows], dim=1))
            targets = torch.cat([rows, ends], dim=1)
            means = log_probs.gather(2, targets[:, :, None])[:, :, 0].mean(dim=1)
            scores.update(zip(map(tuple, targets.tolist()), means.tolist(), strict=True))
    return model, source, scores


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("phrases", CASES.values(), ids=CASES.keys())
def test_a_wide_beam_finds_the_best_of_all(everything, phrases, order):
    model, source, scores = everything
    expected = sorted(((score, ids) for ids, score in scores.items() if holds(ids[:-1], phrases, order)), reverse=True)
    found = run(model, source, [phrases], beam=400, nbest=4, max_length_offset=MAX_LENGTH, constraint_order=order)[0]
    assert found[0].ids == list(expected[0][1])
    assert [one.score for one in found] == pytest.approx([score for score, _ in expected[: len(found)]], abs=1e-5)


def mixed(seed, number=6):
    """Sources of different lengths, and for each none to three phrases."""
    draw = random.Random(seed)
    rows = [torch.tensor([*draw.choices(range(4, SIZE), k=draw.randint(2, 6)), 2]) for _ in range(number)]
    phrases = [[draw.choices(range(4, SIZE), k=draw.randint(1, 3)) for _ in range(draw.randint(0, 3))] for _ in rows]
    phrases[seed % number] = []
    return rows, torch.cat([pad(row[None], right=7 - len(row)) for row in rows]), phrases


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram": 2}, {"max_length_offset": 3}, {"min_length": 8},
                                     {"max_length_factor": 0.5, "max_length_offset": 2}, {"length_penalty": 0.0}],
                         ids=lambda options: " ".join(options) or "plain")
def test_all_hypotheses_hold_all_phrases(order, options):
    for seed in range(4):
        model = small_model(seed)
        for beam in (1, 2, 5, 9):
            _, source, phrases = mixed(10 * seed + beam)
            config = {"max_length_offset": 12, **options, "beam": beam, "nbest": beam, "constraint_order": order}
            found = run(model, source, phrases, **config)
            for own, hypotheses in zip(phrases, found, strict=True):
                assert hypotheses
                assert len({tuple(hypothesis.ids) for hypothesis in hypotheses}) == len(hypotheses)
                for hypothesis in hypotheses:
                    assert hypothesis.ids[-1] == 2
                    assert hypothesis.score > -torch.inf
                    assert holds(hypothesis.ids[:-1], own, order), (own, hypothesis.ids)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("beam", [1, 4])
def test_results_do_not_depend_on_the_batch(order, beam):
    model = small_model(7)
    rows, source, phrases = mixed(3)
    options = {"beam": beam, "nbest": beam, "max_length_offset": 12, "constraint_order": order}
    together = run(model, source, phrases, **options)
    for row, own, found in zip(rows, phrases, together, strict=True):
        alone = run(model, row[None], [own] if own else None, **options)[0]
        assert found_ids([found]) == found_ids([alone])
        assert [one.score for one in found] == pytest.approx([one.score for one in alone], abs=1e-4)


def test_no_phrases_are_an_ordinary_search():
    model = small_model(1)
    _, source, phrases = mixed(1)
    options = {"beam": 4, "nbest": 4, "max_length_offset": 12}
    ordinary = found_ids(run(model, source, None, **options))
    assert found_ids(run(model, source, [[] for _ in phrases], **options)) == ordinary
    assert found_ids(run(model, source, None, **options, constraint_order="unordered")) == ordinary


def test_phrases_that_come_by_themselves_change_little():
    """What the model says anyway, asked for: the best is not lost."""
    model = small_model(2)
    _, source, _ = mixed(2)
    options = {"beam": 8, "max_length_offset": 8}
    ordinary = run(model, source, None, **options)
    asked = run(model, source, [[found[0].ids[:2]] if min(found[0].ids[:2]) >= A else []
                                  for found in ordinary], **options)
    for one, other in zip(asked, ordinary, strict=True):
        assert one[0].score >= other[0].score - 0.1


def test_an_ensemble_of_a_model_with_itself_is_the_model():
    model = small_model(4)
    _, source, phrases = mixed(4)
    options = {"beam": 4, "nbest": 4, "max_length_offset": 12}
    assert found_ids(run([model, model], source, phrases, **options)) == found_ids(run(model, source, phrases, **options))


def test_an_ensemble_keeps_its_phrases():
    _, source, phrases = mixed(5)
    for own, found in zip(phrases, run([small_model(1), small_model(2)], source, phrases, beam=4, nbest=4), strict=True):
        assert all(holds(hypothesis.ids, own, "ordered") for hypothesis in found)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("limit", [2, 5, 12])
def test_a_prefix_counts_and_leaves_room(order, limit):
    model = small_model(6)
    _, source, phrases = mixed(6)
    phrases[1] = [[A, B], [C, D]]
    prefix = torch.tensor([[C, A], [A, B], [D, 1], [1, 1], [A, A], [B, 1]])
    found = run(model, source, phrases, prefix=prefix, beam=3, nbest=3, max_length_offset=limit, constraint_order=order)
    for own, begun, hypotheses in zip(phrases, prefix.tolist(), found, strict=True):
        begun = [token for token in begun if token != 1]
        for hypothesis in hypotheses:
            assert hypothesis.ids[: len(begun)] == begun
            assert holds(hypothesis.ids[:-1], own, order)
    assert all(len(hypothesis.ids) <= max(limit, 4) + 1 for hypothesis in found[1])


def test_a_prefix_that_ends_too_soon_is_refused():
    _, source, _ = mixed(0)
    with pytest.raises(DataError, match="lacks its constraints"):
        run(small_model(), source[:1], [[[C]]], prefix=torch.tensor([[A, 2]]))
    assert run(small_model(), source[:1], [[[A]]], prefix=torch.tensor([[A, 2]]))[0][0].ids == [A, 2]


def test_a_limit_gives_way_but_the_models_positions_do_not():
    model = small_model()
    _, source, _ = mixed(0)
    found = run(model, source[:2], [[[A, B, C], [D, D]], [[A]]], beam=3, nbest=3, max_length_offset=2)
    assert {tuple(hypothesis.ids) for hypothesis in found[0]} == {(A, B, C, D, D, 2)}
    assert all(len(hypothesis.ids) <= 3 for hypothesis in found[1])
    with pytest.raises(DataError, match=r"64 tokens and need a translation of 64, but the model's positions end at 63"):
        run(model, source[:1], [[[A] * 64]])


@pytest.mark.parametrize(("options", "why"), [
    ({"sampling": True}, "draws are not compared"), ({"diverse_beam_groups": 5}, "both say how to share out the beam"),
    ({"match_source_length": True}, "may need more room than the source has")])
def test_contradictions_are_refused(options, why):
    with pytest.raises(ConfigError, match=why):
        SearchConfig(constraint_order="ordered", **options)
    _, source, _ = mixed(0)
    with pytest.raises(ConfigError, match=why):
        run(small_model(), source[:1], [[[A]]], **options)


@pytest.mark.parametrize(("end", "expected"), [(-0.5, [C, A]), (-0.05, [A, C])])
def test_phrases_wait_until_the_model_wants_to_end(end, expected):
    """With one beam and two banks: before that the likelier token comes first, from then on the phrase."""
    constraints = Constraints(num_beams=1)
    constraints.put_(0, constrained([[A, B]], [], 10, num_beams=1, is_ordered=True, max_length=20))
    log_probs = torch.tensor([[[-9.0, -torch.inf, end, -9.0, -5.0, -6.0, -0.1, -4.0]]])
    constraints.restrict_(log_probs)
    assert log_probs[0, 0, 2] == -torch.inf
    assert constraints.candidates(log_probs, torch.zeros(1, 1)).tokens.tolist() == [expected]


def test_slots_go_round_the_banks():
    constraints = Constraints(num_beams=3)
    constraints.put_(0, constrained([[A, B]], [], 10, num_beams=3, is_ordered=True, max_length=20))
    log_probs = torch.tensor([-9.0, -torch.inf, -8.0, -7.0, -5.0, -6.0, -0.1, -4.0]).repeat(2, 3, 1)
    scores = torch.tensor([[0.0, -torch.inf, -torch.inf]]).repeat(2, 1)
    first = constraints.candidates(log_probs, scores)
    assert first.tokens.tolist() == [[C, A, D, B, 3, 2], [C, D, A, B, 3, 2]]  # a sentence without phrases goes by score


# -- from Python and from the command line

@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("constraints")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--max-update", "12", "--save-dir", str(folder / "out"),
                 "--max-target-positions", "32"]) == 0
    return str(folder / "out" / "checkpoint_last.pt")


@pytest.fixture(scope="module")
def translator(path):
    return lamina.load(path, device="cpu")


LINES = ["the old boat", "a bird", "", "the small moon"]
PHRASES = [["BOAT OLD", "THE"], [], ["MOON"], ["THE", "BOAT OLD", "RED"]]


def words_hold(text, phrases, order):
    return holds(text.split(), [phrase.split() for phrase in phrases], order)


@pytest.mark.parametrize("order", [None, *ORDERS])
def test_translations_hold_their_phrases(translator, order):
    options = {"beam": 4, "nbest": 3, "max_len_b": 10, "constraint_order": order}
    found = translator.translate(LINES, constraints=PHRASES, **options)
    for one, phrases in zip(found, PHRASES, strict=True):
        for translation in (one, *one.alternatives):
            assert words_hold(translation.text, phrases, order or "ordered")
    assert found[1].text == translator.translate(LINES[1:2], beam=4, max_len_b=10)[0].text
    streamed = translator.stream(iter(LINES), constraints=iter(PHRASES), buffer_size=3, **options)
    assert [one.text for one in streamed] == [one.text for one in found]


@pytest.mark.parametrize(("constraints", "kind", "message"), [
    ([["BOAT"], ["A", "SOMETHING ELSE BIRD"]], DataError, "line 12, constraint 'SOMETHING ELSE BIRD': the target dictionary "
                                                          "has no 'SOMETHING', 'ELSE', so"),
    ([["BOAT"], [" "]], DataError, "line 12, constraint ' ': there is nothing in it"),
    ([["BOAT"]], ConfigError, "2 sentences, but 1 lists of constraints"),
    (["BOAT", "A"], ConfigError, "a string where a list of phrases belongs"),
    ([["BOAT " * 40], []], DataError, "the model's positions end at 31"),
])
def test_phrases_that_cannot_be_said_are_named(translator, constraints, kind, message):
    with pytest.raises(kind, match=message):
        translator.translate(["the boat", "a bird"], constraints=constraints, beam=2, first_number=10)


def interactive(monkeypatch, capsys, path, lines, *flags):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
    code = main(["interactive", "--path", path, "--cpu", "--max-len-b", "10", *flags])
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


@pytest.mark.parametrize(("flags", "order"), [(["--constraints"], "ordered"), (["--constraints", "unordered"], "unordered")])
def test_interactive_reads_phrases_after_tabs(path, capsys, monkeypatch, flags, order):
    lines = ["\t".join([line, *phrases]) for line, phrases in zip(LINES, PHRASES, strict=True)]
    code, out, _ = interactive(monkeypatch, capsys, path, [*lines, "moon\t"], "--buffer-size", "2", *flags)
    assert code == 0
    assert [line.split("\t")[0] for line in out[:6]] == ["S-0", "C-0", "C-0", "H-0", "D-0", "P-0"]
    assert out[:3] == ["S-0\tthe old boat", "C-0\tBOAT OLD", "C-0\tTHE"]
    texts = [line.split("\t")[2] for line in out if line.startswith("D-")]
    assert len(texts) == 5
    for text, phrases in zip(texts, PHRASES, strict=False):
        assert words_hold(text, phrases, order)


def test_errors_of_the_commands(path, capsys, monkeypatch):
    code, out, err = interactive(monkeypatch, capsys, path, ["moon\tMOON", "bird\tNOSUCH"], "--constraints")
    assert code == 0
    assert "line 2, constraint 'NOSUCH' is left out" in err
    assert not any(line.startswith("C-1") for line in out)
    assert interactive(monkeypatch, capsys, path, [], "--constraints", "--sampling")[0] == 2
    assert main(["generate", "data", "--path", path, "--constraints"]) == 2
    assert "Use `lamina interactive`" in capsys.readouterr().err
