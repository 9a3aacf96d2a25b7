"""The keyword options of the Python interface, for type checkers and editors.

Written by `make docs` from the configuration classes: change those, or tools/write_option_types.py. Options of parts of your
own are not listed here; a type checker wants `# type: ignore` where they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import TypedDict
else:
    from typing import TypedDict


class SearchOptions(TypedDict, total=False):
    """How to search: the options of `lamina generate`, or SearchConfig's fields."""

    begin_with: int | Sequence[int] | str
    constraint_order: str | bool | None
    cuda_graphs: bool
    diverse_beam_groups: int
    diverse_beam_strength: float
    first_tokens: int | Sequence[int] | str
    forbid_tokens: int | Sequence[int] | str
    forbidden_tokens: int | Sequence[int] | str
    forbidden_words: str | None
    free_forced: bool
    frees_forced: bool
    length_penalty: float
    lenpen: float
    match_source_len: bool
    match_source_length: bool
    max_len_a: float
    max_len_b: int
    max_len_from_padded_width: bool
    max_length_factor: float
    max_length_offset: int
    min_len: int
    min_length: int
    nbest: int
    no_repeat_ngram: int
    no_repeat_ngram_size: int
    renormalize: bool
    renormalizes: bool
    sampling: bool
    sampling_topk: int
    sampling_topp: float
    temperature: float
    unk_penalty: float
    unkpen: float
    unnormalized: bool
    uses_padded_width: bool


class TrainOptions(TypedDict, total=False):
    """The options of `lamina train`."""

    activation_dropout: float
    activation_fn: str
    adam_betas: float | Sequence[float] | str
    adam_eps: float
    adapter: str
    adaptive_input: bool
    adaptive_input_cutoff: int | Sequence[int] | str
    adaptive_input_factor: float
    adaptive_softmax_cutoff: int | Sequence[int] | str
    adaptive_softmax_dropout: float
    adaptive_softmax_factor: float
    admin_profile: str | None
    admin_profile_batches: int
    arch: str
    async_save: bool
    attention_dropout: float
    attnres_blocks: int
    attnres_decoder_blocks: int | Sequence[int] | str
    attnres_encoder_blocks: int | Sequence[int] | str
    batch_order: str | None
    batch_size: int | None
    batch_size_valid: int | None
    best_checkpoint_metric: str
    bf16: bool
    bucket_cap_mb: int
    checkpoint_activations: bool
    classification_head_name: str
    clip_norm: float
    compile: bool
    config: str | None
    cpu: bool
    cuda_graphs: bool
    curriculum: int
    ddp_backend: str
    decoder_attention_heads: int
    decoder_embed_dim: int
    decoder_embed_path: str | None
    decoder_ffn_embed_dim: int
    decoder_final_norm: bool
    decoder_input_dim: int | None
    decoder_layerdrop: float
    decoder_layers: int
    decoder_layers_to_keep: str | None
    decoder_learned_pos: bool
    decoder_normalize_before: bool
    decoder_output_dim: int | None
    decoder_positions: str
    decoder_reads: str | Sequence[str]
    deepnet_layers: int | Sequence[int] | str
    device_id: int | None
    device_tflops: float | None
    disable_validation: bool
    distill_from: str | None
    distill_temperature: float
    distill_weight: float
    distributed_backend: str
    distributed_init_method: str | None
    distributed_port: int
    distributed_rank: int
    distributed_spawn: bool
    distributed_timeout: float
    distributed_world_size: int | None
    dropout: float
    dwa_dilation: int
    dwa_input: bool
    dwa_period: int
    encoder_attention_heads: int
    encoder_embed_dim: int
    encoder_embed_path: str | None
    encoder_ffn_embed_dim: int
    encoder_layerdrop: float
    encoder_layers: int
    encoder_layers_to_keep: str | None
    encoder_learned_pos: bool
    encoder_normalize_before: bool
    encoder_positions: str
    encoder_reads: str | Sequence[str]
    end_learning_rate: float
    epoch_checkpoints: bool
    eval_bleu: bool
    eval_bleu_detok: str | None
    eval_bleu_print_samples: bool
    eval_bleu_remove_bpe: str | bool | None
    eval_metric: str | Sequence[str]
    eval_rouge: bool
    eval_tokenized_bleu: bool
    f1_label: str | None
    ffn_init: str | None
    fine_grained_ta: bool
    finetune_from_model: str | None
    force_anneal: int | None
    fp16: bool
    fp16_init_scale: float
    fp16_scale_window: int | None
    fp32: bool
    freeze: str | Sequence[str]
    freq_weighted_replacement: bool
    fsdp: bool
    fsdp_size: int | None
    fusion: str
    init_token: int
    init_type: str
    keel_layers: int | Sequence[int] | str
    keep_interval_updates: int
    keep_last_epochs: int
    label_smoothing: float
    last_checkpoints: bool
    layer_wise_attention: bool
    layer_wise_reads: int | Sequence[int] | str
    layerdrop_draws: str | None
    layerdrop_schedule: str
    layernorm_embedding: bool
    leave_unmasked_prob: float
    lime_spread: float
    lns_decoder_layers: int | Sequence[int] | str
    lns_encoder_layers: int | Sequence[int] | str
    log_format: str | None
    log_interval: int
    lora_alpha: float
    lora_dropout: float
    lora_matrices: str | Sequence[str]
    lora_merge: bool
    lora_rank: int
    lora_train_also: str | Sequence[str]
    lr: float | Sequence[float] | str
    lr_patience: int
    lr_period_updates: int
    lr_scheduler: str
    lr_shrink: float
    lr_threshold: float
    mask_prob: float
    mask_whole_words: bool
    max_epoch: int
    max_lr: float | None
    max_positions: int
    max_source_positions: int
    max_target_positions: int
    max_tokens: int | None
    max_tokens_valid: int | None
    max_update: int
    maximize_best_checkpoint_metric: bool
    min_loss_scale: float
    min_lr: float
    mixing: str
    mixing_stacks: str
    mlflow_experiment: str | None
    model_begins_with: int | Sequence[int] | str
    model_forbids: int | Sequence[int] | str
    model_frees_forced: bool
    model_renormalizes: bool
    momentum: float
    muon_momentum: float
    no_decay: str | Sequence[str]
    norm_eps: float
    num_classes: int
    num_workers: int
    optimizer: str
    pack: bool
    patience: int
    plan: bool
    plan_memory: float | None
    poly_pow: float
    pooler_activation_fn: str
    pooler_dropout: float
    power: float
    profile: str | bool | None
    progress_bar: bool
    random_token_prob: float
    regression_target: bool
    required_batch_size_multiple: int
    reset_dataloader: bool
    reset_lr_scheduler: bool
    reset_meters: bool
    reset_optimizer: bool
    reshard_after_forward: bool | None
    restore_file: str
    sample_break_mode: str
    save: bool
    save_dir: str
    save_interval: int
    save_interval_updates: int
    save_optimizer_state: bool
    scale_embedding: bool
    seed: int
    sentence_avg: bool
    separator_token: int
    sf_attention_heads: int
    sf_dropout: float
    sf_ffn: bool
    sf_first_word_id: int
    sf_gate: float
    sf_idx: int
    sf_linear: bool
    sf_mode: str
    sf_posedemb: bool
    sf_softmax_tau: float
    sharded_save: bool
    share_all_embeddings: bool
    share_decoder_input_output_embed: bool
    skip_invalid_size_inputs_valid_test: bool
    source_lang: str | None
    source_word_dropout: float
    stop_min_lr: float
    surfacefusion: str
    t_mult: float
    ta_dropconnect: bool
    ta_dropout: float
    ta_embnorm: bool
    ta_ffn: bool
    ta_input: bool
    ta_posedemb: bool
    ta_source_embedding: bool
    target_lang: str | None
    target_word_dropout: float
    tensorboard_logdir: str | None
    tf32: bool
    threshold_loss_scale: float | None
    tie_adaptive_proj: bool
    tie_adaptive_weights: bool
    token_positional_embeddings: bool
    tokens_per_sample: int
    total_num_update: int
    tracker: str | Sequence[str]
    trackio_project: str | None
    train_subset: str
    transparent_attention: bool
    truncate_sequence: bool
    truncate_source: bool
    untie_weights_roberta: bool
    update_freq: int | Sequence[int] | str
    upsample_primary: int
    valid_subset: str
    validate_interval: int
    validate_interval_updates: int
    value_residual_share: float
    verify: str
    wandb_project: str | None
    warmup_init_lr: float
    warmup_updates: int
    weight_decay: float


class PrepareOptions(TypedDict, total=False):
    """The options of `lamina preprocess`."""

    bpe_codes: str | Sequence[str]
    character_coverage: float
    dataset_impl: str
    dict_only: bool
    joined_dictionary: bool
    like: str | None
    max_line_length: int
    nwordssrc: int
    nwordstgt: int
    padding_factor: int
    sentencepiece_model: str | Sequence[str]
    srcdict: str | None
    subword: str | None
    tgtdict: str | None
    thresholdsrc: int
    thresholdtgt: int
    tokenizer: str | None
    vocab_size: int
    workers: int | None
