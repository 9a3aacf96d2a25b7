"""`lamina convert`: a foreign or a sharded checkpoint as one file of ours."""

from __future__ import annotations

from pathlib import Path

from lamina import console
from lamina.config.tool_options import ConvertConfig


def run(config: ConvertConfig) -> None:
    # Here, not above: a missing --output is refused without loading torch.
    from lamina.checkpoint.format import save_checkpoint
    from lamina.checkpoint.output_file import check_output
    from lamina.interop.any_format import load_foreign
    from lamina.interop.fairseq_file import DictionaryPlaces

    path, output = Path(config.checkpoint), Path(config.output)
    check_output(output, [path])
    places = DictionaryPlaces.of(config.dict_dir, source_lang=config.source_lang, target_lang=config.target_lang)
    checkpoint = load_foreign(path, places=places, notice=console.notice)
    save_checkpoint(output, checkpoint)
    sizes = ", ".join(f"[{language}] {len(vocabulary)} types" for language, vocabulary in
                      zip(checkpoint.languages, checkpoint.vocabularies(), strict=True))
    print(f"| {checkpoint.task}, --arch {checkpoint.config['arch']}, dictionaries: {sizes}")
    print(f"| num. model params: {sum(weight.numel() for weight in checkpoint.weights.values())}")
    if "optimizer" in checkpoint.training:
        print(f"| training can continue from update {checkpoint.training['progress']['updates']}")
    elif problem := checkpoint.training.get("optimizer_problem"):
        console.notice(f"training that continues from it starts its optimizer from scratch: {problem}")
    print(f"| wrote {output}")
