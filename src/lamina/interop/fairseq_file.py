"""Checkpoint files of fairseq and its forks, as ones of ours, in memory.

From 0.9 on such a file holds `args` (an argparse.Namespace) or, later, `cfg` (a dictionary of sections), the parameters as
`model`, and what training needs to continue. It holds no dictionaries: those lie in the data folder, or beside the file.
"""

from __future__ import annotations

import argparse
import copy
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamina.checkpoint.format import Checkpoint, task_kind
from lamina.checkpoint.marks import readable_marks
from lamina.data.data_folder import dictionary_name
from lamina.errors import CheckpointError, ConfigError
from lamina.fields import flatten
from lamina.interop.fairseq import Described, copy_parameters_, describe_model, is_buffer
from lamina.pruning.cut import Keep, prune_checkpoint
from lamina.registry import register
from lamina.text.subword import Whitespace, load_subwords, subword_to_dict
from lamina.text.vocabulary import Vocabulary
from lamina.traits import CLASSES, DECODER_ONLY, ENCODER_ONLY, PAIRS

Notice = Callable[[str], object]


class Unread:
    """Takes the place of a reference's own class: its values are kept and nothing of it is run."""


# All that such files may name besides tensors and plain values. Meters are what 0.9 notes down about training's speed.
READABLE: tuple[type | tuple[type, str], ...] = (
    argparse.Namespace,
    *((Unread, f"fairseq.meters.{name}") for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")),
)

# Settings of a task that change what the model learned to predict: anything but these values is refused by name.
_ONLY_WITH: dict[str, tuple[Any, ...]] = {
    "future_target": (False, None),
    "past_target": (False, None),
    "add_bos_token": (False, None),
    "output_dictionary_size": (-1, None),
}
MARKS_KEY = "lamina_marks"  # of extra_state, in files that `lamina export` wrote
NO_LANGUAGE = "text"  # as tasks/language_modeling.py calls it
# What fairseq's optimizers remember of each weight, where ours remember the same.
_MOMENTS = {"adam": ("exp_avg", "exp_avg_sq"), "radam": ("exp_avg", "exp_avg_sq"), "nag": ("momentum_buffer",)}


@dataclass(frozen=True)
class DictionaryPlaces:
    """Where to look for dictionaries, in this order, and the languages, as far as somebody said them."""

    folders: tuple[Path, ...] = ()
    source_lang: str | None = None
    target_lang: str | None = None

    @classmethod
    def of(cls, *folders: str | Path | None, source_lang: str | None = None,
           target_lang: str | None = None) -> DictionaryPlaces:
        """Folders as flags name them: one, several with colons between them, or none."""
        names = [name for folder in folders if folder is not None for name in str(folder).split(":") if name]
        return cls(tuple(map(Path, names)), source_lang, target_lang)


def is_fairseq(content: Any) -> bool:
    return isinstance(content, dict) and isinstance(content.get("model"), Mapping) and ("args" in content or "cfg" in content)


def checkpoint_from_fairseq(content: Mapping[str, Any], path: Path, places: DictionaryPlaces, notice: Notice, *,
                            is_resumable: bool = True) -> Checkpoint:
    """The checkpoint that computes what the file's model computes, cut to the layers that its arguments name.

    A caller who only uses the model can do without the optimizer's state, which is twice its size.
    """
    args = flat_args(content)
    arch = str(args.get("arch") or "unknown")
    try:
        _check_task(args)
        if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content["model"].items()):
            raise CheckpointError("its model holds something else than parameters by name.")
        described = describe_model(args, content["model"])
        languages, vocabularies, subwords = _texts(described, args, path, places)
        model = described.build(tuple(map(len, vocabularies)))
    except (CheckpointError, ConfigError) as error:
        raise CheckpointError(f"{path} (fairseq, --arch {arch}): {error}") from None
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # Arguments are whatever the file says: of another type than fairseq's own, they may fail anywhere.
        raise CheckpointError(f"{path} (fairseq, --arch {arch}) is damaged or of an unknown kind: "
                              f"{_first_line(error)}") from None
    if arch not in register.arch and not arch.startswith(("transformer", "roberta")):
        notice(f"{path}: --arch {arch} is none that Lamina knows; it was read as a Transformer, which its parameters fit")
    checkpoint = Checkpoint(
        config={"task": described.task, "arch": arch, **flatten(described.config)},
        languages=languages,
        dictionaries=tuple(vocabulary.to_text() for vocabulary in vocabularies),
        subwords=tuple(subwords),
        weights={name: parameter.detach() for name, parameter in model.named_parameters()},
        training=_training(content, args, described, model, is_resumable=is_resumable),
        metrics=_metrics(content),
    )
    return checkpoint if described.keep == Keep() else prune_checkpoint(checkpoint, described.keep)


# -- arguments


def flat_args(content: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by their flat names, whichever way the file says them."""
    if content.get("args") is not None:
        return _plain(content["args"])
    sections = _plain(content["cfg"])
    flat: dict[str, Any] = {}
    # The model's own section has the last word.
    for name in sorted(sections, key=lambda name: name == "model"):
        section = _plain(sections[name])
        flat |= _flattened({key: value for key, value in section.items() if key != "_name"})
        if section.get("_name") is not None:
            flat["arch" if name == "model" else name] = section["_name"]
    return flat


def _plain(values: Any) -> dict[str, Any]:
    if isinstance(values, argparse.Namespace):
        return dict(vars(values))
    return dict(values) if isinstance(values, Mapping) else {}


def _flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"encoder": {"layers": 6}} as {"encoder_layers": 6}, the way newer configurations nest them."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flattened(value, f"{prefix}{name}_") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _check_task(args: Mapping[str, Any]) -> None:
    task = args.get("task")
    known = [kind.fairseq_task for kind in register.task.values() if kind.fairseq_task]
    if task is not None and task not in known:
        raise CheckpointError(f"this model was trained with task={task!r}, which Lamina does not have; it has "
                              f"{', '.join(known)}.")
    for name, accepted in _ONLY_WITH.items():
        if args.get(name) not in accepted:
            raise CheckpointError(f"this model was trained with {name}={args[name]!r}, which Lamina does not have.")


# -- dictionaries


def _texts(described: Described, args: Mapping[str, Any], path: Path, places: DictionaryPlaces,
           ) -> tuple[tuple[str, ...], list[Vocabulary], list[dict[str, Any]]]:
    """Languages, dictionaries and segmentations, one of each for every vocabulary of the task."""
    folders = [*places.folders, path.parent]
    languages: tuple[str, ...]
    kind = task_kind(described.task)
    if kind.has(PAIRS):
        languages = _languages(args, folders, places)
        found = [_dictionary(folders, dictionary_name(language)) for language in languages]
    elif kind.has(DECODER_ONLY):
        found = [_only_dictionary(folders)]
        languages = (found[0].name.removeprefix("dict").removesuffix("txt").strip(".") or NO_LANGUAGE,)
    elif kind.has(CLASSES):
        inputs = [folder / "input0" for folder in folders]
        found, languages = [_only_dictionary([*inputs, *folders])], ("input",)
        if described.config.classifier.num_classes > 1:
            found.append(_dictionary([folder / "label" for folder in folders], dictionary_name(None)))
            languages = ("input", "label")
    else:
        found, languages = [_only_dictionary(folders)], (NO_LANGUAGE,)
    vocabularies = [Vocabulary.load(file) for file in found]
    if kind.has(ENCODER_ONLY):
        vocabularies[0] = vocabularies[0].with_mask()
    _check_sizes(described, vocabularies, found)
    return languages, vocabularies, [_subword(file, language) for file, language in zip(found, languages, strict=True)]


def _languages(args: Mapping[str, Any], folders: Iterable[Path], places: DictionaryPlaces) -> tuple[str, str]:
    source, target = places.source_lang or args.get("source_lang"), places.target_lang or args.get("target_lang")
    if source and target:
        return source, target
    pattern = re.compile(r"[^.]+\.([^.-]+)-([^.-]+)\.\1\.idx")
    for folder in folders:
        pairs = {(match[1], match[2]) for file in folder.glob("*.idx") if (match := pattern.fullmatch(file.name))}
        pairs = {pair for pair in pairs if source in (None, pair[0]) and target in (None, pair[1])}
        if len(pairs) == 1:
            return pairs.pop()
    raise CheckpointError("it does not say its languages. Name them with --source-lang and --target-lang, or name the data "
                          "folder that it was trained on with --dict-dir.")


def _dictionary(folders: Iterable[Path], name: str) -> Path:
    folders = list(dict.fromkeys(folders))
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"such files hold no dictionaries, and there is no {name} in {_listed(folders)}. Name the folder "
                              "that has it with --dict-dir.")
    return file


def _only_dictionary(folders: list[Path]) -> Path:
    """dict.txt, or the only dict.LANG.txt."""
    for folder in folders:
        plain = folder / dictionary_name(None)
        files = [plain] if plain.is_file() else list(folder.glob("dict.*.txt"))
        if len(files) == 1:
            return files[0]
    return _dictionary(folders, dictionary_name(None))


def _listed(folders: Iterable[Path]) -> str:
    return " or ".join(str(folder) for folder in folders)


def _check_sizes(described: Described, vocabularies: list[Vocabulary], files: list[Path]) -> None:
    """Before the parameters are copied, whose shapes would tell the same less clearly."""
    kind = task_kind(described.task)
    stacks = ["encoder.sentence_encoder"] if kind.has(ENCODER_ONLY) else list(kind.stacks)
    for stack, vocabulary, file in zip(stacks, vocabularies, files, strict=False):
        table = described.state_dict.get(f"{stack}.embed_tokens.weight")
        if table is not None and table.size(0) != len(vocabulary):
            raise CheckpointError(f"it has {table.size(0)} embeddings, but the dictionary {file} has {len(vocabulary)} "
                                  "symbols. Name the folder of its own dictionaries with --dict-dir.")


def _subword(dictionary: Path, language: str) -> dict[str, Any]:
    """Text of a folder that fairseq made was segmented before; one that Lamina made says how."""
    stored = load_subwords(dictionary.parent)
    return subword_to_dict(stored.get(language, stored.get("", Whitespace())))


# -- what resuming needs


def _metrics(content: Mapping[str, Any]) -> dict[str, float]:
    loss = _plain(content.get("extra_state")).get("val_loss")
    return {"loss": float(loss)} if isinstance(loss, (int, float)) else {}


def _training(content: Mapping[str, Any], args: Mapping[str, Any], described: Described, model: nn.Module, *,
              is_resumable: bool) -> dict[str, Any]:
    """Progress, and the optimizer's state where ours has a place for it; otherwise `optimizer_problem` says why not."""
    history = content.get("optimizer_history") or [{}]
    last = _plain(history[-1]) if isinstance(history, list) else {}
    extra = _plain(content.get("extra_state"))
    training: dict[str, Any] = {**readable_marks(extra.get(MARKS_KEY)), "from": "fairseq",
                                "progress": {"updates": _count(last.get("num_updates"), 0),
                                             "epoch": _count(_plain(extra.get("train_iterator")).get("epoch"), 1)}}
    stored, kind = _plain(content.get("last_optimizer_state")), str(args.get("optimizer"))
    if not stored or not is_resumable:
        return training
    problem = "" if kind in _MOMENTS else f"--optimizer {kind} keeps another state here"
    if not problem:
        try:
            training |= {"optimizer": _optimizer_state(stored, kind, described, model), "optimizer_kind": kind,
                         "scale": {"value": torch.tensor(float(stored.get("loss_scale", 1.0))),
                                   "good_updates": torch.tensor(0.0)}}
        except CheckpointError as error:
            problem = str(error)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            problem = f"it is of an unknown kind ({_first_line(error)})"
    if problem:
        training["optimizer_problem"] = problem
    return training


def _count(value: Any, least: int) -> int:
    return max(value, least) if isinstance(value, int) else least


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200] or type(error).__name__


def _optimizer_state(stored: Mapping[str, Any], kind: str, described: Described, model: nn.Module) -> dict[str, Any]:
    """By our parameters' names. The references number theirs in the order of the state dict, each tensor once."""
    groups = stored.get("param_groups") or []
    state = stored.get("state") or {}
    if len(groups) != 1:
        raise CheckpointError(f"its optimizer has {len(groups)} groups of parameters")
    parameters = _numbered(described.state_dict)
    per_parameter = [state.get(number) for number in groups[0]["params"]]
    moments: dict[str, Any] = {}
    for name in _MOMENTS[kind]:
        values = {number: entry.get(name) for number, entry in enumerate(per_parameter) if entry}
        if not values or any(not isinstance(value, Tensor) for value in values.values()):
            raise CheckpointError(f"its optimizer state has no {name}")
        if len(per_parameter) == 1 and len(parameters) > 1:  # float16: one flat copy of all weights
            values = dict(enumerate(_split(values[0], list(parameters.values()))))
        elif len(per_parameter) != len(parameters):
            raise CheckpointError(f"its optimizer knows {len(per_parameter)} parameters and the model has {len(parameters)}")
        named = {own: values[number].float() for number, own in enumerate(parameters) if number in values}
        if any(tensor.shape != parameters[own].shape for own, tensor in named.items()):
            raise CheckpointError("its optimizer state has other shapes than its parameters")
        if kind == "nag":
            # There the velocity carries the learning rate and points downhill; ours is in units of the gradient.
            rate = groups[0].get("lr_old", groups[0]["lr"])
            if not rate:
                raise CheckpointError("its learning rate is 0, which its momentum is measured by")
            named = {own: tensor / -rate for own, tensor in named.items()}
        holder = copy.deepcopy(model)
        for parameter in holder.parameters():
            parameter.data.zero_()
        copy_parameters_(holder, named)
        moments[name] = {own: parameter.detach() for own, parameter in holder.named_parameters()}
    steps = [int(entry.get("step", 0)) for entry in per_parameter if entry]
    # Where layers were dropped, fairseq counts a layer's own steps; ours steps all of them.
    return {"step": torch.tensor(max(steps)), **moments}


def _numbered(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters in order: no buffers, and of tied ones the first."""
    seen: set[tuple[int, torch.Size]] = set()
    parameters = {}
    for name, tensor in state_dict.items():
        place = (tensor.data_ptr(), tensor.shape)
        if not is_buffer(name) and place not in seen:
            seen.add(place)
            parameters[name] = tensor
    return parameters


def _split(flat: Tensor, shapes: list[Tensor]) -> list[Tensor]:
    sizes = [math.prod(tensor.shape) for tensor in shapes]
    if flat.numel() != sum(sizes):
        raise CheckpointError(f"its optimizer knows {flat.numel()} numbers and the model has {sum(sizes)}")
    return [piece.view(tensor.shape) for piece, tensor in zip(flat.flatten().split(sizes), shapes, strict=True)]
