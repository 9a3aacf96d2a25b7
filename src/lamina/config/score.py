"""What `lamina score` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.fields import REQUIRED, check, flag

METRICS = ("bleu", "chrf", "ter")
STANDARD_INPUT = "-"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Score."""

    hypotheses: str = flag(STANDARD_INPUT, "translations, one a line; - is standard input", name="sys", aliases=("-s",),
                           metavar="FILE")
    references: tuple[str, ...] = flag(REQUIRED, "references, one a line; several files give each translation several",
                                       name="ref", aliases=("-r",), is_list=True, metavar="FILE")
    metrics: tuple[str, ...] = flag(("bleu",), f"what to measure: {', '.join(METRICS)}, or several, separated by commas",
                                    name="metric")
    order: int = flag(4, "longest n-gram of BLEU", aliases=("-o",))
    ignore_case: bool = flag(False, "compare in lower case (TER always does)")
    is_detokenized: bool = flag(False, "the text is detokenized: let sacreBLEU tokenize it (13a) for BLEU; without this, words "
                                "are what white space separates", name="sacrebleu")
    is_by_sentence: bool = flag(False, "a line for each sentence, BLEU smoothed by adding one, instead of one for the corpus",
                                name="sentence-bleu")

    def __post_init__(self) -> None:
        check(bool(self.metrics), f"--metric is empty; choose from {', '.join(METRICS)}.")
        for metric in self.metrics:
            check(metric in METRICS, f"--metric is {metric!r}; it must be one of {', '.join(METRICS)}, or several of them "
                                     "separated by commas.")
        check(len(set(self.metrics)) == len(self.metrics), "--metric names one of them twice.")
        check(self.order >= 1, f"--order is {self.order}; it must be at least 1.")
        check([self.hypotheses, *self.references].count(STANDARD_INPUT) <= 1,
              "standard input (-) can be read once only: name files for the others (--sys is - by default).")
        for name, is_set in (("order", self.order != 4), ("sacrebleu", self.is_detokenized)):
            check("bleu" in self.metrics or not is_set,
                  f"--{name} has no effect without BLEU. Add bleu to --metric, or leave --{name} out.")
