"""Is one system better than another, or luckier? Paired bootstrap resampling (Koehn 2004) through sacreBLEU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Comparison(NamedTuple):
    """A system against a baseline on the same sentences, by one metric."""

    metric: str
    score: float
    baseline: float
    p_value: float  # chance of a difference as large between systems that are equally good

    @property
    def figures(self) -> dict[str, float]:
        return {"score": self.score, "baseline": self.baseline, "difference": self.score - self.baseline, "p": self.p_value}

    @property
    def text(self) -> str:
        return (f"{self.metric} {self.score:.2f} against {self.baseline:.2f} ({self.score - self.baseline:+.2f}, "
                f"p = {self.p_value:.4f})")


def paired_bootstrap(hypotheses: Sequence[str], baseline: Sequence[str], references: Sequence[Sequence[str]],
                     metrics: Mapping[str, Any], num_samples: int) -> list[Comparison]:
    """`metrics` are sacreBLEU's, by the name to print; draws are the same each time."""
    from sacrebleu.significance import PairedTest

    assert all(len(texts) == len(hypotheses) for texts in (baseline, *references)), "sentence N belongs to sentence N"
    systems: Any = [("baseline", list(baseline)), ("system", list(hypotheses))]
    test = PairedTest(systems, dict(metrics), [list(texts) for texts in references], test_type="bs", n_samples=num_samples)
    # By sacreBLEU's own names (chrF2), in the order of the metrics.
    columns: Any = [column for name, column in test()[1].items() if name != "System"]
    # Of equal scores sacreBLEU would say the opposite of what is so: p counts differences that are larger than none.
    return [Comparison(name, system.score, base.score, 1.0 if system.score == base.score else system.p_value)
            for name, (base, system) in zip(metrics, columns, strict=True)]
