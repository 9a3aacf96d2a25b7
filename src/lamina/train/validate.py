"""How good is the model now: loss, perplexity and, if asked, BLEU."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch

from lamina.config.decode import SearchConfig
from lamina.config.train import ValidationConfig
from lamina.data.batching import Batch
from lamina.decode.beam import Search
from lamina.metrics.bleu import corpus_bleu
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.tasks.translation import Translation
from lamina.train.loss import label_smoothed_loss

# A model that has learned little yet would babble up to any limit; a translation seldom needs twice its source's length.
GREEDY = SearchConfig(beam=1, max_length_factor=2.0, max_length_offset=20)


@torch.no_grad()
def validation_loss(model: EncoderDecoder, batches: Iterable[Batch], smoothing: float) -> dict[str, float]:
    """Per token, in bits, as the references print it."""
    model.eval()
    loss = nll = torch.zeros((), dtype=torch.float64)
    num_tokens = 0
    for batch in batches:
        sums = label_smoothed_loss(model(batch.source, batch.target_in), model.output_weight, batch.target_out,
                                   smoothing=smoothing, pad_id=model.pad_id)
        loss, nll = loss.to(sums.loss.device) + sums.loss, nll.to(sums.nll.device) + sums.nll
        num_tokens += batch.num_target_tokens
    return bits_per_token(loss.item(), nll.item(), num_tokens)


def bits_per_token(loss_sum: float, nll_sum: float, num_tokens: int) -> dict[str, float]:
    loss, nll = (value / num_tokens / math.log(2) for value in (loss_sum, nll_sum))
    return {"loss": loss, "nll_loss": nll, "ppl": perplexity(nll)}


def perplexity(bits: float) -> float:
    return 2.0**bits if bits < 1000 else math.inf


class Sample(NamedTuple):
    """A translation to look at."""

    source: str
    hypothesis: str
    reference: str


def validation_bleu(model: EncoderDecoder, batches: Iterable[Batch], task: Translation,
                    config: ValidationConfig) -> tuple[float, Sample]:
    """BLEU of greedy translations, and one of them."""
    model.eval()
    search = Search([model], GREEDY)
    hypotheses, references = [], []
    sample = None
    for batch in batches:
        texts = [task.target_text(found[0].ids, config.remove_bpe) for found in search.run(batch.source)]
        answers = [task.target_text(row, config.remove_bpe, is_reference=True) for row in batch.target_out.tolist()]
        hypotheses += texts
        references += answers
        if sample is None:
            source = task.subwords[0].decode(task.vocabularies[0].decode(batch.source[0].tolist()))
            sample = Sample(source, texts[0], answers[0])
    assert sample is not None, "a feed has at least one batch"
    return corpus_bleu(hypotheses, references, is_tokenized=config.is_tokenized), sample
