"""What all loaded models can do: move, be copied, pickled, pruned and saved, and show their states."""

# B texts, T tokens, D model_dim

from __future__ import annotations

import copy
import hashlib
import json
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Generic, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from lamina.api.outputs import SPELLINGS, parse_device, parse_dtype, silent, warn_in_python
from lamina.checkpoint.format import Checkpoint, load_weights_, save_checkpoint
from lamina.checkpoint.marks import marks_of
from lamina.config.chosen_depth import parse_depth
from lamina.config.keep import KeepConfig, as_text
from lamina.data.batching import length_batches, pad_rows
from lamina.decode.active_depth import active_layers
from lamina.decode.cascade import Cascade
from lamina.errors import CheckpointError, ConfigError
from lamina.models.contract import Model
from lamina.nn.prepacked import Int8Linear, Prepacked, is_prepacked, prepack_, unpack_
from lamina.nn.stack import ALL_LAYERS, ActiveLayers, LayerStack, stacks_of
from lamina.provenance import origin
from lamina.pruning.cut import check_prunable, prune_on_loading
from lamina.training.events import Row

if TYPE_CHECKING:
    from typing_extensions import Self

M = TypeVar("M", bound=Model)
P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner", bound="LoadedModel")  # type: ignore[type-arg]
Layers = Literal["all", "last"] | int | Sequence[int]

# Kernels are captured and replayed on a GPU, and what one thread launches must not end up in what another one captures.
_GPU_TURN = threading.RLock()


def in_turn(method: Callable[Concatenate[Owner, P], R]) -> Callable[Concatenate[Owner, P], R]:
    """Calls from several threads run side by side on the CPU, and one after the other on a GPU."""

    @wraps(method)
    def run(self: Owner, *given: P.args, **named: P.kwargs) -> R:
        with self._turn():
            return method(self, *given, **named)

    return run


@dataclass(frozen=True)
class States:
    """What a stack made of some texts, padded on the right to the longest."""

    final: Tensor  # (B, T, D): what the stack hands on, after its last norm if it has one
    layers: tuple[Tensor, ...]  # (B, T, D) each, before that norm: those asked for; 0 is the stack's input
    mask: Tensor  # (B, T): True where there is a token
    tokens: list[list[str]]  # the pieces of each text


class LoadedModel(Generic[M]):
    """One model, or several whose probabilities are averaged, with dictionaries and segmentation.

    It can be used by several threads at once. It can be pickled and copied, and `to` moves it.
    """

    models: list[M]

    def __init__(self, models: Sequence[M], languages: tuple[str, ...], device: torch.device | str | None,
                 dtype: torch.dtype | str | None) -> None:
        self.device = parse_device(device)
        own_dtype = parse_dtype(dtype)
        self.models = [model.to(device=self.device, dtype=own_dtype).eval() for model in models]
        self.dtype = next((weight.dtype for weight in self.models[0].parameters() if weight.is_floating_point()), torch.float32)
        self.languages = languages
        self.history: list[Row] = []  # of lamina.train: what was measured, as in train.jsonl
        self._prepacking: type[Prepacked] | None = None
        self._described: tuple[Checkpoint, ...] = ()  # what each model's checkpoint says besides its weights
        self._names: tuple[str, ...] = ()
        self._digest: tuple[object, str] | None = None
        self._masters: tuple[dict[str, Tensor], ...] = ()  # the weights as they were stored, where the models' are rounded

    # -- where it is

    def to(self, device: torch.device | torch.dtype | str | None = None, dtype: torch.dtype | str | None = None) -> Self:
        """Move to another device, or compute in another precision; returns itself.

        Arguments:
            device: "cpu", "cuda", "cuda:1" or a torch.device; where it is now, if left out. A precision may stand here too.
            dtype: "fp32", "fp16", "bf16", torch's names of them or a torch.dtype; as now, if left out.

        Returns:
            The model itself.

        >>> model.to("cpu").translate("a bird").text == model.translate("a bird").text
        True
        """
        if dtype is None and (isinstance(device, torch.dtype) or device in SPELLINGS):  # as torch's own `to` takes it
            device, dtype = None, device
        with self._turn():
            target = self.device if device is None else parse_device(device)  # type: ignore[arg-type]
            chosen = parse_dtype(dtype) or self.dtype
            for number, model in enumerate(self.models):
                is_more_exact = self._masters and chosen.itemsize > self.dtype.itemsize
                model.to(device=target, dtype=chosen)
                if is_more_exact:
                    load_weights_(model, self._masters[number])
            self.device, self.dtype = target, chosen
            self._prepack()
        return self

    def prepack(self, kind: type[Prepacked] | None) -> None:
        """Lay matrices out for the CPU, now and after each move to it; None: never."""
        self._prepacking = kind
        for model in self.models:
            unpack_(model)
        self._prepack()

    def _prepack(self) -> None:
        if self._prepacking is not None and self.device.type == "cpu" and self.dtype == torch.float32:
            for model in self.models:
                if not is_prepacked(model):
                    prepack_(model, self._prepacking)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with nullcontext() if self.device.type == "cpu" else _GPU_TURN:
            yield

    @property
    def num_parameters(self) -> int:
        """Of all models together.

        >>> model.num_parameters > 1000
        True
        """
        return sum(weight.numel() for model in self.models for weight in model.parameters())

    @property
    def has_layerdrop(self) -> bool:
        """Whether all models were trained with LayerDrop, and so work with fewer layers.

        >>> model.has_layerdrop
        False
        """
        configs = [own.model_config() for own in self._described]
        return bool(configs) and all(config.encoder.layer_drop_p or config.decoder.layer_drop_p for config in configs)

    def __repr__(self) -> str:
        facts = [" -> ".join(self.languages), *([f"{len(self.models)} models"] if len(self.models) > 1 else [])]
        depths = {name: len(stack.layers) for name, stack in stacks_of(self.models[0]).items()}
        facts += [f"{number} {name} layer{'s' if number > 1 else ''}" for name, number in depths.items()]
        is_packed = any(map(is_prepacked, self.models))
        how = (", int8" if self._prepacking is Int8Linear else ", prepacked") if is_packed else ""
        dtype = str(self.dtype).removeprefix("torch.")
        facts += [f"{_short_number(self.num_parameters)} parameters", f"{dtype} on {self.device}{how}"]
        return f"{type(self).__name__}({', '.join(facts)})"

    # -- weights

    def state_dict(self) -> dict[str, Tensor]:
        """The weights by name, as of a torch.nn.Module; of a single model.

        >>> all(isinstance(weight, torch.Tensor) for weight in model.state_dict().values())
        True
        """
        return self._only("state_dict").state_dict()

    def save(self, path: str | Path) -> Path:
        """Write the model as a checkpoint: one that `lamina.load` and all commands read, without what resuming would need.

        Weights that were rounded when the model was loaded in half precision are written as they were stored.

        Arguments:
            path: the file to write; it is replaced if it is there.

        Returns:
            The path.

        >>> lamina.load(model.save("copy.pt")).translate("a bird").text == model.translate("a bird").text
        True
        """
        self._only("save")
        (checkpoint,) = self._checkpoints()
        save_checkpoint(Path(path), replace(checkpoint, origin=origin()))
        return Path(path)

    def prune(self, encoder: int | str | Sequence[int] | None = None,
              decoder: int | str | Sequence[int] | None = None) -> Self:
        """A smaller model of some of the layers; this one stays as it is.

        A model that was trained with LayerDrop works with fewer layers; of others Python's warnings say what to expect.

        Arguments:
            encoder: how many layers to keep, spread evenly; or their numbers, from 0, as a list; or text as for
                --encoder-layers-to-keep, such as "every:2". All, if left out.
            decoder: likewise.

        Returns:
            The pruned model, on the same device.

        >>> small = model.prune(encoder=1, decoder=[0])
        >>> small.save("small.pt").name
        'small.pt'
        """
        if encoder is None and decoder is None:
            raise ConfigError("which layers are to stay? Write prune(encoder=6, decoder=3), or lists of layers.")
        wanted = KeepConfig(encoder=None if encoder is None else as_text(encoder),
                            decoder=None if decoder is None else as_text(decoder))
        pruned = [prune_on_loading(checkpoint, wanted, name, say=silent, warn=warn_in_python)
                  for checkpoint, name in zip(self._checkpoints(), self._names, strict=True)]
        first = pruned[0]
        models = [checkpoint.build_model() for checkpoint in pruned]
        made: Self = first.kind.load_api()(models, first.vocabularies(), first.subword_models(), languages=first.languages,
                                           device=self.device, dtype=self.dtype)
        marked = [replace(own, training={**own.training, "pruned": name})
                  for own, name in zip(pruned, self._names, strict=True)]
        made.describe(marked, self._names)
        made.prepack(self._prepacking)
        return made

    def describe(self, checkpoints: Sequence[Checkpoint], names: Sequence[str]) -> None:
        """What the models were made from: `save` and `prune` write it on."""
        self._described = tuple(replace(own, weights={}, metrics={}, training=marks_of(own)) for own in checkpoints)
        self._names = tuple(names)
        if self.dtype != torch.float32:
            self._masters = tuple(dict(own.weights) for own in checkpoints)

    def _checkpoints(self) -> list[Checkpoint]:
        """As files would hold them."""
        if not self._described:
            raise CheckpointError("this model was put together by hand, and nothing says which configuration it has: write it "
                                  "with lamina.save(model, path, config=...).")
        if self._prepacking is Int8Linear:
            raise CheckpointError("the weights of this model are rounded to 8 bits. Load it without quantize to prune or save "
                                  "it.")
        return [replace(own, weights=self._weights(number)) for number, own in enumerate(self._described)]

    def _weights(self, number: int) -> dict[str, Tensor]:
        model = self.models[number]
        if is_prepacked(model):
            model = copy.deepcopy(model)
            unpack_(model)
        weights = {name: weight.detach().cpu() for name, weight in model.named_parameters()}
        masters = self._masters[number] if self._masters else {}
        # A weight that somebody changed since it was loaded is written as it is now.
        return {name: masters[name] if name in masters and torch.equal(masters[name].cpu().to(weight.dtype), weight)
                else weight.float() for name, weight in weights.items()}

    def _only(self, what: str) -> M:
        if len(self.models) > 1:
            raise ConfigError(f"{what}() is for one model, and this is an ensemble of {len(self.models)}. Load one of them.")
        return self.models[0]

    # -- depth

    def active_layers(self, depth: object) -> ActiveLayers:
        """The layers that run at a depth, written as for `depth=` of `Translator.translate`.

        >>> model.active_layers("full") == model.active_layers({"encoder": 1, "decoder": 1})
        True
        """
        parsed = parse_depth(depth)
        if parsed is None:
            raise ConfigError("the depth auto is not a choice of layers: a cascade makes that choice for each sentence.")
        active = active_layers(parsed, self.models)
        if active != ALL_LAYERS:
            for checkpoint in self._described:
                check_prunable(checkpoint)
        return active

    def cascade_of(self, depth: object, cascade: Cascade | str | Path | None) -> Cascade | None:
        """What the depth "auto" does, for this very model; None for any other depth.

        >>> model.cascade_of("full", None) is None
        True
        """
        if parse_depth(depth) is not None:
            if cascade is not None:
                raise ConfigError('a cascade has no effect at a depth of its own. Write depth="auto", or leave cascade out.')
            return None
        if cascade is None:
            raise ConfigError("the depth auto needs a cascade: choose a threshold with `lamina calibrate`, and pass "
                              "cascade=FILE.")
        found = cascade if isinstance(cascade, Cascade) else Cascade.load(cascade)
        found.check(self.digest)
        self.active_layers(found.chosen_depth)
        return found

    @property
    def digest(self) -> str:
        """A fingerprint of the weights and the configuration: models with the same one compute the same, in any precision.

        >>> model.digest == lamina.load("checkpoint_best.pt", device="cpu").digest
        True
        """
        # Computed again only where a weight has changed since: each call with a cascade asks.
        state = (self._prepacking, *((weight.data_ptr(), weight._version, weight.dtype) for model in self.models
                                     for weight in model.parameters()))
        if self._digest is None or self._digest[0] != state:
            self._digest = state, self._computed_digest()
        return self._digest[1]

    def _computed_digest(self) -> str:
        found = hashlib.sha256()
        for number, model in enumerate(self.models):
            own = [dict(self._described[number].config)] if self._described else []
            found.update(json.dumps([*own, self._prepacking is Int8Linear], sort_keys=True, default=str).encode())
            masters = self._masters[number] if self._masters else {}
            for name, weight in model.named_parameters():
                found.update(name.encode())
                found.update(masters.get(name, weight).detach().float().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]

    # -- states

    @torch.no_grad()
    def _states(self, rows: Sequence[np.ndarray], tokens: list[list[str]], layers: Layers,
                run: Callable[[M, Tensor], object], batch_size: int | None) -> States:
        """`run` passes a batch of ids through a model; of the first stack that it passes through, the states are kept."""
        model = self._only("encode")
        if not rows:
            raise ConfigError("there is no text to encode: the list is empty.")
        stack = next(iter(stacks_of(model).values()))
        wanted = _layer_numbers(layers, len(stack.layers))
        width = max((len(row) for row in rows), default=0)
        finals: list[Tensor] = [torch.empty(0)] * len(rows)
        states: list[list[Tensor]] = [[] for _ in rows]
        for indices in length_batches(rows, None, batch_size):
            ids = torch.from_numpy(pad_rows([rows[index] for index in indices], width)).to(self.device)
            with _watched(stack, wanted) as seen:
                run(model, ids)
            for place, index in enumerate(indices):
                finals[index] = seen.final[place]
                states[index] = [seen.states[number][place] for number in wanted]
        mask = torch.tensor([[place < len(row) for place in range(width)] for row in rows], device=self.device)
        return States(torch.stack(finals), tuple(map(torch.stack, zip(*states, strict=True))), mask, tokens)


class _Seen:
    """What one thread's pass through a stack left behind."""

    def __init__(self) -> None:
        self.states: dict[int, Tensor] = {}
        self.final = torch.empty(0)


@contextmanager
def _watched(stack: LayerStack, wanted: Collection[int]) -> Iterator[_Seen]:
    """Passes of other threads go by unseen."""
    seen, own_thread = _Seen(), threading.get_ident()

    def is_own() -> bool:
        return threading.get_ident() == own_thread

    def enter(_: nn.Module, inputs: tuple[object, ...]) -> None:
        if is_own() and 0 in wanted:
            seen.states[0] = inputs[0].input  # type: ignore[attr-defined]

    def leave(_: nn.Module, inputs: object, output: object) -> None:
        if is_own():
            seen.final = output.final  # type: ignore[attr-defined]

    def after(number: int) -> Callable[[nn.Module, object, Tensor], None]:
        def hook(_: nn.Module, inputs: object, output: Tensor) -> None:
            if is_own():
                seen.states[number] = output

        return hook

    hooks = [stack.register_forward_pre_hook(enter), stack.register_forward_hook(leave),
             *(stack.layers[number - 1].register_forward_hook(after(number)) for number in wanted if number)]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _layer_numbers(layers: Layers, depth: int) -> list[int]:
    if layers == "all":
        return list(range(depth + 1))
    if layers == "last":
        return []
    numbers = [layers] if isinstance(layers, int) else list(layers)
    for number in numbers:
        if not isinstance(number, int) or not -depth - 1 <= number <= depth:
            raise ConfigError(f"layers is {layers!r}; it must be \"all\", \"last\", or numbers from 0, the stack's input, to "
                              f"{depth}.")
    return [number % (depth + 1) for number in numbers]


def _short_number(number: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
