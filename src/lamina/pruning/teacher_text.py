"""What a whole model says of its training set, as targets for what is cut out of it (Kim and Rush 2016, §3.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lamina.checkpoint.format import Checkpoint
from lamina.config.search_options import SearchConfig
from lamina.data.corpus import Languages, find_languages, load_dictionaries, open_corpus
from lamina.data.retargeted import TRAIN, write_retargeted
from lamina.decode.batched_search import search_rows
from lamina.decode.search import Search
from lamina.decode.search_workers import search_workers, shared_batch_size
from lamina.errors import CheckpointError
from lamina.nn.prepacked import PrepackedLinear, prepack_
from lamina.preprocess.workers import Progress

BEAM = 5
CPU_BATCH = 64


class TeacherText:
    """A data folder's pairs, as a model with the same dictionaries translates them."""

    def __init__(self, checkpoint: Checkpoint, path: str, data: Path) -> None:
        self.checkpoint = checkpoint
        self.data = data
        source, target = checkpoint.languages
        assert source is not None
        assert target is not None
        self.languages: Languages = find_languages(data, TRAIN, source, target)
        for side, theirs, ours in zip(checkpoint.sides, checkpoint.vocabularies(), load_dictionaries(data, self.languages),
                                      strict=True):
            if theirs != ours:
                raise CheckpointError(f"{path} was trained with the {side} dictionary {theirs.digest}, but {data} has "
                                      f"{ours.digest}. Pass the matching data folder, or preprocess again with that dictionary "
                                      "(--srcdict, --tgtdict).")

    def write(self, folder: Path, *, on_cpu: bool, progress: Progress) -> int:
        """The same folder with the model's translations as training targets; how many pairs keep their own.

        Those are longer than the model reads, or nothing finite was found for them.
        """
        source_size, target_size = map(len, self.checkpoint.vocabularies())
        corpus = open_corpus(self.data, TRAIN, self.languages, (source_size, target_size), adds_numbered=True)
        device = torch.device("cuda" if torch.cuda.is_available() and not on_cpu else "cpu")
        model: Any = self.checkpoint.build_model().to(device).eval()
        if device.type == "cuda":
            model.to(torch.float16)
        else:
            prepack_(model, PrepackedLinear)
        targets = [corpus[index].target for index in range(len(corpus))]
        readable = [index for index, size in enumerate(corpus.source_sizes) if size <= model.max_source_positions]
        rows = [corpus[index].source for index in readable]
        search, num_found = Search([model], SearchConfig(beam=BEAM)), 0
        batch_size = shared_batch_size(len(rows), CPU_BATCH) if device.type == "cpu" else None
        with search_workers([search], len(rows)) as workers, progress("translating the training set", len(rows)) as advance:
            for found in search_rows(search, rows, device=device, batch_size=batch_size, workers=workers):
                advance(1)
                if found.hypotheses and not found.hypotheses[0].is_lost:
                    targets[readable[found.index]] = np.array(found.hypotheses[0].ids)
                    num_found += 1
        write_retargeted(self.data, folder, self.languages, (source_size, target_size), targets)
        return len(targets) - num_found
