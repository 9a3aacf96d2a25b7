"""Choices of layers, and the search over them."""

import itertools
import math

from lamina.nn.stack import ActiveLayers
from lamina.pruning.cut import Keep
from lamina.pruning.depth_curve import curve_stacks, depths_of, measure_curve
from lamina.pruning.layer_search import SEARCHED, search_layers
from lamina.pruning.subsets import EVENLY_SPACED, RULES, Scored, Subset, by_rule, descend, most_measurements, ranked

WHOLE = Subset((0, 1, 2), (0, 1, 2, 3))
LANGUAGE_MODEL = Subset((), (0, 1, 2, 3))


def test_a_subset_as_text_mask_and_list():
    subset = Subset((0, 2), (0, 1, 2, 3))
    assert str(subset) == "encoder 0,2; decoder 0,1,2,3"
    assert subset.active(WHOLE) == ActiveLayers((True, False, True), (True,) * 4)
    assert subset.keep(WHOLE) == Keep((0, 2), None)
    assert subset.without("decoder", 1) == Subset((0, 2), (0, 2, 3))
    assert str(Subset((), (1,))) == "decoder 1"


def test_simple_rules():
    whole = Subset(tuple(range(6)), tuple(range(4)))
    assert by_rule(EVENLY_SPACED, (3, 2), whole) == Subset((0, 2, 4), (0, 2))
    assert by_rule("first layers", (3, 2), whole) == Subset((0, 1, 2), (0, 1))
    assert by_rule("last layers", (3, 2), whole) == Subset((3, 4, 5), (2, 3))
    assert by_rule("last layers", (0, 2), LANGUAGE_MODEL) == Subset((), (2, 3))


def worth(subset):
    """Layers differ in worth, and two of them are only worth something together: greedy search misses that."""
    encoder = sum({0: 4, 1: 1, 2: 3}[layer] for layer in subset.encoder)
    decoder = sum({0: 1.0, 1: 2.0, 2: 2.0, 3: 2.5}[layer] for layer in subset.decoder)
    return encoder + decoder + (3 if {1, 2} <= set(subset.decoder) else 0) - (2 if {0, 1} <= set(subset.decoder) else 0)


def test_the_search_leaves_out_what_is_missed_least():
    for is_maximized in (True, False):
        measure = worth if is_maximized else lambda subset: -worth(subset)
        found = descend([WHOLE], (2, 2), measure, width=100, is_maximized=is_maximized)
        best = max((Subset(encoder, decoder) for encoder in itertools.combinations(range(3), 2)
                    for decoder in itertools.combinations(range(4), 2)), key=worth)
        assert found[0].subset == best == Subset((0, 2), (1, 2))
        assert abs(found[0].value) == worth(best)


def test_a_wider_beam_is_never_worse_here_and_each_choice_is_measured_once_a_level():
    measured = []
    values = []
    for width in (1, 2, 8):
        measured.clear()
        found = descend([WHOLE], (1, 1), lambda subset: measured.append(subset) or worth(subset), width=width,
                        is_maximized=True)
        values.append(found[0].value)
        assert len(measured) == len(set(measured)) <= most_measurements(WHOLE.depths, (1, 1), width)
    assert values == sorted(values)


def test_ranking_puts_what_is_no_number_last():
    items = [Scored(Subset((), (layer,)), value) for layer, value in enumerate((2.0, math.nan, 1.0, 1.0))]
    assert [item.subset.decoder[0] for item in ranked(items, is_maximized=False)] == [2, 3, 0, 1]
    assert [item.subset.decoder[0] for item in ranked(items, is_maximized=True)] == [0, 2, 3, 1]


def test_the_result_is_never_worse_than_a_simple_rule():
    # Greedily, layer 0 goes first (it hurts alone), though the first layers are best in the end.
    def tricky(subset):
        return {(0, 1, 2, 3): 0.0, (1, 2, 3): 5.0, (0, 1): 9.0}.get(subset.decoder, 1.0 if len(subset.decoder) == 3 else 2.0)

    found = search_layers(LANGUAGE_MODEL, (0, 2), tricky, width=1, is_maximized=True)
    assert found.best == "first layers"
    assert found.subset.decoder == (0, 1)
    assert set(found.choices) == {SEARCHED, *RULES}


def test_depths_of_a_curve():
    assert depths_of(WHOLE, "decoder") == [(3, 4), (3, 3), (3, 2), (3, 1)]
    assert depths_of(WHOLE, "encoder") == [(3, 4), (2, 4), (1, 4)]
    assert depths_of(WHOLE, "both") == [(3, 4), (3, 3), (2, 2), (1, 1)]
    assert curve_stacks(LANGUAGE_MODEL, "both", "m.pt") == "decoder"


def test_a_curve_has_every_way_at_every_depth():
    points = measure_curve(WHOLE, "both", worth, lambda subsets: [float(sum(subset.depths)) for subset in subsets], width=2,
                           is_maximized=True)
    assert len(points) == 4 * 4
    assert [point.tokens_per_second for point in points[::4]] == [7.0, 6.0, 4.0, 2.0]
    for number in range(0, 16, 4):
        at_depth = {point.choice: point for point in points[number : number + 4]}
        assert len({point.subset.depths for point in at_depth.values()}) == 1
        assert at_depth[SEARCHED].value == max(point.value for point in at_depth.values())
