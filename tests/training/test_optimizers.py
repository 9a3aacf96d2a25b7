"""Laws of the flat optimizers: a step that is off changes nothing, and resuming equals not stopping."""

import math
import re
from dataclasses import make_dataclass

import pytest
import torch

from lamina.errors import CheckpointError, ConfigError
from lamina.fields import build, flatten, variant
from lamina.parts.contracts import Optimizer, Schedule
from lamina.parts.muon import Muon
from lamina.parts.rate_schedules import Cosine, Fixed, InverseSqrt, Poly, PolynomialDecay
from lamina.parts.update_rules import Adam, Adam2, AdamW, Nag, RAdam, Sgd
from lamina.registry import register
from lamina.training import optimizers
from lamina.training.optimizers import build_optimizer

CONFIGS = [
    Adam(weight_decay=0.01), Adam2(betas=(0.9, 0.98)), RAdam(weight_decay=0.01),
    AdamW(weight_decay=0.01), Nag(weight_decay=0.01), Nag(momentum=0.0),
    Muon(weight_decay=0.01), Sgd(weight_decay=0.01), Sgd(momentum=0.9, weight_decay=0.01), Sgd(momentum=0.9),
]
every_optimizer = pytest.mark.parametrize("config", CONFIGS, ids=repr)
YES, NO = torch.tensor(True), torch.tensor(False)


def gradients(count, size=40, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for _ in range(count)]


def start(config, size=40):
    return build_optimizer(config, torch.linspace(-1.0, 1.0, size))


def snapshot(optimizer):
    return {"master": optimizer.master.clone(), **{name: t.clone() for name, t in optimizer.state().items()}}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


def test_every_optimizer_is_covered_here():
    assert {type(config) for config in CONFIGS} == set(register.optimizer.values())


@every_optimizer
@pytest.mark.parametrize("num_before", [0, 8])
@pytest.mark.parametrize("poison", [math.nan, math.inf, 1.0])
def test_a_step_that_is_off_changes_nothing_whatever_the_gradient(config, num_before, poison):
    optimizer = start(config)
    for grad in gradients(num_before):
        optimizer.step_(grad, 0.01, YES)
    before = snapshot(optimizer)
    optimizer.step_(torch.full((40,), poison), 0.01, NO)
    assert_same(snapshot(optimizer), before)


@every_optimizer
def test_skipped_steps_leave_no_trace_in_what_follows(config):
    plain, skipping = start(config), start(config)
    for grad in gradients(12):
        plain.step_(grad, 0.01)
        skipping.step_(grad, torch.tensor(0.01, dtype=torch.float64), YES)
        skipping.step_(torch.full_like(grad, math.nan), 0.5, NO)
    # Also says that `ok` and a tensor rate cost no bit, so a captured step equals a plain one.
    assert_same(snapshot(plain), snapshot(skipping))
    assert plain.state()["step"].item() == 12


@every_optimizer
def test_resuming_equals_not_stopping(config):
    whole, first = start(config), start(config)
    grads = gradients(20)
    for grad in grads:
        whole.step_(grad, 0.01)
    for grad in grads[:9]:
        first.step_(grad, 0.01)
    saved = snapshot(first)
    second = build_optimizer(config, saved.pop("master"))
    second.load_state_(saved)
    for grad in grads[9:]:
        second.step_(grad, 0.01)
    assert_same(snapshot(second), snapshot(whole))


@every_optimizer
@pytest.mark.parametrize("chunk", [1, 7, 40, 64])
def test_chunks_do_not_change_the_result(config, chunk, monkeypatch):
    whole, cut = start(config), start(config)
    for grad in gradients(6):
        whole.step_(grad, 0.01)
    monkeypatch.setattr(optimizers, "CPU_CHUNK", chunk)
    for grad in gradients(6):
        cut.step_(grad, 0.01, YES)
    for name, tensor in snapshot(whole).items():
        # Vector and scalar kernels may round the last bit differently.
        torch.testing.assert_close(snapshot(cut)[name], tensor, rtol=1e-6, atol=1e-7)


@every_optimizer
def test_steps_go_downhill_in_place(config):
    master = torch.full((10,), 3.0)
    optimizer = build_optimizer(config, master)
    for _ in range(300):
        optimizer.step_(2.0 * master, 0.005)
    assert optimizer.master.data_ptr() == master.data_ptr()
    assert master.abs().max() < 2.6


@pytest.mark.parametrize("cls", [Adam, RAdam, AdamW, Nag, Sgd])
def test_weight_decay_alone_shrinks_every_weight(cls):
    optimizer = start(cls(weight_decay=0.1))
    before = optimizer.master.clone()
    optimizer.step_(torch.zeros(40), 0.5)
    torch.testing.assert_close(optimizer.master, before * (1 - 0.5 * 0.1))


def test_small_weight_decay_is_not_rounded_away():
    # lr * weight_decay = 2e-8 is below half a float32 ulp of 1, but not of the update that it joins.
    with_decay, without = (start(Adam(weight_decay=w)) for w in (2e-5, 0.0))
    for grad in gradients(200):
        with_decay.step_(grad, 1e-3)
        without.step_(grad, 1e-3)
    assert with_decay.master.abs().sum() < without.master.abs().sum()


def test_radam_waits_until_the_second_moment_is_known():
    optimizer = start(RAdam(betas=(0.9, 0.98)))
    before = optimizer.master.clone()
    for number, grad in enumerate(gradients(6), start=1):
        optimizer.step_(grad, 0.01)
        assert torch.equal(optimizer.master, before) == (number <= 5)


def test_radam_approaches_adam():
    radam, adam = (start(cls(betas=(0.9, 0.98))) for cls in (RAdam, Adam))
    for optimizer in (radam, adam):
        optimizer.step.fill_(100_000)
        optimizer.step_(gradients(1)[0], 0.01)
    torch.testing.assert_close(radam.master, adam.master, rtol=1e-6, atol=1e-7)


def test_the_learning_rate_may_be_a_tensor_on_any_float_type():
    results = []
    for lr in (0.25, torch.tensor(0.25), torch.tensor(0.25, dtype=torch.float64)):
        optimizer = start(Adam())
        optimizer.step_(gradients(1)[0], lr)
        results.append(optimizer.master)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_state_names_are_a_file_format():
    names = {name: list(start(cls()).state()) for name, cls in register.optimizer.items()}
    adam = ["step", "exp_avg", "exp_avg_sq"]
    assert names == {"adam": adam, "adam2": adam, "radam": adam, "adamw": adam, "muon": adam,
                     "nag": ["step", "momentum_buffer"], "sgd": ["step"]}
    assert list(start(Sgd(momentum=0.9)).state()) == ["step", "momentum_buffer"]


def test_a_state_of_another_optimizer_is_refused():
    with pytest.raises(CheckpointError, match=r"holds momentum_buffer, step, but .* exp_avg, exp_avg_sq, step"):
        start(Adam()).load_state_(start(Nag()).state())


def test_a_state_of_another_model_is_refused_and_nothing_is_loaded():
    optimizer = start(Adam())
    before = snapshot(optimizer)
    other = start(Adam(), size=41)
    other.step_(torch.ones(41), 0.1)
    with pytest.raises(CheckpointError, match=r"exp_avg of the optimizer state has shape \(41,\).*\(40,\)"):
        optimizer.load_state_(other.state())
    assert_same(snapshot(optimizer), before)


def test_a_compiled_graph_of_the_step_has_no_breaks():
    optimizer = start(RAdam(weight_decay=0.01))
    eager = start(RAdam(weight_decay=0.01))
    compiled = torch.compile(optimizer.step_, backend="eager", fullgraph=True)
    for grad in gradients(8):
        compiled(grad, torch.tensor(0.01), YES)
        eager.step_(grad, torch.tensor(0.01), YES)
    assert_same(snapshot(optimizer), snapshot(eager))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_optimizer
def test_a_captured_step_replays_as_the_plain_one(config):
    plain = build_optimizer(config, torch.linspace(-1.0, 1.0, 40, device="cuda"))
    captured = build_optimizer(config, torch.linspace(-1.0, 1.0, 40, device="cuda"))
    grad, lr, ok = torch.zeros(40, device="cuda"), torch.zeros((), device="cuda"), torch.tensor(False, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        captured.step_(grad, lr, ok)  # off: warms the allocator up and changes nothing
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured.step_(grad, lr, ok)
    for number, values in enumerate(gradients(12)):
        is_good = number % 3 != 2
        grad.copy_(values if is_good else torch.full((40,), math.nan))
        lr.fill_(0.01 * (number + 1))
        ok.fill_(is_good)
        graph.replay()
        if is_good:
            plain.step_(grad, lr)
    assert_same(snapshot(plain), snapshot(captured))


# Both choices side by side, as the training configuration has them.
Holder = make_dataclass("Holder", [
    ("optimizer", Optimizer, variant("optimizer", "how weights move", register.optimizer, default="adam")),
    ("schedule", Schedule, variant("lr-scheduler", "how fast", register.schedule, default="fixed")),
], frozen=True, kw_only=True)


def test_flags_reach_the_variants_and_come_back():
    values = {"optimizer": "radam", "adam-betas": "(0.9,0.98)", "weight-decay": "0.0001",
              "lr-scheduler": "inverse_sqrt", "warmup-init-lr": "1e-7", "warmup-updates": "6000"}
    config = build(Holder, values, explicit=values)
    assert config.optimizer == RAdam(betas=(0.9, 0.98), weight_decay=0.0001)
    assert config.schedule == InverseSqrt(warmup_updates=6000, warmup_init_lr=1e-7)
    assert build(Holder, flatten(config)) == config


def test_defaults_are_fairseqs():
    config = Holder()
    assert config.optimizer == Adam(betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    assert config.schedule == Fixed(warmup_updates=0, force_anneal=None, lr_shrink=0.1)
    assert (Nag().momentum, Sgd().momentum) == (0.99, 0.0)
    assert InverseSqrt() == InverseSqrt(warmup_updates=4000, warmup_init_lr=-1.0)
    assert PolynomialDecay() == PolynomialDecay(
        warmup_updates=0, total_num_update=1_000_000, power=1.0, end_learning_rate=0.0)
    assert Poly().poly_pow == 2.0
    assert Cosine(max_lr=1.0) == Cosine(
        max_lr=1.0, t_mult=1.0, lr_period_updates=-1, lr_shrink=0.1, warmup_updates=0, warmup_init_lr=-1.0)


@pytest.mark.parametrize(("values", "message"), [
    ({"optimizer": "sgd", "adam-eps": 1e-6}, "--adam-eps has no effect with --optimizer sgd"),
    ({"lr-shrink": 0.5}, "--lr-shrink has no effect without --force-anneal"),
    ({"lr-scheduler": "linear", "warmup-init-lr": 1e-7}, "--warmup-init-lr has no effect without --warmup-updates"),
])
def test_flags_without_effect_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        build(Holder, values, explicit=values)


@pytest.mark.parametrize(("cls", "keywords", "message"), [
    (Adam, {"betas": (0.9, 1.0)}, "both must lie in [0, 1)"),
    (Adam, {"betas": (-0.1, 0.9)}, "both must lie in [0, 1)"),
    (Adam, {"eps": 0.0}, "--adam-eps is 0.0; it must be a finite number above 0"),
    (Adam, {"weight_decay": -0.1}, "--weight-decay is -0.1"),
    (Adam, {"weight_decay": math.nan}, "--weight-decay is nan"),
    (RAdam, {"betas": (0.9, 0.5)}, "unless the second is above 2/3"),
    (Nag, {"momentum": 1.0}, "--momentum is 1.0; it must lie in [0, 1)"),
    (Sgd, {"momentum": -0.5}, "--momentum is -0.5"),
])
def test_options_out_of_range_are_refused(cls, keywords, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        cls(**keywords)
