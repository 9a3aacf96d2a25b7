"""The analyses of `lamina analyze fusion` as sections of a page: what was measured, drawn and put into words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.analysis import charts
from lamina.analysis.embeddings import Similarity, Spectrum
from lamina.analysis.fusion_weights import QUANTILES, FrequencyBin, FusionWeights, Gates, SourceAttention, mixes_hard
from lamina.analysis.hiding import Masked
from lamina.analysis.page import Section
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.fusion import LayerAttention, LayerWise
from lamina.nn.heads import HardMix, SoftMix, SurfaceHead
from lamina.parts.figures import known_figures

COSINE_EDGES = np.linspace(-1.0, 1.0, 51)
# Below it, singular values are rounding errors of float32 weights.
SMALLEST_SINGULAR_VALUE = 1e-7


def memory_in_words(model: EncoderDecoder) -> str:
    """What cross-attention reads."""
    return model.memory.in_words()


def head_in_words(model: EncoderDecoder) -> str:
    """What the softmax reads."""
    return model.head.in_words()


def weights_section(model: EncoderDecoder, weights: FusionWeights | None) -> Section:
    name, title = "fusion_weights", "What each decoder layer reads"
    besides = " The softmax also reads the source embeddings, by the gate's share." if mixes_hard(model) else ""
    if weights is None:
        return Section(name, title, "There is no map of fusion weights: every decoder layer of this model reads the encoder's "
                                    f"output and nothing else.{besides}")
    if isinstance(model.memory, LayerWise):
        text = f"Layer-wise attention: each decoder layer reads one encoder layer, and nothing here is learned.{besides}"
    else:
        by_channel = isinstance(model.memory, LayerAttention) and model.memory.weight.dim() == 3
        text = ("The share of each encoder layer in what a decoder layer's cross-attention reads; a row sums to one"
                f"{', and each share is the mean over channels' if by_channel else ''}. Equal shares would be "
                f"{1 / len(weights.columns):.2f}.{besides}")
    rows = [(reader + 1, column, f"{share:.6f}", f"{spread:.6f}") for reader in range(len(weights.shares))
            for column, share, spread in zip(weights.columns, weights.shares[reader], weights.spread[reader], strict=True)]
    figure = charts.heat_map(weights.shares, [str(reader + 1) for reader in range(len(weights.shares))], weights.columns,
                             row_label="decoder layer", column_label="read from the encoder", value_label="share",
                             is_annotated=True)
    facts = {} if isinstance(model.memory, LayerWise) else {
        f"share of {column} in the top decoder layer": float(share)
        for column, share in zip(weights.columns, weights.shares[-1], strict=True)}
    return Section(name, title, text, figure, "Heat map of decoder layers by encoder layers.",
                   ("decoder_layer", "encoder_column", "share", "sd_over_channels"), rows, facts)


def gate_section(model: EncoderDecoder, gates: Gates | None, bins: Sequence[FrequencyBin]) -> Section:
    name, title = "gate", "The gate of surface fusion by token frequency"
    if gates is None:
        head = model.head
        why = (f"surface fusion adds scores before one softmax (tau {head.mix.tau:g}), so nothing weighs one side against the "
               "other" if isinstance(head, SurfaceHead) and isinstance(head.mix, SoftMix) else
               "the softmax of this model reads the decoder's output alone")
        return Section(name, title, f"There is no gate: {why}.")
    mix = model.head.mix  # type: ignore[union-attr]
    is_fixed = isinstance(mix, HardMix) and mix.gate_weight is None
    text = ("The gate is the weight of the decoder's own scores; one minus the gate goes to what is read off the source "
            "embeddings. ")
    text += (f"This model's gate is fixed at {gates.values[0]:g}, so it is the same for all tokens." if is_fixed else
             "It is shown for the reference tokens of the data, by how often the dictionary counts them. Boxes hold the middle "
             "half of the tokens, whiskers 5 % to 95 %, a line the median, a dot the mean.")
    figure = charts.boxes([charts.Box(item.name, item.mean, item.quantiles) for item in bins],
                          label="count of the token in the dictionary", value_label="gate", limits=(-0.02, 1.02))
    columns = ("dictionary_count", "tokens", "mean", *(f"p{100 * quantile:g}" for quantile in QUANTILES))
    rows = [(item.name, item.num_tokens, f"{item.mean:.6f}", *(f"{value:.6f}" for value in item.quantiles)) for item in bins]
    facts = {"mean gate": float(gates.values.mean()), "mean weight of the source embeddings": float(1 - gates.values.mean()),
             "tokens": len(gates.values)}
    return Section(name, title, text, figure, "Box plot of the gate for each class of token frequency.", columns, rows, facts)


def masking_section(model: EncoderDecoder, masked: Masked | None, metric: str = "bleu", *, is_folded: bool = False) -> Section:
    """`metric`: the figure of the qualities' `value`, where there is one."""
    name, title = "masked_layers", "What is lost without an encoder layer"
    if masked is None:
        why = ("the model was folded, and what a layer hands on is scaled for the layer after it. Look at the model as it was "
               "trained." if is_folded else "cross-attention reads a mix of one encoder layer alone.")
        return Section(name, title, f"No layer can be masked: {why}")
    if isinstance(model.memory, LayerAttention):
        how = ("The layer is masked where it is read: its share in every decoder layer's mix is set to zero and the others "
               "grow to sum to one again; the encoder layers above it still build on it.")
    else:
        how = "The layer is skipped: the layer above it reads what the layer would have read."
    if isinstance(model.head, SurfaceHead):
        how += " “Surface” hides the source embeddings from the softmax, which is left with the decoder's own scores."
    whole = masked.whole
    columns, rows = ["masked", "loss_bits", "loss_change"], []
    if whole.value is not None:
        columns += [metric, f"{metric}_change", "length_ratio", "length_ratio_change"]
    for mask, quality in (("nothing", whole), *masked.without.items()):
        row = [mask, f"{quality.loss:.6f}", f"{quality.loss - whole.loss:.6f}"]
        if whole.value is not None and quality.value is not None and whole.bleu is not None and quality.bleu is not None:
            row += [f"{quality.value:.4f}", f"{quality.value - whole.value:.4f}", f"{quality.bleu.ratio:.6f}",
                    f"{quality.bleu.ratio - whole.bleu.ratio:.6f}"]
        rows.append(row)
    changes = {column: [float(row[columns.index(column)]) for row in rows[1:]] for column in columns if "change" in column}
    series = {"change in loss\n(bits per token)": changes["loss_change"]}
    facts: dict[str, float | str] = {"loss of the whole model (bits per token)": whole.loss}
    if whole.value is not None and whole.bleu is not None:
        label = known_figures()[metric].figure.label
        series = {f"change in\n{label}": changes[f"{metric}_change"],
                  "change in\nlength ratio": changes["length_ratio_change"], **series}
        facts |= {f"{label} of the whole model": whole.value, "length ratio of the whole model": whole.bleu.ratio,
                  "signature": whole.signature}
        what = f"{label}, the length of translations as a share of the references', and the loss of the references"
    else:
        what = "The loss of the references"
    facts["most missed, by loss"] = max(masked.without, key=lambda mask: masked.without[mask].loss)
    figure = charts.bars(list(masked.without), series, label="masked")
    return Section(name, title, f"{what} with one encoder layer masked, less the whole model's. {how}", figure,
                   "Bars for each masked layer.", columns, rows, facts)


def spectrum_section(spectra: dict[str, Spectrum]) -> Section:
    text = ("Singular values of the embedding matrix, largest first, as shares of the largest. A curve that falls slowly means "
            "that words are spread over many directions; effective rank counts those directions, and is at most the width of "
            "the matrix.")
    figure = charts.falling_curves({uses: spectrum.normalised for uses, spectrum in spectra.items()},
                                   label="rank of the singular value", value_label="singular value / largest",
                                   floor=SMALLEST_SINGULAR_VALUE)
    rows = [(uses, number + 1, f"{value:.8g}", f"{share:.8g}", f"{variance:.6f}") for uses, spectrum in spectra.items()
            for number, (value, share, variance) in
            enumerate(zip(spectrum.values, spectrum.normalised, spectrum.variance, strict=True))]
    facts: dict[str, float | str] = {}
    for uses, spectrum in spectra.items():
        facts[f"{uses} embedding: effective rank"] = spectrum.effective_rank
        facts[f"{uses} embedding: width"] = len(spectrum.values)
        for k in (1, 10, 100):
            if k < len(spectrum.values):
                facts[f"{uses} embedding: share of the top {k} in the squared length"] = float(spectrum.variance[k - 1])
    return Section("singular_values", "Singular values of the embeddings", text, figure,
                   "Falling curve of singular values on a logarithmic scale.",
                   ("embedding", "rank", "singular_value", "share_of_largest", "cumulative_variance"), rows, facts)


def similarity_section(model: EncoderDecoder, found: Similarity | None) -> Section:
    name, title = "embedding_similarity", "Embeddings of words that translate each other"
    source, target = model.source_embedding.table, model.target_embedding.table
    if found is None:
        widths = source.weight.size(1), target.weight.size(1)
        why = (f"source embeddings have {widths[0]} channels and target embeddings {widths[1]}" if widths[0] != widths[1] else
               "the data holds no word that could be aligned")
        return Section(name, title, f"There is nothing to compare: {why}.")
    text = ("Cosine of a target word's embedding and that of the source word it looks at most in the last decoder layer "
            "(aligned), against the same words paired at random. Special symbols are left out. The further apart the two "
            "distributions, the more the embeddings themselves know of translation.")
    if source is not target:
        text += (" Source and target embeddings of this model are two matrices, which nothing obliges to share directions: a "
                 "difference is learned, and its absence is no fault.")
    figure = charts.distributions({"aligned": found.aligned, "random": found.random}, COSINE_EDGES, label="cosine",
                                  value_label="share of pairs")
    rows = [(f"{low:.2f}", f"{high:.2f}", f"{aligned:.6f}", f"{random:.6f}") for low, high, aligned, random in
            zip(COSINE_EDGES[:-1], COSINE_EDGES[1:], charts.bin_shares(found.aligned, COSINE_EDGES),
                charts.bin_shares(found.random, COSINE_EDGES), strict=True)]
    facts: dict[str, float | str] = {"pairs": len(found.aligned), "mean cosine, aligned": float(found.aligned.mean()),
                                     "mean cosine, random": float(found.random.mean())}
    if found.is_same_symbol.any():
        facts["aligned pairs of a symbol with itself, whose cosine is 1"] = int(found.is_same_symbol.sum())
        if not found.is_same_symbol.all():
            facts["mean cosine, aligned, without those"] = float(found.aligned[~found.is_same_symbol].mean())
    return Section(name, title, text, figure, "Distributions of cosines of aligned and of random pairs.",
                   ("cosine_from", "cosine_to", "aligned", "random"), rows, facts)


def attention_section(model: EncoderDecoder, found: SourceAttention, source: Sequence[str], target: Sequence[str], *,
                      whose: str) -> Section:
    """`whose` says where the sentence and its translation come from."""
    if found.is_of_head:
        text = "How much of each source token's embedding surface fusion adds for each target token (mean of its heads)."
    else:
        why = ("pools the source without looking" if isinstance(model.head, SurfaceHead) else "does not read the source")
        text = (f"How much each target token looks at each source token in the last decoder layer's cross-attention (mean of "
                f"its heads); the softmax of this model {why}.")
    rows = [(row + 1, word, column + 1, other, f"{weight:.6f}") for row, word in enumerate(target)
            for column, (other, weight) in enumerate(zip(source, found.weights[row], strict=True))]
    # Sentencepiece's mark of a word's beginning hangs so low that it would touch the next line.
    names = ([token.replace("▁", "_") for token in side] for side in (target, source))
    figure = charts.heat_map(found.weights, *names, row_label="target", column_label="source",
                             value_label="attention")
    return Section("source_attention", "Where target tokens look in the source", f"{text} {whose}", figure,
                   "Heat map of target tokens by source tokens.",
                   ("target_place", "target_token", "source_place", "source_token", "weight"), rows)
