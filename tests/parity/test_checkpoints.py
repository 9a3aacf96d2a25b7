"""Whole checkpoint files as the references wrote them, against what the references printed with them."""

import math
import re

import pytest
import torch

from golden_files import GOLDEN
from lamina.cli import main
from lamina.data.corpus import Languages, open_corpus
from lamina.interop.any_format import load_any
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.parts.criteria import LabelSmoothedCrossEntropy
from lamina.training.loss import batch_loss

NUMBER = re.compile(r"(?<=\s)-\d+\.\d+")
FILES, DATA = GOLDEN / "checkpoints", GOLDEN / "databin_mmap" / "joined"
pytestmark = pytest.mark.skipif(not FILES.is_dir(), reason="the references' checkpoint files are too large to keep here: "
                                "LAMINA_GOLDEN names the folder of all fixtures")


def test_generate_prints_what_fairseq_printed(capsys):
    assert main(["generate", str(DATA), "--path", str(FILES / "fairseq_main_transformer.pt"), "--gen-subset", "valid", "--beam",
                 "4", "--lenpen", "1"]) == 0
    found = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("| ")]
    expected = (FILES / "fairseq_main_transformer.generate.txt").read_text().splitlines()
    assert len(found) == len(expected) == 21
    for ours, theirs in zip(found, expected, strict=True):
        # Ours has six digits where fairseq prints all of a float; P- lines have four in both.
        scores, other_scores = ([float(word) for word in re.findall(NUMBER, line)] for line in (ours, theirs))
        assert scores == pytest.approx(other_scores, abs=1e-6)
        assert re.sub(NUMBER, "", ours) == re.sub(NUMBER, "", theirs)


@pytest.mark.parametrize(("kept", "number"), [("", 0), ("0,2", 1)])
def test_eval_lm_prints_what_fairseq_printed(capsys, kept, number):
    overrides = ["--model-overrides", f"{{'decoder_layers_to_keep':'{kept}'}}"] if kept else []
    assert main(["eval-lm", str(FILES / "lmdata"), "--path", str(FILES / "fairseq_main_lm_layerdrop.pt"), "--gen-subset",
                 "valid", "--tokens-per-sample", "32", *overrides]) == 0
    size, loss = (FILES / "fairseq_main_lm_layerdrop.eval.txt").read_text().splitlines()[2 * number:][:2]
    lines = capsys.readouterr().out.splitlines()
    assert size.replace(",", "") in lines
    assert lines[-1] == loss


def test_the_surface_fusion_fork_validates_as_it_did():
    """Its last validation, on one batch of four pairs: the file notes it down with all digits."""
    checkpoint = load_any(FILES / "surfacefusion_fork.pt", places=DictionaryPlaces.of(DATA))
    corpus = open_corpus(DATA, "valid", Languages("en", "fr"), (256, 256))
    batch = corpus.batch(range(4), (1, 1))
    model, bits = checkpoint.build_model().eval(), batch.num_target_tokens * math.log(2.0)
    with torch.no_grad():
        loss = batch_loss(model, batch, LabelSmoothedCrossEntropy(smoothing=0.1)).loss
        scores = model.log_probs(batch.source, batch.target_in).gather(2, batch.target_out[:, :, None])[:, :, 0]
    assert float(loss) / bits == pytest.approx(7.046270002312776, abs=2e-6)
    # Hard fusion's scores as they are; the nll_loss that ours reports is of their distribution, and lower.
    assert float(-scores[batch.target_out.ne(1)].sum()) / bits == pytest.approx(6.6835939054140905, abs=2e-6)
