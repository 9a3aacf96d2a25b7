"""`lamina average`: one model from the weights of several checkpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from lamina import console
from lamina.config.tool_options import AverageConfig
from lamina.errors import CheckpointError, ConfigError


def run(config: AverageConfig) -> None:
    # Here, not above: options that exclude each other are refused without loading torch.
    from lamina.checkpoint.averaging import average_checkpoints
    from lamina.checkpoint.format import save_checkpoint
    from lamina.checkpoint.output_file import check_output
    from lamina.interop.any_format import load_any

    paths, output = choose_inputs(config), Path(config.output)
    check_output(output, paths)
    with console.progress("averaging", len(paths)) as advance:
        averaged = average_checkpoints(paths, advance=advance, note=console.warn,
                                       load=partial(load_any, is_resumable=False))
    save_checkpoint(output, averaged)
    noun = "checkpoint" if len(paths) == 1 else "checkpoints"
    print(f"| averaged {len(paths)} {noun}: {', '.join(map(str, paths))}")
    print(f"Finished writing averaged checkpoint to {output}.")  # to the letter: fairseq's scripts look for it


def choose_inputs(config: AverageConfig) -> list[Path]:
    """The checkpoints to average, in the order of their numbers or as named."""
    from lamina.checkpoint.averaging import BY_EPOCH, BY_UPDATE, newest_checkpoints
    from lamina.checkpoint.shards import is_sharded
    from lamina.interop.exported_folder import is_exported

    series, number = (BY_UPDATE, config.num_updates) if config.num_updates else (BY_EPOCH, config.num_epochs)
    paths = [Path(name) for name in config.inputs]
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise CheckpointError(f"--inputs: there is no {', '.join(map(str, missing))}.")
    if number is not None:
        (folder,) = paths
        if not folder.is_dir():
            raise ConfigError(f"{series.option} chooses from a folder, but --inputs {folder} is a file. Name its folder, or "
                              "leave the number out.")
        return newest_checkpoints(folder, series, number, config.upper_bound, console.warn)
    for path in paths:
        if path.is_dir() and not (is_exported(path) or is_sharded(path)):
            raise ConfigError(f"--inputs {path} is a folder: say how many of its checkpoints to average with "
                              f"{BY_EPOCH.option} or {BY_UPDATE.option}, or name the files.")
    return paths
