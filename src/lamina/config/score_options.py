"""What `lamina score` can be told."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.fields import check, flag

METRICS = ("bleu", "chrf", "ter", "rouge", "gleu", "m2", "errant")
# These compare with annotated edits, not with references.
OF_EDITS = ("m2", "errant")
# What reads a text beside hypothesis and reference goes through a file as a whole.
OF_FILES = ("gleu", *OF_EDITS)
# Those that resampled sentences are scored by.
OF_SACREBLEU = ("bleu", "chrf", "ter")
STANDARD_INPUT = "-"


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """Score."""

    hypotheses: str = flag(STANDARD_INPUT, "translations, one a line; - is standard input", name="sys", aliases=("-s",),
                           metavar="FILE")
    references: tuple[str, ...] = flag((), "references, one a line; several files give each translation several; needed by "
                                       "all but m2 and errant", name="ref", aliases=("-r",), is_list=True, metavar="FILE")
    metrics: tuple[str, ...] = flag(("bleu",), f"what to measure: {', '.join(METRICS)}, or several, separated by commas",
                                    name="metric",
                                    paper="Lin 2004; Napoles et al. 2015; Dahlmeier and Ng 2012; Bryant et al. 2017")
    source: str | None = flag(None, "what was corrected, one sentence a line: GLEU needs it", metavar="FILE")
    m2: str | None = flag(None, "annotators' edits for --metric m2 and errant, in the format of the CoNLL-2014 task",
                          metavar="FILE")
    uses_stemmer: bool = flag(False, "ROUGE on Porter's word stems", name="rouge-stemmer")
    separator: str | None = flag(None, "what separates the sentences of a summary, for ROUGE-Lsum; without it, they end at . ! "
                                 "or ? before white space", name="rouge-separator", metavar="TEXT")
    order: int = flag(4, "longest n-gram of BLEU", aliases=("-o",))
    ignore_case: bool = flag(False, "compare in lower case (TER always does)")
    is_detokenized: bool = flag(False, "the text is detokenized: let sacreBLEU tokenize it (13a) for BLEU; without this, words "
                                "are what white space separates", name="sacrebleu")
    is_by_sentence: bool = flag(False, "a line for each sentence, BLEU smoothed by adding one, instead of one for the corpus",
                                name="sentence-bleu")
    baseline: str | None = flag(None, "translations of another system, to compare with by paired bootstrap: the difference, "
                                "and the chance p of one as large between equal systems", metavar="FILE", paper="Koehn 2004")
    num_samples: int = flag(1000, "test sets to draw from the sentences for it", name="bootstrap-samples", needs="baseline")

    def __post_init__(self) -> None:
        check(bool(self.metrics), f"--metric is empty; choose from {', '.join(METRICS)}.")
        for metric in self.metrics:
            check(metric in METRICS, f"--metric is {metric!r}; it must be one of {', '.join(METRICS)}, or several of them "
                                     "separated by commas.")
        check(len(set(self.metrics)) == len(self.metrics), "--metric names one of them twice.")
        check(self.order >= 1, f"--order is {self.order}; it must be at least 1.")
        comparing = [metric for metric in self.metrics if metric not in OF_EDITS]
        check(bool(self.references) or not comparing, f"--ref is needed: {''.join(comparing[:1])} compares with references.")
        check(not self.references or bool(comparing),
              f"--ref has no effect on {self.metrics[0].upper()}, whose references are the edits of --m2. Leave it out.")
        check(not (self.is_by_sentence and set(self.metrics) & set(OF_FILES)),
              f"--sentence-bleu has no meaning for {' and '.join(OF_FILES)}, which judge a file as a whole. Leave it out.")
        inputs = [self.hypotheses, *self.references,
                  *(path for path in (self.source, self.m2, self.baseline) if path is not None)]
        check(inputs.count(STANDARD_INPUT) <= 1,
              "standard input (-) can be read once only: name files for the others (--sys is - by default).")
        check(self.num_samples >= 1, f"--bootstrap-samples is {self.num_samples}; it must be at least 1.")
        check(self.baseline is None or (set(self.metrics) <= set(OF_SACREBLEU) and not self.is_by_sentence),
              f"--baseline compares by {', '.join(OF_SACREBLEU)}, over whole files. Leave it out, or choose one of them.")
        for name, metric, is_set in (("order", "bleu", self.order != 4), ("sacrebleu", "bleu", self.is_detokenized),
                                     ("rouge-stemmer", "rouge", self.uses_stemmer),
                                     ("rouge-separator", "rouge", self.separator is not None),
                                     ("source", "gleu", self.source is not None)):
            check(metric in self.metrics or not is_set,
                  f"--{name} has no effect without {metric.upper()}. Add {metric} to --metric, or leave --{name} out.")
        check(self.separator != "", "--rouge-separator is empty; give the text that separates sentences, such as '<q>'.")
        check("gleu" not in self.metrics or self.source is not None,
              "--metric gleu judges what became of the source: give its file with --source.")
        for metric in set(self.metrics) & set(OF_EDITS):
            check(self.m2 is not None, f"--metric {metric} compares with annotated edits: give --m2 FILE.")
        check(self.m2 is None or bool(set(self.metrics) & set(OF_EDITS)),
              "--m2 has no effect without M2 or ERRANT. Add m2 or errant to --metric, or leave --m2 out.")
