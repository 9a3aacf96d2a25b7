"""The analyses on a GPU give the processor's numbers."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from lamina.analysis.embeddings import aligned_words, similarity, spectrum, token_tables
from lamina.analysis.fusion_weights import fusion_weights, gates, mixes_hard, source_attention
from lamina.analysis.hiding import Judge, masks_of, measure_masks
from lamina.metrics.bleu import Bleu
from tiny import FUSIONS, batch_of, tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def analyses(model, batch):
    judge = Judge(model, [batch], beam=2, bleu=Bleu(is_tokenized=True),
                  text_of=lambda ids, is_reference=False: " ".join(map(str, ids)))
    masked = measure_masks(masks_of(model), judge.quality)
    weights = fusion_weights(model)
    yield from (quality.loss for quality in (masked.whole, *masked.without.values()))
    yield from (quality.bleu.score for quality in (masked.whole, *masked.without.values()))
    yield weights.shares if weights else 0.0
    yield gates(model, [batch]).values if mixes_hard(model) else 0.0
    yield source_attention(model, batch.source[:1], batch.target_in[:1]).weights
    pairs = aligned_words(model, [batch])
    yield pairs
    yield similarity(model, pairs, seed=1).random
    yield from (spectrum(table).values for table in token_tables(model).values())


@pytest.mark.parametrize("fusion", [*FUSIONS, "none"])
def test_numbers_match_the_cpu(fusion):
    model, batch = tiny_model(**FUSIONS.get(fusion, {})), batch_of(slice(None))
    on_gpu = analyses(deepcopy(model).cuda(), batch.to(torch.device("cuda")))
    for expected, found in zip(analyses(model, batch), on_gpu, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
