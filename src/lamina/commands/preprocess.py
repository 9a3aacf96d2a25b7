"""`lamina preprocess`: text in, data folder out."""

from __future__ import annotations

from lamina import console
from lamina.config.preprocess_options import PreprocessConfig
from lamina.preprocess.folder_summary import summary, warnings
from lamina.preprocess.pipeline import make_data_folder


def run(config: PreprocessConfig) -> None:
    report = make_data_folder(config, console.progress)
    for line in summary(report):
        print(line)
    for line in warnings(report, config):
        console.warn(line)
    print(f"| wrote {config.data_folder}")
