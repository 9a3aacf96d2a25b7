"""What `lamina score` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.config.metric_options import check_has_use, check_metric_options, chosen_metrics, metrics_that
from lamina.config.plug_in_options import PlugInConfig
from lamina.fields import check, every, flag, part
from lamina.parts.contracts import EDITS, REFERENCES, SOURCES, Metric
from lamina.registry import register

STANDARD_INPUT = "-"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Score."""

    hypotheses: str = flag(STANDARD_INPUT, "translations, one per line; - is standard input", name="sys", aliases=("-s",),
                           metavar="FILE")
    references: tuple[str, ...] = flag((), "references, one per line; several files give each translation several; needed by "
                                       "all but m2 and errant", name="ref", aliases=("-r",), is_list=True, metavar="FILE")
    metrics: tuple[str, ...] = flag(("bleu",), "what to measure", name="metric", choices=register.metric,
                                    metavar="NAME[,NAME..]",
                                    paper="Lin 2004; Napoles et al. 2015; Dahlmeier and Ng 2012; Bryant et al. 2017")
    source: str | None = flag(None, "what was corrected, one sentence per line: GLEU needs it", metavar="FILE")
    m2: str | None = flag(None, "annotators' edits for --metric m2 and errant, in the format of the CoNLL-2014 task",
                          metavar="FILE")
    parts: tuple[Metric, ...] = every(register.metric)
    ignore_case: bool = flag(False, "compare in lower case (TER always does)")
    is_detokenized: bool = flag(False, "the text is detokenized: let sacreBLEU tokenize it (13a) for BLEU; without this, words "
                                "are what white space separates", name="sacrebleu")
    is_by_sentence: bool = flag(False, "a line for each sentence, BLEU smoothed by adding one, instead of one for the corpus",
                                name="sentence-bleu")
    baseline: str | None = flag(None, "translations of another system, to compare with by paired bootstrap: the difference, "
                                "and the chance p of one as large between equal systems", metavar="FILE", paper="Koehn 2004")
    num_samples: int = flag(1000, "test sets to draw from the sentences for it", name="bootstrap-samples", needs="baseline")
    json: str | None = flag(None, "write the figures to this file too, unrounded, as one JSON object", metavar="FILE",
                            needs="!sentence-bleu")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check_metric_options(self.metrics, self.parts, register.metric)
        check(len(set(self.metrics)) == len(self.metrics), "--metric names one of them twice.")
        chosen = self.chosen
        comparing = [metric.name for metric in chosen if REFERENCES in metric.needs]
        check(bool(self.references) or not comparing, f"--ref is needed: {''.join(comparing[:1])} compares with references.")
        check(not self.references or bool(comparing),
              f"--ref has no effect on {self.metrics[0].upper()}, {self._why_no_references()}. Leave it out.")
        whole = [name for name, kind in register.metric.items() if not kind.judges_sentences()]
        check(not (self.is_by_sentence and set(self.metrics) & set(whole)),
              f"--sentence-bleu has no meaning for {' and '.join(whole)}, which judge a file as a whole. Leave it out.")
        inputs = [self.hypotheses, *self.references,
                  *(path for path in (self.source, self.m2, self.baseline) if path is not None)]
        check(inputs.count(STANDARD_INPUT) <= 1,
              "standard input (-) can be read once only: name files for the others (--sys is - by default).")
        check(self.num_samples >= 1, f"--bootstrap-samples is {self.num_samples}; it must be at least 1.")
        resampled = metrics_that(are_of_sacrebleu=True)
        check(self.baseline is None or (set(self.metrics) <= set(resampled) and not self.is_by_sentence),
              f"--baseline compares by {', '.join(resampled)}, over whole files. Leave it out, or choose one of them.")
        if self.is_detokenized:
            check_has_use("sacrebleu", metrics_that(cut_words=True), self.metrics)
        for option, path, need, why in (("source", self.source, SOURCES, "judges what became of the source: give its file with "
                                                                         "--source"),
                                        ("m2", self.m2, EDITS, "compares with annotated edits: give --m2 FILE")):
            for metric in chosen:
                check(path is not None or need not in metric.needs, f"--metric {metric.name} {why}.")
            if path is not None:
                check_has_use(option, metrics_that(need=need), self.metrics)

    @property
    def chosen(self) -> list[Metric]:
        return chosen_metrics(self.metrics, self.parts)

    def _why_no_references(self) -> str:
        return "whose references are the edits of --m2" if EDITS in self.chosen[0].needs else "which needs no references"
