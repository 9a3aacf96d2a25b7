"""generation_config.json: what a model's texts must obey, as rules that it brings, and what a person may ask for, as flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lamina.checkpoint.format import Checkpoint
from lamina.config.model import MannersConfig
from lamina.config.search_options import SearchConfig
from lamina.errors import CheckpointError
from lamina.interop.huggingface_folder import read_described
from lamina.interop.huggingface_ids import IdPlan
from lamina.text.vocabulary import BOS, EOS, PAD

GENERATION_NAME = "generation_config.json"
# What changes the texts and has no counterpart here: anything but these values is refused by name.
_ONLY_WITH: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (None, 1, 1.0), "encoder_repetition_penalty": (None, 1, 1.0),
    "encoder_no_repeat_ngram_size": (None, 0), "sequence_bias": (None,), "guidance_scale": (None, 1, 1.0),
    "exponential_decay_length_penalty": (None,), "begin_suppress_tokens": (None, []), "num_beam_groups": (None, 1),
    "diversity_penalty": (None, 0, 0.0), "penalty_alpha": (None, 0, 0.0), "min_p": (None,), "top_h": (None,),
    "typical_p": (None, 1, 1.0), "epsilon_cutoff": (None, 0, 0.0), "eta_cutoff": (None, 0, 0.0), "constraints": (None,),
    "force_words_ids": (None,), "stop_strings": (None,), "max_time": (None,), "watermarking_config": (None,),
    "token_healing": (None, False), "dola_layers": (None,), "forced_decoder_ids": (None,), "min_new_tokens": (None, 0),
}
# What becomes a rule, an id or a flag, or says what is sampled.
_TAKEN = frozenset((
    "bad_words_ids", "suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "renormalize_logits", "bos_token_id",
    "pad_token_id", "eos_token_id", "decoder_start_token_id", "num_beams", "early_stopping", "length_penalty", "max_length",
    "max_new_tokens", "min_length", "no_repeat_ngram_size", "num_return_sequences", "do_sample", "temperature", "top_k",
    "top_p"))
# What changes how a text is computed or handed over there, not which.
_WITHOUT_EFFECT = re.compile(r"_from_model_config|_commit_hash|transformers_version|use_cache|cache_.*|max_cache_len|"
                             r"compile_config|use_mtp|disable_compile|low_memory|output_.*|return_dict.*|remove_invalid_values|is_assistant|"
                             r"assistant_.*|num_assistant_.*|prompt_lookup_.*|max_matching_ngram_size|prefill_chunk_size|"
                             r"continuous_batching_config|speculation_type|target_lookbehind|is_encoder_decoder")


def generation_settings(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Of the file, or where there is none of config.json, as older folders have them."""
    settings = read_described(folder, GENERATION_NAME, is_needed=False)
    name = GENERATION_NAME if settings else "config.json"
    accepted = dict(_ONLY_WITH)
    end = config.get("eos_token_id")
    accepted |= {"eos_token_id": (None, end, [end]), "forced_eos_token_id": (None, end, [end])}
    if settings:
        accepted |= {key: (None, False) for key in settings
                     if key not in _TAKEN and key not in accepted and not _WITHOUT_EFFECT.fullmatch(key)}
    else:
        settings = dict(config)
        if settings.get("force_bos_token_to_be_generated") is True:
            settings.setdefault("forced_bos_token_id", config.get("bos_token_id"))
    refused = [f"{key}={settings[key]!r}"[:60] for key, values in accepted.items() if settings.get(key) not in values]
    if refused:
        raise CheckpointError(f"{folder / name} asks for {', '.join(refused)}, which Lamina's search does not have. Remove it "
                              "from the file to use the model without it.")
    return settings


def manners_of(settings: Mapping[str, Any], plan: IdPlan, first: int | None) -> MannersConfig:
    """`first`: our id of the token that texts begin with, where the chosen language says so."""
    bad = settings.get("bad_words_ids") or []
    if not all(isinstance(word, list) and len(word) == 1 for word in bad):
        raise CheckpointError("its bad_words_ids holds phrases of several tokens. Remove them from the file, and give the "
                              "phrases with --forbidden-words.")
    forbidden = [*(word[0] for word in bad), *(settings.get("suppress_tokens") or [])]
    ours = sorted({plan.ours(token, "one of its bad_words_ids or suppress_tokens") for token in forbidden
                   if token != settings.get("eos_token_id")} - {PAD})  # which no search here says
    forced = settings.get("forced_bos_token_id")
    if first is None and forced is not None:
        first = plan.ours(forced, "its forced_bos_token_id")
    return MannersConfig(forbidden=tuple(ours), first=() if first is None else (first,), frees_forced=True,
                         renormalizes=bool(settings.get("renormalize_logits")))


def tell_flags(settings: Mapping[str, Any], notice: Callable[[str], object]) -> None:
    """Settings that are a person's to choose: here the flags decide."""
    flags = _search_flags(settings)
    if (settings.get("num_beams") or 1) > 1 and settings.get("early_stopping") is not True:
        notice(f"{GENERATION_NAME} has early_stopping={settings.get('early_stopping')!r}: searches here stop as with True, "
               "once --beam hypotheses have ended")
    if settings.get("do_sample") and settings.get("top_k") and settings.get("top_p") not in (None, 1, 1.0):
        notice(f"{GENERATION_NAME} has top_k and top_p: here one of --sampling-topk and --sampling-topp limits what is sampled")
    if flags:
        notice(f"{GENERATION_NAME} asks for a search that these flags give: {' '.join(flags)}")


def _search_flags(settings: Mapping[str, Any]) -> list[str]:
    found = []
    if (beams := settings.get("num_beams")) is not None:
        found.append(f"--beam {beams}")
    if settings.get("length_penalty") not in (None, 1, 1.0):
        found.append(f"--lenpen {settings['length_penalty']:g}")
    if isinstance(longest := settings.get("max_length"), int):
        # What is read first counts there, and </s> where it is forced.
        found.append(f"--max-len-b {max(1, longest - (1 if settings.get('forced_eos_token_id') is None else 2))}")
    elif isinstance(longest := settings.get("max_new_tokens"), int):
        found.append(f"--max-len-b {max(1, longest - (settings.get('forced_eos_token_id') is not None))}")
    shortest = settings.get("min_length") or 0
    # Lamina's default is 1, theirs 0; what is read first counts there.
    if beams is not None or shortest:
        found.append(f"--min-len {max(0, shortest - 1)}")
    if size := settings.get("no_repeat_ngram_size"):
        found.append(f"--no-repeat-ngram-size {size}")
    if (number := settings.get("num_return_sequences")) not in (None, 1):
        found.append(f"--nbest {number}")
    if settings.get("do_sample"):
        found.append("--sampling")
        if settings.get("temperature") not in (None, 1, 1.0):
            found.append(f"--temperature {settings['temperature']:g}")
        if settings.get("top_p") not in (None, 1, 1.0):
            found.append(f"--sampling-topp {settings['top_p']:g}")
        elif settings.get("top_k"):
            found.append(f"--sampling-topk {settings['top_k']}")
    return found


# -- the same the other way


def generation_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """generation_config.json of a search with our defaults and the rules that the model brings.

    What stands in front of a text counts there: the symbol that the decoder starts from, and </s> behind it.
    """
    config, search = checkpoint.model_config(), SearchConfig()
    longest = min(search.max_length_offset + 2, config.embedding.max_target_positions + 1)
    found = {"bos_token_id": BOS, "pad_token_id": PAD, "eos_token_id": EOS, "num_beams": search.beam, "early_stopping": True,
             "decoder_start_token_id": dict(config.decoder.reads_ids).get(EOS, EOS), "length_penalty": search.length_penalty,
             "max_length": longest, "min_length": search.min_length + 1, "forced_eos_token_id": EOS,
             # Padding is never said here.
             "suppress_tokens": sorted({PAD, *config.manners.forbidden})}
    if config.manners.first:
        (found["forced_bos_token_id"],) = config.manners.first
    if config.manners.renormalizes:
        found["renormalize_logits"] = True
    return found
