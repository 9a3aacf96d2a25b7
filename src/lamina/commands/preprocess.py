"""`lamina preprocess`: text in, data folder out."""

from __future__ import annotations

from lamina import console
from lamina.config.preprocess_options import PreprocessConfig
from lamina.preprocess.folder_summary import summary, warnings
from lamina.preprocess.pipeline import ModelTexts, make_data_folder


def run(config: PreprocessConfig) -> None:
    report = make_data_folder(config, console.progress, like=_like(config))
    for line in summary(report):
        print(line)
    for line in warnings(report, config):
        console.warn(line)
    print(f"| wrote {config.data_folder}")


def _like(config: PreprocessConfig) -> ModelTexts | None:
    if config.like is None:
        return None
    # Here, not above: nothing else of this command waits for torch.
    from lamina.interop.any_format import texts_like

    return texts_like(config, console.notice)
