"""BLEU through sacreBLEU."""

from __future__ import annotations

from collections.abc import Sequence


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, is_tokenized: bool = False) -> float:
    """On detokenized text (13a), or on tokens as they stand."""
    import sacrebleu

    tokenize = "none" if is_tokenized else "13a"
    # force: sacreBLEU otherwise warns of tokenized input, which is what is asked for.
    return sacrebleu.corpus_bleu(hypotheses, [references], tokenize=tokenize, force=True).score
