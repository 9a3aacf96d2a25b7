"""What `lamina calibrate` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config import joining
from lamina.config.chosen_depth import Depth, parse_depth
from lamina.config.generate_options import GenerateConfig, GenerateData, ModelFiles, OutputConfig
from lamina.config.plug_in_options import PlugInConfig
from lamina.config.search_options import SearchConfig
from lamina.errors import ConfigError
from lamina.fields import REQUIRED, check, flag, part


@dataclass(frozen=True, kw_only=True)
class CalibratedFiles(ModelFiles):
    """Model."""

    path: str = flag(REQUIRED, "checkpoint of a model that was trained with LayerDrop; several, separated by colons, are an "
                               "ensemble", name="model", positional=True)


@dataclass(frozen=True, kw_only=True)
class CalibrationData(GenerateData):
    """Data."""

    subset: str = flag("valid", "split to choose the threshold on", name="gen-subset")


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig:
    """Calibration."""

    files: CalibratedFiles = part(CalibratedFiles)
    data: CalibrationData = part(CalibrationData)
    depths: tuple[str, ...] = flag(("half",), "layers that translate first: half, or so many of encoder and decoder as in 6-2; "
                                              "of several depths, the one with the fastest cascade is chosen", name="depth",
                                   is_list=True, metavar="DEPTH")
    max_loss: float = flag(0.2, "BLEU that the cascade may lose on these data, against all layers", name="max-loss")
    search: SearchConfig = part(SearchConfig)
    remove_bpe: str | None = flag(None, f"join subwords at this mark before BLEU: {joining.HELP}", metavar="[MARK]",
                                  bare_value=joining.BPE_MARK, aliases=("post-process",))
    is_detokenized: bool = flag(False, "score detokenized text with sacreBLEU's 13a tokenizer instead of tokens as they stand",
                                name="sacrebleu")
    output: str | None = flag(None, "file to write; beside the checkpoint, where `generate --cascade` and `serve` find it, if "
                                    "left out", metavar="FILE")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        joining.check_joiner(self.remove_bpe)
        check(self.max_loss >= 0.0, f"--max-loss is {self.max_loss}; it must be 0 or more, in points of BLEU.")
        check(bool(self.depths), "--depth is empty; name the layers that translate first, such as half.")
        check(not self.search.sampling, "--sampling draws at random, and a draw that is sure is not a good one. Leave it out.")
        check(not self.search.uses_padded_width,
              "--max-len-from-padded-width makes results depend on the batch, and a cascade changes batches. Leave it out.")
        _ = self.parsed_depths, self.generation

    @property
    def parsed_depths(self) -> dict[str, Depth]:
        found = {}
        for text in self.depths:
            depth = parse_depth(text)
            if depth in (None, Depth()):
                raise ConfigError(f"--depth {text} is no depth that a cascade can begin with. Name layers: half, or 6-2.")
            found[text] = depth
        return found  # type: ignore[return-value]

    @property
    def generation(self) -> GenerateConfig:
        """How the split is translated."""
        return GenerateConfig(data=self.data, files=self.files, search=self.search, is_quiet=True,
                              output=OutputConfig(remove_bpe=self.remove_bpe), is_detokenized=self.is_detokenized)
