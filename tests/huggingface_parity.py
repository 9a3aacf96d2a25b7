"""What transformers computes, beside what Lamina computes of the same folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

import lamina
from huggingface_models import SENTENCES, transformers
from lamina.text.vocabulary import BOS, PAD

TARGETS = ["A SMALL BOAT", "THE OLD RIVER SINGS NEAR THE MOON", "BIRD", "ZEBRA"]


def quiet(_: str) -> None:
    """What is noticed is not asked here."""


def opened(folder: Path, **languages: str) -> tuple[Any, Any, Any]:
    """Tokenizer and model of theirs, and ours."""
    library = transformers()
    return (library.AutoTokenizer.from_pretrained(folder), library.AutoModelForSeq2SeqLM.from_pretrained(folder).eval(),
            lamina.load(folder, device="cpu", notice=quiet, **languages))


def names_of(tokenizer: Any, size: int) -> list[str]:
    """Of their target ids, as ours are called."""
    kind = type(tokenizer).__name__
    known = {"FSMTTokenizer": lambda: len(tokenizer.decoder), "M2M100Tokenizer": lambda: len(tokenizer.decoder) + 100}
    size_known = known.get(kind, lambda: len(tokenizer))()
    names = [tokenizer.decoder.get(number) if kind == "FSMTTokenizer" else tokenizer.convert_ids_to_tokens(number)
             for number in range(min(size_known, size))]
    return [*names, *(f"madeupword{number:04d}" for number in range(len(names), size))]


def our_ids(tokenizer: Any, model: Any, theirs: torch.Tensor) -> torch.Tensor:
    """Their ids as ours; their padding is our start of a target, where Marian starts from it."""
    start = BOS if type(tokenizer).__name__.startswith("Marian") else PAD
    names = names_of(tokenizer, int(theirs.max()) + 1)
    return torch.tensor([start if name == "<pad>" else model.vocabularies[1].id(name) for name in names])[theirs]


def in_double(theirs: Any, ours: Any) -> tuple[Any, Any]:
    """Copies that compute in float64: float32's own noise is as large as the difference that is allowed.

    FSMT makes positions in float32 whatever the model computes in, and fails: that pair stays as it is.
    """
    if type(theirs).__name__.startswith("FSMT"):
        return theirs, ours
    return copy.deepcopy(theirs).double(), copy.deepcopy(ours).double()


@torch.no_grad()
def check_log_probs(tokenizer: Any, theirs: Any, ours: Any, sources: list[str], targets: list[str],
                    labels: torch.Tensor | None = None) -> None:
    """Of the whole vocabulary, at every place of every target, in a padded batch.

    `labels`: their ids of the targets, where their tokenizer does not give them; its model then starts from </s>.
    """
    if labels is None:
        batch = tokenizer(sources, text_target=targets, return_tensors="pt", padding=True)
        labels = batch["labels"]
    else:
        start = torch.full_like(labels[:, :1], theirs.generation_config.decoder_start_token_id)
        batch = {**tokenizer(sources, return_tensors="pt", padding=True),
                 "decoder_input_ids": torch.cat([start, labels[:, :-1]], dim=1), "use_cache": False}
    theirs, own = in_double(theirs, ours.models[0])
    expected = theirs(**batch).logits.log_softmax(dim=-1)
    rows = [torch.from_numpy(ours.encode_source(source)) for source in sources]
    source = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    rows = [torch.from_numpy(ours.encode_target(target)) for target in targets]
    target = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    target_in = torch.cat([torch.full_like(target[:, :1], 2), target[:, :-1].masked_fill(target[:, :-1] == PAD, PAD)], dim=1)
    found = own.log_probs(source, target_in)
    assert target.shape == labels.shape
    order = our_ids(tokenizer, ours, torch.arange(expected.size(-1)))
    assert len(set(order.tolist())) == expected.size(-1)
    for row in range(len(targets)):
        length = int(labels[row].ne(tokenizer.pad_token_id).sum())
        torch.testing.assert_close(found[row, :length][:, order], expected[row, :length], rtol=0, atol=1e-5)


def check_texts(tokenizer: Any, theirs: Any, ours: Any, *, longest: int = 24, seed_bias: float = 0.0) -> list[int]:
    """Greedy and beam 4: the same tokens. The lengths of what was found."""
    lengths = []
    for beam in (1, 4):
        for sentence in SENTENCES:
            batch = tokenizer([sentence], return_tensors="pt")
            row = theirs.generate(**batch, num_beams=beam, early_stopping=beam > 1, max_length=longest)[0][1:]
            found = ours.translate(sentence, beam=beam, min_length=0, max_length_offset=longest - 2)
            assert tokenizer.decode(row, skip_special_tokens=True) == found.text
            expected = our_ids(tokenizer, ours, row).tolist()
            assert found.ids == expected[: len(found.ids)]
            assert set(expected[len(found.ids):]) <= {BOS, PAD}  # their padding
            lengths.append(len(found.ids))
    return lengths
