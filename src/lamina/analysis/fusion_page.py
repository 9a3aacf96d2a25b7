"""The analyses of `lamina analyze fusion` as sections of a page: what was measured, drawn and put into words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lamina.analysis import charts
from lamina.analysis.embeddings import Similarity, Spectrum
from lamina.analysis.fusion_weights import QUANTILES, FrequencyBin, FusionWeights, Gates, SourceAttention, mixes_hard
from lamina.analysis.hiding import Masked, loss_change
from lamina.analysis.page import Section
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.nn.fusion import LayerAttention, LayerWise
from lamina.nn.heads import HardMix, SoftMix, SurfaceHead
from lamina.parts.figures import known_figures

COSINE_EDGES = np.linspace(-1.0, 1.0, 51)
# Below it, singular values are rounding errors of float32 weights.
SMALLEST_SINGULAR_VALUE = 1e-7
NOISE = 2  # standard errors


def memory_in_words(model: EncoderDecoder) -> str:
    """What cross-attention reads."""
    return model.memory.in_words()


def head_in_words(model: EncoderDecoder) -> str:
    """What the softmax reads."""
    return model.head.in_words()


def weights_section(model: EncoderDecoder, weights: FusionWeights | None) -> Section:
    name, title = "fusion_weights", "What each decoder layer reads"
    also = " The softmax also reads the source embeddings, as far as the gate lets it." if mixes_hard(model) else ""
    if weights is None:
        return Section(name, title, "There is no map of fusion weights: every decoder layer of this model reads the encoder's "
                                    f"output and nothing else.{also}")
    if isinstance(model.memory, LayerWise):
        text = f"Layer-wise attention: each decoder layer reads one encoder layer, and nothing here is learned.{also}"
    else:
        by_channel = isinstance(model.memory, LayerAttention) and model.memory.weight.dim() == 3
        text = ("The share of each encoder layer in what a decoder layer's cross-attention reads; a row sums to one"
                f"{', and each share is the mean over channels' if by_channel else ''}. Equal shares would be "
                f"{1 / len(weights.columns):.2f}.{also}")
    rows = [(reader + 1, column, f"{share:.6f}", f"{spread:.6f}") for reader in range(len(weights.shares))
            for column, share, spread in zip(weights.columns, weights.shares[reader], weights.spread[reader], strict=True)]
    figure = charts.heat_map(weights.shares, [str(reader + 1) for reader in range(len(weights.shares))], weights.columns,
                             row_label="decoder layer", column_label="read from the encoder", value_label="share",
                             is_annotated=True)
    facts: dict[str, float | str] = {} if isinstance(model.memory, LayerWise) else {
        f"share of {column} in the top decoder layer": float(share)
        for column, share in zip(weights.columns, weights.shares[-1], strict=True)}
    return Section(name, title, text, "" if isinstance(model.memory, LayerWise) else _read_most(weights), figure,
                   "Heat map of decoder layers by encoder layers.",
                   ("decoder_layer", "encoder_column", "share", "sd_over_channels"), rows, facts)


def _read_most(weights: FusionWeights) -> str:
    reader, column = np.unravel_index(int(weights.shares.argmax()), weights.shares.shape)
    top, equal = weights.columns[int(weights.shares[-1].argmax())], 1 / len(weights.columns)
    largest = float(weights.shares[reader, column])
    return (f"The top decoder layer reads {top} most. The largest share of all, {largest:.2f}, is that of "
            f"{weights.columns[column]} in decoder layer {reader + 1}: {largest / equal:.1f} times an equal one. Shares are "
            "trained weights, without noise of their own, but another --seed of training gives others: trust what several runs "
            "agree on.")


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
    if is_fixed:  # as many dots at one height say no more than the sentence
        return Section(name, title, text, facts={"mean gate": float(gates.values.mean()), "tokens": len(gates.values)})
    figure = charts.boxes([charts.Box(item.name, item.mean, item.quantiles) for item in bins],
                          label="count of the token in the dictionary", value_label="gate", limits=(-0.02, 1.02))
    columns = ("dictionary_count", "tokens", "mean", *(f"p{100 * quantile:g}" for quantile in QUANTILES))
    rows = [(item.name, item.num_tokens, f"{item.mean:.6f}", *(f"{value:.6f}" for value in item.quantiles)) for item in bins]
    facts = {"mean gate": float(gates.values.mean()), "mean weight of the source embeddings": float(1 - gates.values.mean()),
             "tokens": len(gates.values)}
    return Section(name, title, text, _rare_and_frequent(bins), figure,
                   "Box plot of the gate for each class of token frequency.", columns, rows, facts)


def _rare_and_frequent(bins: Sequence[FrequencyBin]) -> str:
    """Compares the first and the last class of tokens that the dictionary counts."""
    counted = [item for item in bins if item.name[:1].isdigit() and item.name[:1] != "0"]
    if len(counted) < 2:
        return "All tokens of this data are about as frequent, so there is nothing to compare."
    rare, frequent = counted[0], counted[-1]
    low, high = QUANTILES.index(0.25), QUANTILES.index(0.75)
    overlap = rare.quantiles[low] <= frequent.quantiles[high] and frequent.quantiles[low] <= rare.quantiles[high]
    which = ("rare" if rare.mean < frequent.mean else "frequent")
    found = (f"The mean gate is {rare.mean:.2f} for the rarest tokens ({rare.name} occurrences, {rare.num_tokens} here) and "
             f"{frequent.mean:.2f} for the most frequent: the surface counts for more with {which} ones.")
    return f"{found} " + ("Their middle halves overlap, so frequency says little of a single token." if overlap else
                          "Their middle halves do not overlap: the difference is larger than the spread within a class.")


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
        what = f"{label}, the length of translations relative to the reference translations, and the loss of those"
    else:
        what = "The loss of the reference translations"
    losses = {mask: loss_change(quality, whole) for mask, quality in masked.without.items()}
    facts["most missed, by loss"] = max(losses, key=lambda mask: losses[mask][0])
    facts |= {f"change in loss without {mask}": f"{change:+.4f} ± {error:.4f}" for mask, (change, error) in losses.items()
              if not np.isnan(error)}
    figure = charts.bars(list(masked.without), series, label="masked")
    return Section(name, title, f"{what} with one encoder layer masked, less the whole model's. {how}", _missed(losses), figure,
                   "Bars for each masked layer.", columns, rows, facts)


def _missed(losses: dict[str, tuple[float, float]]) -> str:
    """Which masks change the loss by more than twice its standard error."""
    if any(np.isnan(error) for _, error in losses.values()):
        return ("Fewer than three batches: too little data to tell a change from noise. Take more pairs, or a smaller "
                "--max-tokens.")
    worse: list[str] = []
    better: list[str] = []
    alike: list[str] = []
    for mask, (change, error) in losses.items():
        (alike if abs(change) <= NOISE * error else worse if change > 0 else better).append(mask)
    most = max(losses, key=lambda mask: losses[mask][0])
    parts = [f"{_listed(worse)} {'are' if len(worse) > 1 else 'is'} missed, {most} most "
             f"({losses[most][0]:+.4f} ± {losses[most][1]:.4f} bits per token)" if worse else "",
             f"without {_listed(better)} the loss is lower" if better else "",
             f"of {_listed(alike)} the change is within noise" if alike else ""]
    found = "; ".join(part for part in parts if part)
    return f"{found[:1].upper()}{found[1:]}. ± is the standard error over batches, noise what lies within twice of it."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]


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
    shares = {uses: spectrum.effective_rank / len(spectrum.values) for uses, spectrum in spectra.items()}
    uses, share = min(shares.items(), key=lambda item: item[1])
    conclusion = (f"Effective rank is {share:.0%} of the width ({uses} embedding): " +
                  ("words use nearly all directions." if share > 0.8 else "a narrower embedding might do." if share < 0.4 else
                   "some directions are used much more than others.") +
                  " The numbers are exact; what differs between two models of the same settings is their noise.")
    return Section("singular_values", "Singular values of the embeddings", text, conclusion, figure,
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
    gap, error = _gap(found)
    told = ", which is within noise: the embeddings alone know nothing of translation."
    if abs(gap) > NOISE * error:
        told = ": the embeddings know of translation." if gap > 0 else ", that is, less alike."
    conclusion = (f"Aligned words are closer than random ones by {gap:.3f} ± {error:.3f} in cosine{told} Pairs of a symbol "
                  "with itself are left out, ± is the standard error.")
    return Section(name, title, text, conclusion if error else "", figure,
                   "Distributions of cosines of aligned and of random pairs.",
                   ("cosine_from", "cosine_to", "aligned", "random"), rows, facts)


def _gap(found: Similarity) -> tuple[float, float]:
    """How much closer aligned words are, and its standard error; zeros where symbols are aligned with themselves alone."""
    aligned, random = found.aligned[~found.is_same_symbol], found.random
    if len(aligned) < 2 or len(random) < 2:
        return 0.0, 0.0
    error = (float(aligned.var(ddof=1)) / len(aligned) + float(random.var(ddof=1)) / len(random)) ** 0.5
    return float(aligned.mean() - random.mean()), error


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
    looks = found.weights[:-1] if len(found.weights) > 1 else found.weights  # without </s>
    most = float(looks.max(axis=1).mean())
    conclusion = (f"The source token that a target token looks at most has {most:.0%} of its attention in the mean; evenly "
                  f"spread it would be {1 / len(source):.0%}. One sentence is an example, no evidence: look at others with "
                  "--sentence.")
    return Section("source_attention", "Where target tokens look in the source", f"{text} {whose}", conclusion, figure,
                   "Heat map of target tokens by source tokens.",
                   ("target_place", "target_token", "source_place", "source_token", "weight"), rows)
