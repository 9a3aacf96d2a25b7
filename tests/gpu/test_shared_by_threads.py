"""One model, or two, used by several threads at once: the same results as one after the other."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import lamina
from lamina.cli import main
from tiny import TINY_FLAGS, make_data

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LINES = ["the old boat sings", "a bird", "the small red bird reads near the river", "moon"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("threads")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--max-update", "12", "--no-compile", "--save-dir", str(folder)]) == 0
    return folder / "checkpoint_last.pt"


@pytest.mark.parametrize("number_of_models", [1, 2])
def test_threads_get_what_one_thread_gets(path, number_of_models):
    """Searches are captured and replayed meanwhile: what one thread launches must not end up in another's graph."""
    models = [lamina.load(path, device="cuda", dtype="fp32", task="translation") for _ in range(number_of_models)]

    def work(number):
        model, line = models[number % number_of_models], LINES[number // 2 % len(LINES)]
        match number // 2 % 5:
            case 0:
                return model.translate([line] * (1 + number % 3), beam=2, max_len_b=12)[0].text
            case 1:
                return model.translate(line, sampling=True, seed=number, max_len_b=12).text
            case 2:
                return round(model.encode(line, layers="all").layers[1].sum().item(), 3)
            case 3:
                return round(model.score((line, "BIRD A")).total, 3)
            case _:
                return "".join(model.stream_tokens(line, max_len_b=12))

    expected = [work(number) for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert list(pool.map(work, range(40))) == expected
