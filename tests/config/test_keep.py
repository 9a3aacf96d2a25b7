"""What people write for the layers to keep, and what it means at a depth."""

import pytest

from lamina.config.keep import KeepConfig, as_text, kept_layers, record_text, spread, was_kept
from lamina.errors import ConfigError


@pytest.mark.parametrize(("text", "depth", "layers"), [
    ("0,2,4", 6, (0, 2, 4)),
    ("4,0,2", 6, (0, 2, 4)),  # ascending whatever the order
    (" 0, 2 ", 6, (0, 2)),
    ("3", 6, (3,)),  # fairseq's meaning
    ("0", 6, (0,)),
    ("3,", 6, (3,)),
    ("every:2", 6, (0, 2, 4)),
    ("every:2", 5, (0, 2, 4)),
    ("every:1", 3, (0, 1, 2)),
    ("every:9", 6, (0,)),
    ("even:3", 6, (0, 2, 4)),
    ("even:8", 16, (0, 2, 4, 6, 8, 10, 12, 14)),
    ("even:4", 6, (0, 1, 3, 4)),
    ("even:5", 12, (0, 2, 4, 7, 9)),
    ("even:1", 6, (0,)),
    ("even:6", 6, (0, 1, 2, 3, 4, 5)),
    ("0,2,4 of 6", 6, (0, 2, 4)),
    ("3 of 6", 6, (3,)),
    ("3, of 6", 6, (3,)),  # as older checkpoints have it
])
def test_layers(text, depth, layers):
    assert kept_layers(text, depth, "encoder") == layers


def test_a_number_of_layers_is_spread_as_evenly_as_can_be():
    for depth in range(1, 30):
        for number in range(1, depth + 1):
            layers = spread(number, depth)
            assert len(set(layers)) == number
            assert layers[0] == 0
            gaps = [after - before for before, after in zip(layers, [*layers[1:], depth], strict=True)]
            assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(("text", "message"), [
    ("", "--decoder-layers-to-keep is empty; name at least one layer"),
    (" ,", "is empty"),
    ("a,b", "is 'a,b'; it must be layers counted from 0, such as 0,2,4"),
    ("0,,2", "is '0,,2'; it must be"),
    ("-1,2", "is '-1,2'; it must be"),
    ("1.5", "is '1.5'; it must be"),
    ("every:0", "is 'every:0'; it must be"),
    ("every:", "is 'every:'; it must be"),
    ("even:0", "is 'even:0'; it must be"),
    ("odd:2", "is 'odd:2'; it must be"),
    ("0,2,0", "names layer 0 twice"),
    ("0,6", "names layer 6, but the decoder of m.pt has 6 layers, 0 to 5"),
    ("even:7", "--decoder-layers-to-keep even:7 asks for 7 layers, but the decoder of m.pt has 6 layers"),
    ("6", "names layer 6, but the decoder of m.pt has 6 layers, 0 to 5. How many to keep is written `even:6`"),
    ("0,2 of 4", "is meant for 4 layers, but the decoder of m.pt has 6"),
])
def test_bad_lists(text, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        kept_layers(text, 6, "decoder", "m.pt")


def test_bad_lists_are_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="--encoder-layers-to-keep 1,1 names layer 1 twice"):
        KeepConfig(encoder="1,1")


@pytest.mark.parametrize(("layers", "text"), [("every:2", "every:2"), (3, "even:3"), ([3], "3"), ((0, 2), "0,2")])
def test_scripts_give_text_numbers_or_lists(layers, text):
    assert as_text(layers) == text


def test_other_values_from_scripts_are_refused():
    for layers in (2.5, ["a"], {0: 1}, True):
        with pytest.raises(ConfigError, match="give a list such as"):
            as_text(layers)


@pytest.mark.parametrize(("text", "is_same"), [("0,2,4", True), ("4,2,0", True), ("every:2", True), ("even:3", True),
                                               ("3", False), ("0,2,4 of 6", True), ("0,2", False), ("0,1,2", False),
                                               ("0,9", False)])
def test_a_record_knows_the_choices_that_led_to_it(text, is_same):
    assert was_kept(text, record_text((0, 2, 4), 6), "encoder") == is_same
