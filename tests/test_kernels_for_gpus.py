"""All kernels, without a GPU: compiled for one that is not here, with the arguments that they are called with.

They need Triton, which `make test-all` installs. What kernels compute is in the tests of their modules.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from interpreted import HAS_TRITON, IS_INTERPRETED
from lamina.decode import fused_choice
from lamina.decode.backtrace import Backtrace
from lamina.nn import packed_attention as packed_module
from lamina.nn import step_attention, step_rows
from lamina.nn import taken_norm as taken_norm_module
from lamina.nn.packed_attention import TILES, WIDEST_OF_TILES, packed_attention, packed_attention_backward
from lamina.nn.taken_norm import take_and_norm, take_and_norm_backward

pytestmark = [pytest.mark.extra, pytest.mark.skipif(not HAS_TRITON or IS_INTERPRETED, reason="needs triton, not interpreted")]
HALF, ALL = (torch.bfloat16, torch.float16), (torch.bfloat16, torch.float16, torch.float32)
# Compute capability, and the shared memory of a block: A100, H100 and H200, and GPUs for graphics of the same time.
ROOMS = {80: 163 * 1024, 90: 227 * 1024, 86: 99 * 1024, 89: 99 * 1024}
DATA_CENTER = (80, 90)


@pytest.fixture
def compiled(monkeypatch):
    """Launches compile for the capabilities in `targets` and run nothing; what was compiled."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.int64: "i64", torch.int32: "i32",
             torch.int16: "i16", torch.uint8: "u8"}
    done = SimpleNamespace(targets=(90,), shared={})

    def kind_of(value):
        if isinstance(value, torch.Tensor):
            return f"*{names[value.dtype]}"
        return "fp32" if isinstance(value, float) else "i32"

    def launch(kernel, grid):
        assert all(isinstance(size, int) and size > 0 for size in grid)

        def run(*given, **options):
            values = dict(zip(kernel.arg_names, given, strict=False))
            values |= {name: options.pop(name) for name in list(options) if name in kernel.arg_names}
            constants = {own.name: values[own.name] for own in kernel.params if own.is_constexpr}
            signature = {name: "constexpr" if name in constants else kind_of(values[name]) for name in kernel.arg_names}
            for target in done.targets:
                made = triton.compile(ASTSource(kernel, signature, constexprs=constants), target=GPUTarget("cuda", target, 32),
                                      options=options)
                assert made.asm["cubin"]
                done.shared.setdefault(kernel.fn.__name__, []).append((target, made.metadata.shared))
        return run

    monkeypatch.setattr(JITFunction, "__getitem__", launch)
    return done


def assert_fits(compiled, *names):
    assert set(compiled.shared) == set(names)
    for name, found in compiled.shared.items():
        for target, shared in found:
            assert shared <= ROOMS[target], name


def attend(dtype, channels, monkeypatch, *, has_memory=False, is_causal=False, dropout_p=0.0):
    monkeypatch.setattr(packed_module, "_has_kernels", lambda *_: True)
    heads, places = 2, 64
    query = torch.empty(places, heads * channels * (1 if has_memory else 3), dtype=dtype)
    memory = torch.empty(places, 2 * heads * channels, dtype=dtype) if has_memory else None
    sentences, bounds = torch.ones(places, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    layout = (sentences, bounds, sentences, bounds, heads, is_causal, dropout_p)
    out, *rest = packed_attention(query, memory, *layout)
    packed_attention_backward(out, query, memory, out, *rest, *layout)


@pytest.mark.parametrize("channels", sorted({min(channels, WIDEST_OF_TILES) for channels in (32, *TILES["forward"])}))
def test_packed_attention(channels, compiled, monkeypatch):
    compiled.targets = DATA_CENTER
    attend(torch.bfloat16, channels, monkeypatch, is_causal=True, dropout_p=0.1)
    assert_fits(compiled, "forward", "backward_query", "backward_memory")


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("has_memory", [False, True])
def test_packed_attention_of_heads_as_most_models_have_them(has_memory, dtype, compiled, monkeypatch):
    compiled.targets = tuple(ROOMS) if dtype in HALF else DATA_CENTER
    attend(dtype, 64, monkeypatch, has_memory=has_memory)
    assert_fits(compiled, "forward", "backward_query", "backward_memory")


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("width", [48, 512, 4096])
def test_rows_that_are_taken_and_normalised(width, dtype, compiled, monkeypatch):
    monkeypatch.setattr(taken_norm_module, "has_kernels", lambda x: True)
    compiled.targets = DATA_CENTER
    x, own = torch.empty(32, width, dtype=dtype), torch.empty(16, width, dtype=dtype)
    weight, taken, back = torch.empty(width, dtype=dtype), *(torch.zeros(size, dtype=torch.int32) for size in (16, 32))
    _, statistics = take_and_norm(x, weight, weight, taken, 1e-5)
    take_and_norm_backward(own, own, x, x, weight, statistics, back)
    assert_fits(compiled, "forward", "backward")


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize(("num_beams", "channels"), [(1, 16), (5, 64), (17, step_attention.WIDEST)])
def test_attention_of_a_step(num_beams, channels, dtype, compiled):
    compiled.targets = (90, 86)
    heads, batch, size = 2, 3, 40
    query, entries = torch.empty(batch, num_beams, 3 * heads * channels, dtype=dtype).tensor_split([heads * channels], dim=2)
    past = SimpleNamespace(num_heads=heads, data=torch.empty(batch, 32, num_beams, 2 * heads * channels, dtype=dtype))
    turn = SimpleNamespace(places=torch.zeros(batch, dtype=torch.long),
                           ancestry=torch.zeros(batch, num_beams, 32, dtype=torch.int16))
    step_attention.look_back(query, entries, past, turn)
    memory, bias = torch.empty(batch, heads, size, channels, dtype=dtype), torch.zeros(batch, 1, 1, size, dtype=dtype)
    step_attention.read_source(query.contiguous(), memory, memory, bias)
    assert_fits(compiled, "look_back", "read_source")


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("width", [24, 512, 4096])
def test_rows_of_a_step(width, dtype, compiled):
    compiled.targets = (90, 86)
    x, norm = torch.empty(3, 5, width, dtype=dtype), nn.LayerNorm(width).to(dtype)
    step_rows.add_norm(x, x, norm)
    step_rows.add_norm(x, x, norm, torch.empty(width, dtype=dtype))
    step_rows.embed(torch.zeros(3, 5, dtype=torch.long), torch.zeros(3, dtype=torch.long), torch.empty(9, width, dtype=dtype),
                    torch.empty(11, width, dtype=dtype), 2.0)
    step_rows.log_softmax(torch.empty(3, 5, 4 * width, dtype=dtype))
    assert_fits(compiled, "add_norm", "embed", "log_softmax")


@pytest.mark.parametrize(("num_beams", "vocab"), [(1, 100), (5, 9712), (5, 50_000), (fused_choice.MOST_BEAMS, 9712)])
def test_the_choice_of_a_step(num_beams, vocab, compiled):
    compiled.targets = (90, 86)
    batch = 3
    numbers = torch.zeros(batch, dtype=torch.long)
    slots = SimpleNamespace(
        tokens=torch.zeros(batch, num_beams, dtype=torch.long), scores=torch.zeros(batch, num_beams),
        rules=SimpleNamespace(limits=numbers, num_given=numbers), num_ended=numbers,
        is_done=torch.zeros(batch, dtype=torch.bool),
        trace=Backtrace(9, batch, num_beams, torch.device("cpu")),
        states=[SimpleNamespace(ancestry=torch.zeros(batch, num_beams, 16, dtype=torch.int16), capacity=16, length=8)])
    fused_choice.choose_(slots, torch.zeros(batch, num_beams, vocab), numbers, min_length=1)
    assert_fits(compiled, "best_of_spans", "choose")
