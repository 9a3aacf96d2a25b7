"""`lamina fold`: a plain Transformer from one with scaled residuals."""

from __future__ import annotations

from pathlib import Path

from lamina import console
from lamina.config.tool_options import FoldConfig


def run(config: FoldConfig) -> None:
    # Here, not above: a missing --output is refused without loading torch.
    from lamina.checkpoint.folding import fold_checkpoint
    from lamina.checkpoint.format import save_checkpoint
    from lamina.checkpoint.output_file import check_output
    from lamina.interop.any_format import load_any

    path, output = Path(config.checkpoint), Path(config.output)
    checkpoint = load_any(path, notice=console.notice)
    check_output(output, [path])
    folded = fold_checkpoint(checkpoint)
    save_checkpoint(output, folded)
    print(f"| folded {checkpoint.config['init-type']} residuals of {path} into plain ones")
    print(f"| wrote {output}")
