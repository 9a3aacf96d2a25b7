"""What Admin is for, small enough for one core."""

import math

import torch

from lamina.config.model import DropoutConfig, EmbeddingConfig, ModelConfig, StackConfig
from lamina.config.train_options import OptimizationConfig, PrecisionConfig
from lamina.data.batching import Batch
from lamina.init.admin import profile_omegas_
from lamina.models.build import build_model
from lamina.parts.residuals import Admin, DefaultInit
from lamina.parts.update_rules import Adam
from lamina.text.vocabulary import EOS
from lamina.training.update import Updater

VOCABULARY_SIZE, FIRST_WORD = 24, 4
LR, UPDATES, LAST = 1e-3, 100, 20


def copying(seed):
    """Sixteen sentences of seven words, to be said again."""
    words = torch.randint(FIRST_WORD, VOCABULARY_SIZE, (16, 8), generator=torch.Generator().manual_seed(seed))
    words[:, -1] = EOS
    target_in = torch.cat([torch.full((16, 1), EOS), words[:, :-1]], dim=1)
    return Batch(words, target_in, words.clone(), words.numel(), words.numel(), tuple(range(16)))


def losses(init):
    torch.manual_seed(1)
    stack = StackConfig(num_layers=24, model_dim=32, ffn_dim=64, num_heads=2)
    embedding = EmbeddingConfig(share_all=True, max_source_positions=16, max_target_positions=16)
    model = build_model(ModelConfig(encoder=stack, decoder=stack, dropout=DropoutConfig(dropout_p=0.0), embedding=embedding,
                                    init=init), VOCABULARY_SIZE, VOCABULARY_SIZE)
    if isinstance(init, Admin):
        profile_omegas_(model.train(), [lambda: model(*copying(0).inputs)])
    updater = Updater(model, OptimizationConfig(optimizer=Adam(betas=(0.9, 0.98)), clip_norm=0.0), PrecisionConfig())
    results = [updater.update([copying(number)], LR, number) for number in range(UPDATES)]
    return [result.numbers[0].item() / result.num_tokens for result in results]


def test_admin_trains_where_post_norm_stalls():
    """24 layers a side, Adam at a constant 1e-3, no warm-up. Post-LN learns which words there are and no more: its loss stays
    at that of guessing among them, ln 20 = 3.0. Admin, which begins with the same weights, has begun to copy."""
    post_norm, admin = (sum(losses(init)[-LAST:]) / LAST for init in (DefaultInit(), Admin()))
    guessing = math.log(VOCABULARY_SIZE - FIRST_WORD)
    assert post_norm > guessing - 0.1
    assert admin < guessing - 0.5
