"""`lamina export`: a model in a folder, for others to use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lamina import console
from lamina.config.tool_options import ExportConfig
from lamina.traits import PAIRS

if TYPE_CHECKING:
    from lamina.checkpoint.format import Checkpoint

_USES = {
    "safetensors": 'In Python, `lamina.load("{folder}")`; on the command line, `--path {folder}`. The weights are in\n'
                   "`model.safetensors` under the names that config.json's model has in Lamina.",
    "fairseq": "`model.pt` is what fairseq's `--path` takes, with data made with the dictionaries in this folder. Lamina\n"
               "takes it too.",
}
_PIECES = "Pieces are those of the subword models in this folder"
_CTRANSLATE2_TRANSLATOR = ('```python\nimport ctranslate2\n\ntranslator = ctranslate2.Translator("{folder}")\n'
                   'translator.translate_batch([["pieces", "of", "a", "sentence"]], beam_size=4)\n```\n\n'
                   f"{_PIECES}; `</s>` is added automatically.")
_CTRANSLATE2_GENERATOR = ('```python\nimport ctranslate2\n\ngenerator = ctranslate2.Generator("{folder}")\n'
                         'generator.generate_batch([["</s>", "pieces", "of", "a", "prompt"]], max_length=40)\n```\n\n'
                         f"{_PIECES}; a text begins after `</s>`.")

_TRANSFORMERS = {
    "translation": ('```python\nfrom transformers import AutoModelForSeq2SeqLM, AutoTokenizer\n\n'
                    'tokenizer, model = AutoTokenizer.from_pretrained("{folder}"), '
                    'AutoModelForSeq2SeqLM.from_pretrained("{folder}")\n'
                    'print(tokenizer.decode(model.generate(**tokenizer("a text", return_tensors="pt"))[0], '
                    'skip_special_tokens=True))\n```'),
    "fill-mask": ('```python\nfrom transformers import pipeline\n\nfill_mask = pipeline("fill-mask", model="{folder}")\n'
                  'print(fill_mask("a <mask> text"))\n```'),
}


def run(config: ExportConfig) -> None:
    # Here, not above: a missing --output is refused without loading torch.
    from lamina.files import whole_folder
    from lamina.interop.any_format import load_any
    from lamina.interop.card import front_matter, model_card
    from lamina.interop.downloads import hub_name
    from lamina.interop.fairseq_file import DictionaryPlaces

    path, output = Path(config.checkpoint), Path(config.output)
    checkpoint = load_any(path, places=DictionaryPlaces.of(config.dict_dir), notice=console.notice, is_resumable=False)
    with whole_folder(output) as folder:
        written = _write(config.format, folder, checkpoint)
        usage = _usage(config.format, is_translation=written.kind.has(PAIRS)).replace("{folder}", output.name)
        card = model_card(written, output.name, usage)
        if config.format == "huggingface":
            base_model = config.base_model or hub_name(config.checkpoint)
            card = front_matter(written, license=config.license, base_model=base_model) + card
        (folder / "README.md").write_text(card, encoding="utf-8", errors="backslashreplace")
        names = sorted(file.name for file in folder.iterdir())
    print(f"| wrote {output}: {', '.join(names)}")


def _usage(kind: str, *, is_translation: bool) -> str:
    if kind == "ctranslate2":
        return _CTRANSLATE2_TRANSLATOR if is_translation else _CTRANSLATE2_GENERATOR
    if kind == "huggingface":
        return _TRANSFORMERS["translation" if is_translation else "fill-mask"]
    return _USES[kind]


def _write(kind: str, folder: Path, checkpoint: Checkpoint) -> Checkpoint:
    """What was written, which may not be what was read."""
    import torch

    from lamina.interop.ctranslate2 import write_ctranslate2
    from lamina.interop.exported_folder import write_folder, write_texts
    from lamina.interop.to_fairseq import fairseq_content, write_fairseq_texts
    from lamina.interop.to_huggingface import write_huggingface

    if kind == "safetensors":
        write_folder(folder, checkpoint)
        return checkpoint
    if kind == "huggingface":
        return write_huggingface(folder, checkpoint, console.notice)[0]
    if kind == "fairseq":
        torch.save(fairseq_content(checkpoint), folder / "model.pt")
        write_fairseq_texts(folder, checkpoint)
    else:
        checkpoint = write_ctranslate2(folder, checkpoint, console.notice)
        write_texts(folder, checkpoint)
    return checkpoint
