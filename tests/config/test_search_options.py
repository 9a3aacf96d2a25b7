"""config/search_options.py: fairseq's flags and defaults, and the combinations that make no sense."""

import pytest

from lamina.api.outputs import search_config
from lamina.config.search_options import SearchConfig
from lamina.errors import ConfigError
from lamina.fields import flatten


def test_defaults_are_fairseqs():
    assert flatten(SearchConfig()) == {
        "beam": 5, "nbest": 1, "lenpen": 1.0, "unkpen": 0.0, "unnormalized": False, "min-len": 1, "max-len-a": 0.0,
        "max-len-b": 200, "match-source-len": False, "max-len-from-padded-width": False, "no-repeat-ngram-size": 0,
        "forbidden-words": None, "temperature": 1.0, "sampling": False, "sampling-topk": -1, "sampling-topp": -1.0,
        "diverse-beam-groups": -1, "diverse-beam-strength": 0.5, "constraints": None, "cuda-graphs": True,
        "forbid-tokens": [], "begin-with": [], "free-forced": False, "renormalize": False}


@pytest.mark.parametrize(("options", "message"), [
    ({"beam": 0}, "--beam is 0; it must be at least 1"),
    ({"beam": 2, "nbest": 3}, "between 1 and --beam 2"),
    ({"nbest": 0}, "between 1 and --beam 5"),
    ({"temperature": 0.0}, "a number above 0"),
    ({"lenpen": float("nan")}, "--lenpen is nan; it must be a finite number"),
    ({"unkpen": float("inf")}, "--unkpen is inf"),
    ({"min_len": -1}, "--min-len is -1"),
    ({"max_len_a": -1.0}, "--max-len-a is -1.0"),
    ({"max_len_b": -1}, "--max-len-b is -1; below 0 it needs"),
    ({"min_len": 5, "max_len_b": 4}, "more than --max-len-b 4 allows"),
    ({"no_repeat_ngram_size": -1}, "--no-repeat-ngram-size is -1"),
    ({"sampling_topk": 3}, "--sampling-topk has no effect without --sampling"),
    ({"sampling_topp": 0.3}, "--sampling-topp has no effect without --sampling"),
    ({"sampling": True, "sampling_topk": 0}, "--sampling-topk is 0; it must be at least 1"),
    ({"sampling": True, "sampling_topp": 1.5}, r"--sampling-topp is 1.5; it must lie in \(0, 1\]"),
    ({"sampling": True, "sampling_topk": 3, "sampling_topp": 0.3}, "exclude each other"),
    ({"sampling": True, "diverse_beam_groups": 5}, "exclude each other"),
    ({"diverse_beam_groups": 2}, "does not divide --beam 5"),
    ({"diverse_beam_groups": 0}, "--diverse-beam-groups is 0"),
    ({"diverse_beam_strength": 0.7}, "no effect without --diverse-beam-groups"),
    ({"unnormalized": True, "lenpen": 0.6}, "--lenpen has no effect together with --unnormalized"),
    ({"bean": 3}, "unknown option 'bean'. Did you mean --beam?"),
    ({"beam": "many"}, "--beam is 'many'; it must be a whole number"),
])
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        search_config(**options)


def test_options_go_by_flag_or_by_field():
    assert search_config(lenpen=0.6, max_len_a=1.5, min_length=2) == SearchConfig(
        length_penalty=0.6, max_length_factor=1.5, min_length=2)
    assert search_config(beam=None) == SearchConfig()
