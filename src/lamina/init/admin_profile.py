"""Admin's omegas before update 1: from a profile, or measured on the first batches (Liu et al. 2020, §4.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lamina.errors import ConfigError, DataError
from lamina.files import whole_file
from lamina.init.admin import Profile, profile_from_text, profile_omegas_, profile_to_text, set_omegas_
from lamina.parts.contracts import Beginning

PROFILE_NAME = "profile.ratio.init"  # as fairseq calls it
Note = Callable[[str], None]


def measure_and_fill_(beginning: Beginning, *, num_batches: int, counts_pads: bool, is_written: bool = False) -> None:
    """Before anything else touches the weights: they are still float32, whatever training computes in."""
    profile = measure_profile(beginning.model, beginning.first_batches(num_batches), beginning.seed, beginning.note,
                              counts_pads=counts_pads)
    if is_written:
        _keep_profile(profile, beginning.save_dir, beginning.note)
    set_omegas_(beginning.model, profile)


def read_and_fill_(beginning: Beginning, path: Path) -> None:
    profile = read_profile(path, beginning.model)
    beginning.note(f"Admin: omegas taken from {path}: {_describe(profile)}")
    set_omegas_(beginning.model, profile)


def measure_profile(model: nn.Module, batches: Sequence[Any], seed: int, note: Note, *, counts_pads: bool) -> Profile:
    """On these batches, with dropout as in training, but drawn aside: training draws what it would have drawn."""
    was_training, device = model.training, next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model.train()
        forwards = [lambda batch=batch: model(*batch.inputs) for batch in batches]  # type: ignore[misc]
        profile = profile_omegas_(model, forwards, counts_pads=counts_pads)
    model.train(was_training)
    num_tokens = sum(batch.num_target_tokens for batch in batches)
    note(f"Admin: profiled {len(batches)} {'batch' if len(batches) == 1 else 'batches'} of {num_tokens} target tokens in "
         f"float32, padding {'counted' if counts_pads else 'left out'}")
    note(f"Admin: {_describe(profile)}")
    return profile


def _describe(profile: Profile) -> str:
    return ", ".join(f"omega {min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} {name} sub-layers"
                     for name, ratios in profile.items())


def _keep_profile(profile: Profile, save_dir: Path, note: Note) -> None:
    """In the save folder, as a run's own, and in the current one, where fairseq's loops over seeds share it."""
    own, shared = save_dir / PROFILE_NAME, Path(PROFILE_NAME)
    write_profile(own, profile)
    note(f"Admin: wrote {own}; the same line with --init-type adaptive trains with it")
    if own.resolve() == shared.resolve():
        return
    try:
        write_profile(shared, profile)
    except DataError as error:
        note(f"Admin: in the current folder, {error} For another --save-dir, name it: --admin-profile {own}")
    else:
        note(f"Admin: wrote {shared} to the current folder too, for runs there whose --save-dir has none")


def find_profile(given: str | None, save_dir: Path, note: Note) -> Path | None:
    """The file that was named, or the one that lies where a profile is written."""
    if given is not None:
        path = Path(given)
        if not path.is_file():
            raise ConfigError(f"--admin-profile: there is no file {path}. Write one with --init-type adaptive-profiling, or "
                              "take --init-type admin, which needs none.")
        return path
    if (save_dir / PROFILE_NAME).is_file():
        return save_dir / PROFILE_NAME
    here = Path(PROFILE_NAME)
    if not here.is_file():
        note(f"Admin: there is no {PROFILE_NAME} in {save_dir} or the current folder: profiling now, as --init-type "
             "adaptive-profiling does")
        return None
    note(f"Admin: no {PROFILE_NAME} in {save_dir}: taking the one in the current folder")
    return here


def read_profile(path: Path, model: nn.Module) -> Profile:
    try:
        return profile_from_text(path.read_text(encoding="utf-8"), model, str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as a profile: {error}.") from None


def write_profile(path: Path, profile: Profile) -> None:
    with whole_file(path) as part:
        part.write_text(profile_to_text(profile), encoding="utf-8")
