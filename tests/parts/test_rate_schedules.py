"""Laws of the learning-rate schedules, and the messages for combinations that make no sense."""

import math
import re

import pytest
import torch

from lamina.errors import ConfigError
from lamina.parts.contracts import Rates
from lamina.parts.rate_schedules import Cosine, Fixed, InverseSqrt, Linear, Poly, PolynomialDecay, ReduceOnPlateau
from lamina.registry import register


def make(config, lr=(0.001,), min_lr=-1.0, max_update=100):
    return config.build(Rates(lr, min_lr, max_update))


CONFIGS = [Fixed(warmup_updates=10), InverseSqrt(warmup_updates=10), Linear(warmup_updates=10), Poly(),
           PolynomialDecay(warmup_updates=10, total_num_update=90),
           Cosine(warmup_updates=10, max_lr=0.002, lr_period_updates=20, t_mult=1.5), ReduceOnPlateau(warmup_updates=10)]


def test_every_schedule_is_covered_here():
    assert {type(config) for config in CONFIGS} == set(register.schedule.values())


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_rates_are_never_negative_and_depend_on_the_count_alone(config):
    schedule = make(config)
    forward = [schedule(updates) for updates in range(300)]
    assert all(0.0 <= rate <= 0.002 for rate in forward)
    assert [schedule(updates) for updates in reversed(range(300))] == forward[::-1]


@pytest.mark.parametrize("config", [c for c in CONFIGS if not isinstance(c, Poly)], ids=lambda c: type(c).__name__)
def test_warm_up_is_a_straight_line_that_ends_at_the_peak(config):
    schedule = make(config)
    rises = [schedule(updates + 1) - schedule(updates) for updates in range(10)]
    assert rises == pytest.approx([rises[0]] * 10)
    assert schedule(10) == pytest.approx(0.002 if isinstance(config, Cosine) else 0.001)


def test_inverse_sqrt_halves_when_updates_quadruple():
    schedule = make(InverseSqrt(warmup_updates=10))
    for updates in (10, 25, 1000):
        assert schedule(4 * updates) == pytest.approx(schedule(updates) / 2)


def test_inverse_sqrt_warms_up_over_4000_updates_by_default():
    schedule = make(InverseSqrt())
    assert schedule(0) == 0.0
    assert schedule(2000) == pytest.approx(0.0005)
    assert max(schedule(updates) for updates in range(0, 9000, 100)) == schedule(4000) == 0.001


def test_inverse_sqrt_without_warm_up_decays_from_the_first_update():
    schedule = make(InverseSqrt(warmup_updates=0))
    assert [schedule(updates) for updates in (0, 1, 4)] == pytest.approx([0.001, 0.001, 0.0005])


def test_linear_ends_at_the_floor_and_is_zero_afterwards():
    schedule = make(Linear(warmup_updates=10), min_lr=1e-5)
    assert schedule(100) == pytest.approx(1e-5)
    assert schedule(101) == schedule(10_000) == 0.0


@pytest.mark.parametrize("config", [Linear(), Poly()])
def test_the_default_floor_of_minus_one_means_zero(config):
    schedule = make(config, min_lr=-1.0)
    assert schedule(0) == 0.001
    assert schedule(50) == pytest.approx(0.0005 if isinstance(config, Linear) else 0.00025)
    assert schedule(100) == 0.0


def test_linear_survives_a_run_shorter_than_its_warm_up():
    schedule = make(Linear(warmup_updates=6000), max_update=20)
    assert schedule(20) == pytest.approx(0.001 * 20 / 6000)
    assert schedule(7000) >= 0.0


def test_fixed_walks_the_list_by_epoch_and_stays_at_its_end():
    schedule = make(Fixed(), lr=(0.3, 0.2, 0.1))
    assert [schedule(7, epoch) for epoch in (1, 2, 3, 4, 9)] == [0.3, 0.2, 0.1, 0.1, 0.1]


def test_fixed_anneals_after_the_given_epoch():
    schedule = make(Fixed(force_anneal=2, lr_shrink=0.5), lr=(0.4,))
    assert [schedule(7, epoch) for epoch in (1, 2, 3, 4)] == pytest.approx([0.4, 0.4, 0.2, 0.1])
    default = make(Fixed(force_anneal=2), lr=(0.4,))
    assert default(7, epoch=3) == pytest.approx(0.04)


def test_warm_up_scales_the_rate_of_the_epoch():
    schedule = make(Fixed(warmup_updates=10), lr=(0.4, 0.2))
    assert schedule(5, epoch=2) == pytest.approx(0.1)
    decay = make(PolynomialDecay(), lr=(0.4, 0.2))
    assert [decay(0, epoch) for epoch in (1, 2)] == [0.4, 0.2]


def test_cosine_without_a_period_falls_once_over_the_whole_run():
    schedule = make(Cosine(max_lr=0.002, warmup_updates=20))
    assert schedule(20) == 0.002
    assert schedule(60) == pytest.approx(0.0015)
    assert schedule(99) == pytest.approx(0.001, rel=1e-3)


@pytest.mark.parametrize("t_mult", [1.0, 1.5, 2.0, 3.0])
def test_cosine_restarts_exactly_on_time(t_mult):
    schedule = make(Cosine(max_lr=1.0, lr_period_updates=8, t_mult=t_mult, lr_shrink=0.5), lr=(1e-4,), max_update=0)
    start = 0.0
    for restart in range(8):
        at = math.ceil(start)
        if at == start:
            assert schedule(at) == pytest.approx(0.5**restart)
        if restart:
            assert schedule(at - 1) < schedule(at)
        start += 8 * t_mult**restart


def test_cosine_warms_up_from_its_low_rate_unless_told():
    assert make(Cosine(max_lr=1.0, warmup_updates=10))(0) == 0.001
    assert make(Cosine(max_lr=1.0, warmup_updates=10, warmup_init_lr=1e-7))(0) == 1e-7


@pytest.mark.parametrize(("config", "keywords", "message"), [
    (Linear(), {"max_update": 0}, "--max-update is not set, but --lr-scheduler linear"),
    (Poly(), {"max_update": 0}, "--max-update is not set, but --lr-scheduler poly"),
    (Cosine(max_lr=1.0), {"max_update": 0}, "cosine without --lr-period-updates"),
    (Cosine(max_lr=1.0, warmup_updates=100), {}, "leaves no update for the cosine"),
    (Cosine(max_lr=0.0005), {}, "--lr is the bottom"),
    (InverseSqrt(), {"lr": (0.1, 0.2)}, "--lr lists 2 rates"),
    (Linear(), {"lr": (0.1, 0.2)}, "--lr lists 2 rates"),
    (Poly(), {"lr": (0.1, 0.2)}, "--lr lists 2 rates"),
    (Cosine(max_lr=1.0), {"lr": ()}, "--lr lists 0 rates"),
])
def test_impossible_schedules_are_refused(config, keywords, message):
    with pytest.raises(ConfigError, match=message):
        make(config, **keywords)


@pytest.mark.parametrize(("cls", "keywords", "message"), [
    (Fixed, {"warmup_updates": -1}, "--warmup-updates is -1; it must be 0 or more"),
    (Fixed, {"force_anneal": 0}, "--force-anneal is 0"),
    (Fixed, {"lr_shrink": 0.0}, "--lr-shrink is 0.0; it must lie in (0, 1]"),
    (PolynomialDecay, {"warmup_updates": 10, "total_num_update": 10}, "decay must end after warm-up"),
    (PolynomialDecay, {"power": 0.0}, "--power is 0.0"),
    (PolynomialDecay, {"end_learning_rate": -1.0}, "--end-learning-rate is -1.0"),
    (Poly, {"poly_pow": -2.0}, "--poly-pow is -2.0"),
    (Cosine, {}, "--lr-scheduler cosine needs --max-lr"),
    (Cosine, {"max_lr": 1.0, "t_mult": 0.5}, "--t-mult is 0.5; it must be 1 or more"),
    (Cosine, {"max_lr": 1.0, "t_mult": 2.0}, "without --lr-period-updates"),
    (Cosine, {"max_lr": 1.0, "lr_shrink": 1.5}, "--lr-shrink is 1.5"),
])
def test_options_out_of_range_are_refused(cls, keywords, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        cls(**keywords)


@pytest.mark.parametrize("larger_is_better", [False, True])
@pytest.mark.parametrize("patience", [0, 2])
def test_a_plateau_is_what_torch_takes_for_one(larger_is_better, patience):
    scores = torch.rand(60, generator=torch.Generator().manual_seed(1)).add(1.0).tolist()
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.001)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max" if larger_is_better else "min", factor=0.5,
                                                        patience=patience, threshold=1e-2)
    ours = make(ReduceOnPlateau(lr_shrink=0.5, lr_patience=patience, lr_threshold=1e-2))
    rates = []
    for number, score in enumerate(scores):
        theirs.step(score)
        ours.validated(score, number + 1, larger_is_better=larger_is_better)
        assert ours(number + 1) == optimizer.param_groups[0]["lr"]
        rates.append(ours(number + 1))
    assert 1 < len(set(rates)) < len(rates)
    assert rates[-1] == rates[-2] > 0.0  # where it would fall by next to nothing, it stays


def test_a_plateau_counts_after_warm_up_only():
    schedule = make(ReduceOnPlateau(warmup_updates=10, lr_shrink=0.5))
    for _ in range(3):
        schedule.validated(5.0, 10, larger_is_better=False)
    assert schedule(10) == 0.001
    schedule.validated(5.0, 11, larger_is_better=False)
    assert schedule(11) == 0.001
    schedule.validated(5.0, 12, larger_is_better=False)
    assert schedule(12) == 0.0005
    assert schedule(4) == pytest.approx(0.0004)  # the line of warm-up is as it was


@pytest.mark.parametrize(("options", "message"), [
    ({"lr_shrink": 0.0}, "--lr-shrink is 0.0"), ({"lr_threshold": 1.0}, "--lr-threshold is 1.0"),
    ({"lr_patience": -1}, "--lr-patience is -1"),
])
def test_options_of_a_plateau_that_make_no_sense(options, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        ReduceOnPlateau(**options)
