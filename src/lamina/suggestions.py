"""What somebody probably meant who wrote a name that we do not know."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# What other toolkits call our options; of several the first that is known counts.
ELSEWHERE = {
    "batch-tokens": ("max-tokens",),
    "beam-size": ("beam",),
    "device": ("cpu",),
    "do-sample": ("sampling",),
    "early-stopping": ("patience",),
    "eval-steps": ("validate-interval-updates",),
    "gradient-accumulation-steps": ("update-freq",),
    "label-smoothing-factor": ("label-smoothing",),
    "logging-steps": ("log-interval",),
    "max-grad-norm": ("clip-norm",),
    "max-length": ("max-len-b",),
    "max-new-tokens": ("max-len-b",),
    "max-steps": ("max-update",),
    "num-beams": ("beam",),
    "num-epochs": ("max-epoch",),
    "num-return-sequences": ("nbest",),
    "num-train-epochs": ("max-epoch",),
    "output-dir": ("save-dir", "destdir"),
    "per-device-train-batch-size": ("batch-size",),
    "repetition-penalty": ("no-repeat-ngram-size",),
    "report-to": ("tracker",),
    "save-steps": ("save-interval-updates",),
    "top-k": ("sampling-topk",),
    "top-p": ("sampling-topp",),
    "warmup-steps": ("warmup-updates",),
}


def suggestion(name: str, known: Iterable[str]) -> str:
    """' Did you mean --max-tokens?', or nothing where no option comes close."""
    names = list(known)
    bare = name.lstrip("-").replace("_", "-")
    meant = [own for own in ELSEWHERE.get(bare, ()) if own in names]
    close = meant or difflib.get_close_matches(name.lstrip("-"), names, n=1, cutoff=0.6)
    return f" Did you mean --{close[0]}?" if close else ""
