"""What an encoder alone is asked."""

import torch
from torch.nn import functional as F

from lamina.nn.embedding import TokenTable
from lamina.nn.encoder_heads import MaskedHead, SentenceHead


def test_the_masked_head_is_its_formula():
    torch.manual_seed(0)
    table = TokenTable(9, 6, pad_id=1)
    torch.nn.init.normal_(table.weight)
    head, x = MaskedHead(table, F.gelu), torch.randn(2, 3, 6)
    torch.nn.init.normal_(head.bias)
    inner = F.layer_norm(F.gelu(head.dense(x)), (6,), head.norm.weight, head.norm.bias)
    torch.testing.assert_close(head.logits(x), inner @ table.weight.t() + head.bias)


def test_the_sentence_head_reads_the_first_token():
    torch.manual_seed(0)
    head, x = SentenceHead(6, 3, torch.tanh, dropout_p=0.5).eval(), torch.randn(2, 4, 6)
    expected = head.out_proj(torch.tanh(head.dense(x[:, 0])))
    torch.testing.assert_close(head(x), expected)
    x[:, 1:] = 0
    torch.testing.assert_close(head(x), expected)
    assert not torch.equal(head.train()(x), expected)
