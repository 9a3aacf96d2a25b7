"""What became of each fairseq 0.9 option: the one table behind retired flags, the migration page and its test.

An option of `FAIRSEQ_OPTIONS` that the command's configuration knows, by name or alias, is implemented. The others are
retired: accepted with a notice where leaving them out changes nothing that matters, refused with a reason where the run
would not be what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# What fairseq's generate and interactive share.
_DECODING = tuple("""
    no-progress-bar log-interval log-format tensorboard-logdir seed cpu fp16 memory-efficient-fp16 fp16-init-scale
    fp16-scale-window fp16-scale-tolerance min-loss-scale threshold-loss-scale user-dir empty-cache-freq task
    criterion tokenizer bpe optimizer lr-scheduler num-workers skip-invalid-size-inputs-valid-test max-tokens
    max-sentences batch-size required-batch-size-multiple dataset-impl gen-subset num-shards shard-id path
    remove-bpe quiet model-overrides results-path beam nbest max-len-a max-len-b min-len match-source-len
    no-early-stop unnormalized no-beamable-mm lenpen unkpen replace-unk sacrebleu score-reference prefix-size
    no-repeat-ngram-size sampling sampling-topk sampling-topp temperature diverse-beam-groups diverse-beam-strength
    print-alignment print-step iter-decode-eos-penalty iter-decode-max-iter iter-decode-force-max-iter
    retain-iter-history decoding-format source-lang -s target-lang -t lazy-load raw-text load-alignments
    left-pad-source left-pad-target max-source-positions max-target-positions upsample-primary truncate-source
    sample-break-mode tokens-per-sample output-dictionary-size self-target future-target past-target add-bos-token
    mask-prob leave-unmasked-prob random-token-prob freq-weighted-replacement mask-whole-words num-classes
    init-token separator-token regression-target no-shuffle truncate-sequence add-prev-output-tokens adadelta-rho
    adadelta-eps weight-decay wd anneal-eps adafactor-eps clip-threshold decay-rate beta1 scale-parameter
    warmup-init relative-step adam-betas adam-eps adamax-betas adamax-eps no-bias-correction momentum warmup-updates
    warmup-init-lr max-lr t-mult lr-period-updates lr-shrink force-anneal fa end-learning-rate power
    total-num-update lr-threshold warmup-steps hold-steps decay-steps init-lr-scale final-lr-scale shrink-min
    label-smoothing save-predictions bpe-codes gpt2-encoder-json gpt2-vocab-bpe bpe-cased bpe-vocab-file
    moses-source-lang moses-target-lang moses-no-dash-splits moses-no-escape sentencepiece-vocab bpe-separator
    """.split())

# Of those, what only a search reads.
_SEARCH = tuple("""
    beam nbest max-len-a max-len-b min-len match-source-len no-early-stop unnormalized no-beamable-mm lenpen unkpen
    replace-unk sacrebleu score-reference prefix-size no-repeat-ngram-size sampling sampling-topk sampling-topp
    temperature diverse-beam-groups diverse-beam-strength print-alignment print-step iter-decode-eos-penalty
    iter-decode-max-iter iter-decode-force-max-iter retain-iter-history decoding-format
    """.split())

# Every option of fairseq 0.9.0's commands for translation, language modelling, masked language modelling and sentence
# prediction, without the dashes in front.
FAIRSEQ_OPTIONS: dict[str, tuple[str, ...]] = {
    "train": tuple("""
        no-progress-bar log-interval log-format tensorboard-logdir seed cpu fp16 memory-efficient-fp16 fp16-init-scale
        fp16-scale-window fp16-scale-tolerance min-loss-scale threshold-loss-scale user-dir empty-cache-freq task
        criterion tokenizer bpe optimizer lr-scheduler num-workers skip-invalid-size-inputs-valid-test max-tokens
        max-sentences batch-size required-batch-size-multiple dataset-impl train-subset valid-subset validate-interval
        fixed-validation-seed disable-validation max-tokens-valid max-sentences-valid curriculum distributed-world-size
        distributed-rank distributed-backend distributed-init-method distributed-port device-id local-rank
        distributed-no-spawn ddp-backend bucket-cap-mb fix-batches-to-gpus find-unused-parameters fast-stat-sync
        max-epoch me max-update mu clip-norm sentence-avg update-freq lr learning-rate min-lr use-bmuf save-dir
        restore-file reset-dataloader reset-lr-scheduler reset-meters reset-optimizer optimizer-overrides save-interval
        save-interval-updates keep-interval-updates keep-last-epochs no-save no-epoch-checkpoints no-last-checkpoints
        no-save-optimizer-state best-checkpoint-metric maximize-best-checkpoint-metric arch -a source-lang -s
        target-lang -t lazy-load raw-text load-alignments left-pad-source left-pad-target max-source-positions
        max-target-positions upsample-primary truncate-source sample-break-mode tokens-per-sample output-dictionary-size
        self-target future-target past-target add-bos-token mask-prob leave-unmasked-prob random-token-prob
        freq-weighted-replacement mask-whole-words num-classes init-token separator-token regression-target no-shuffle
        truncate-sequence add-prev-output-tokens activation-fn dropout attention-dropout activation-dropout relu-dropout
        encoder-embed-path encoder-embed-dim encoder-ffn-embed-dim encoder-layers encoder-attention-heads
        encoder-normalize-before encoder-learned-pos decoder-embed-path decoder-embed-dim decoder-ffn-embed-dim
        decoder-layers decoder-attention-heads decoder-learned-pos decoder-normalize-before
        share-decoder-input-output-embed share-all-embeddings no-token-positional-embeddings adaptive-softmax-cutoff
        adaptive-softmax-dropout no-cross-attention cross-self-attention layer-wise-attention encoder-layerdrop
        decoder-layerdrop encoder-layers-to-keep decoder-layers-to-keep layernorm-embedding no-scale-embedding
        decoder-output-dim decoder-input-dim no-decoder-final-norm adaptive-softmax-factor character-embeddings
        character-filters character-embedding-dim char-embedder-highway-layers adaptive-input adaptive-input-factor
        adaptive-input-cutoff tie-adaptive-weights tie-adaptive-proj pooler-activation-fn pooler-dropout max-positions
        load-checkpoint-heads adadelta-rho adadelta-eps weight-decay wd anneal-eps adafactor-eps clip-threshold
        decay-rate beta1 scale-parameter warmup-init relative-step adam-betas adam-eps adamax-betas adamax-eps
        no-bias-correction momentum block-lr block-momentum global-sync-iter warmup-iterations use-nbm average-sync
        warmup-updates warmup-init-lr max-lr t-mult lr-period-updates lr-shrink force-anneal fa end-learning-rate power
        total-num-update lr-threshold warmup-steps hold-steps decay-steps init-lr-scale final-lr-scale shrink-min
        label-smoothing save-predictions bpe-codes gpt2-encoder-json gpt2-vocab-bpe bpe-cased bpe-vocab-file
        moses-source-lang moses-target-lang moses-no-dash-splits moses-no-escape sentencepiece-vocab bpe-separator
        """.split()),
    "preprocess": tuple("""
        no-progress-bar log-interval log-format tensorboard-logdir seed cpu fp16 memory-efficient-fp16 fp16-init-scale
        fp16-scale-window fp16-scale-tolerance min-loss-scale threshold-loss-scale user-dir empty-cache-freq task
        criterion tokenizer bpe optimizer lr-scheduler source-lang -s target-lang -t trainpref validpref testpref
        align-suffix destdir thresholdtgt thresholdsrc tgtdict srcdict nwordstgt nwordssrc alignfile dataset-impl
        joined-dictionary only-source padding-factor workers
        """.split()),
    "score": ("sys", "-s", "ref", "-r", "order", "-o", "ignore-case", "sacrebleu", "sentence-bleu"),
    # average_checkpoints.py there
    "average": ("inputs", "output", "num-epoch-checkpoints", "num-update-checkpoints", "checkpoint-upper-bound"),
    "generate": _DECODING,
    "interactive": (*_DECODING, "buffer-size", "input"),
    # eval_lm.py there
    "eval-lm": (*(name for name in _DECODING if name not in _SEARCH), "output-word-probs", "output-word-stats",
                "context-window", "softmax-batch"),
}


@dataclass(frozen=True)
class Retired:
    """An option that no configuration holds."""

    name: str
    command: str
    takes_value: bool
    reason: str
    is_refused: bool


def _retire(commands: str, reason: str, *, flags: str = "", values: str = "", is_refused: bool = False) -> Iterator[Retired]:
    for command in commands.split():
        for names, takes_value in ((flags, False), (values, True)):
            for name in names.split():
                yield Retired(name, command, takes_value, reason, is_refused)


_IN_DATA = "how text is cut into subwords is told to `lamina preprocess`, and the data folder and checkpoints remember it"

RETIRED: tuple[Retired, ...] = (
    *_retire("train", "GPUs talk through NCCL, processors through gloo", values="distributed-backend"),
    *_retire("train", "gradients of parts that took no part are zeros, and no rank waits for them",
             flags="find-unused-parameters"),
    *_retire("train", "ranks always exchange a few numbers, never objects", flags="fast-stat-sync"),
    *_retire("train", "batches are drawn anew each epoch; a fixed share per GPU saves nothing with memory-mapped data",
             flags="fix-batches-to-gpus"),
    *_retire("train preprocess", "plug-ins are not loaded; RAdam and the linear schedule of radam_fairseq are built in",
             values="user-dir"),
    *_retire("train preprocess", "PyTorch's allocator needs no emptying", values="empty-cache-freq"),
    *_retire("train preprocess", "the loss scale halves at each overflow", values="fp16-scale-tolerance"),
    *_retire("train", "validation draws the same masks each time, and nothing else", values="fixed-validation-seed"),
    *_retire("train", "settings are always those of the command line, never the checkpoint's", values="optimizer-overrides"),
    *_retire("train", "the padding side never changes a result: positions count tokens only",
             values="left-pad-source left-pad-target"),
    *_retire("train", "data folders are always memory-mapped (mmap)", values="dataset-impl"),
    *_retire("train", "text is not read raw: run `lamina preprocess` on it first", flags="lazy-load raw-text",
             is_refused=True),
    *_retire("train", _IN_DATA, flags="bpe-cased moses-no-dash-splits moses-no-escape",
             values="tokenizer bpe bpe-codes bpe-separator bpe-vocab-file gpt2-encoder-json gpt2-vocab-bpe "
                    "moses-source-lang moses-target-lang sentencepiece-vocab"),
    *_retire("preprocess", "use --subword, --bpe-codes or --sentencepiece-model", values="bpe"),
    *_retire("preprocess", "it belongs to training, and preprocessing never read it", flags="cpu fp16 memory-efficient-fp16",
             values="log-interval log-format tensorboard-logdir seed fp16-init-scale fp16-scale-window min-loss-scale "
                    "threshold-loss-scale task criterion optimizer lr-scheduler"),
    *_retire("preprocess", "the bar shows in a terminal only", flags="no-progress-bar"),
    *_retire("preprocess", "word alignments are not read from files",
             values="align-suffix alignfile", is_refused=True),
    *_retire("train", "word alignments are not read from files", flags="load-alignments",
             is_refused=True),
    *_retire("train", "the optimizers are adam, radam, adamw, nag and sgd",
             flags="anneal-eps scale-parameter warmup-init relative-step no-bias-correction",
             values="adadelta-rho adadelta-eps adafactor-eps clip-threshold decay-rate beta1 adamax-betas adamax-eps",
             is_refused=True),
    *_retire("train", "block-wise model updates gave way to large batches: use --update-freq",
             flags="use-bmuf use-nbm average-sync",
             values="block-lr block-momentum global-sync-iter warmup-iterations", is_refused=True),
    *_retire("train", "the schedules are fixed, inverse_sqrt, linear, polynomial_decay, poly and cosine", flags="shrink-min",
             values="lr-threshold warmup-steps hold-steps decay-steps init-lr-scale final-lr-scale", is_refused=True),
    *_retire("train", "both were experiments that no published recipe uses", flags="no-cross-attention cross-self-attention",
             is_refused=True),
    *_retire("train eval-lm", "the future is what a language model predicts", flags="future-target"),
    *_retire("train eval-lm", "a language model predicts the future alone", flags="self-target past-target", is_refused=True),
    *_retire("train eval-lm", "a block begins after the token before it, and a text after </s>: <s> would say nothing",
             flags="add-bos-token", is_refused=True),
    *_retire("train eval-lm", "a dictionary is made smaller by `lamina preprocess --nwordssrc`",
             values="output-dictionary-size", is_refused=True),
    *_retire("train", "words are embedded whole, or in subwords that `lamina preprocess --subword` makes",
             flags="character-embeddings", values="character-filters character-embedding-dim char-embedder-highway-layers",
             is_refused=True),
    *_retire("train", "training batches are drawn anew each epoch, and validation keeps its order", flags="no-shuffle",
             is_refused=True),
    *_retire("train", "sentences are classified by encoders alone", flags="add-prev-output-tokens", is_refused=True),
    *_retire("train", "a checkpoint's own head always loads with it", flags="load-checkpoint-heads"),
    *_retire("train", "predictions are had from Python: lamina.load(FILE).predict_all(...)", values="save-predictions",
             is_refused=True),
    # Commands that use a trained model: fairseq accepted training's options here and read none of them.
    *_retire("generate interactive", "it belongs to training, and decoding never read it", flags="no-early-stop"),
    *_retire("generate interactive eval-lm", "it belongs to training, and decoding never read it",
             flags="anneal-eps scale-parameter warmup-init relative-step no-bias-correction shrink-min",
             values="fp16-init-scale fp16-scale-window fp16-scale-tolerance min-loss-scale threshold-loss-scale "
                    "empty-cache-freq criterion optimizer lr-scheduler adadelta-rho adadelta-eps weight-decay wd adafactor-eps "
                    "clip-threshold decay-rate beta1 adam-betas adam-eps adamax-betas adamax-eps momentum warmup-updates "
                    "warmup-init-lr max-lr t-mult lr-period-updates lr-shrink force-anneal fa end-learning-rate power "
                    "total-num-update lr-threshold warmup-steps hold-steps decay-steps init-lr-scale final-lr-scale "
                    "label-smoothing upsample-primary"),
    *_retire("generate interactive eval-lm", "plug-ins are not loaded; a checkpoint says what model it is", values="user-dir"),
    *_retire("generate interactive eval-lm", "data folders are always memory-mapped (mmap)", values="dataset-impl"),
    *_retire("generate interactive eval-lm", "the padding side never changes a result: positions count tokens only",
             values="left-pad-source left-pad-target"),
    *_retire("generate interactive eval-lm", "the model's positions are its checkpoint's",
             values="max-source-positions max-target-positions"),
    *_retire("generate interactive eval-lm", "batches need no threads and no multiples to be prepared",
             values="num-workers required-batch-size-multiple"),
    *_retire("generate interactive", "attention over the beams of a sentence is always shared", flags="no-beamable-mm"),
    *_retire("generate interactive eval-lm", "text is not read raw: run `lamina preprocess` on it, or use `lamina interactive`",
             flags="lazy-load raw-text", is_refused=True),
    *_retire("generate interactive eval-lm", "word alignments are not read from files", flags="load-alignments",
             is_refused=True),
    *_retire("generate interactive", "there are no models that refine a translation step by step",
             flags="iter-decode-force-max-iter retain-iter-history print-step",
             values="iter-decode-eos-penalty iter-decode-max-iter decoding-format", is_refused=True),
    *_retire("generate interactive", "a language model is measured by `lamina eval-lm`",
             flags="self-target future-target past-target add-bos-token",
             values="sample-break-mode tokens-per-sample output-dictionary-size", is_refused=True),
    *_retire("generate interactive eval-lm", "gaps are filled and sentences classified from Python: lamina.load(FILE)",
             flags="freq-weighted-replacement mask-whole-words regression-target no-shuffle truncate-sequence "
                   "add-prev-output-tokens",
             values="mask-prob leave-unmasked-prob random-token-prob num-classes init-token separator-token save-predictions",
             is_refused=True),
    *_retire("generate interactive eval-lm", _IN_DATA, flags="bpe-cased moses-no-dash-splits moses-no-escape",
             values="tokenizer bpe bpe-codes bpe-separator bpe-vocab-file gpt2-encoder-json gpt2-vocab-bpe "
                    "moses-source-lang moses-target-lang sentencepiece-vocab"),
    *_retire("generate eval-lm", "a bar shows in a terminal, a line now and then elsewhere", flags="no-progress-bar",
             values="log-interval log-format tensorboard-logdir"),
    *_retire("interactive", "it belongs to `lamina generate`",
             flags="no-progress-bar quiet sacrebleu skip-invalid-size-inputs-valid-test",
             values="log-interval log-format tensorboard-logdir gen-subset results-path num-shards shard-id prefix-size"),
    *_retire("eval-lm", "there is nothing but the figures unless --output-word-probs asks for more", flags="quiet"),
    *_retire("eval-lm", "lines go to standard output: redirect them", values="results-path"),
    *_retire("eval-lm", "a text has no source that could be cut", flags="truncate-source"),
    *_retire("interactive", "use `lamina rescore`", flags="score-reference", is_refused=True),
    *_retire("interactive", "use --too-long truncate, which is the default", flags="truncate-source"),
    # Of releases after 0.9, on lines that many people paste.
    *_retire("train", "validation translates greedily", values="eval-bleu-args"),
    *_retire("train", "the detokenizer is that of the target language", values="eval-bleu-detok-args"),
    *_retire("train", "one best checkpoint is kept, checkpoint_best.pt; --keep-last-epochs keeps several",
             values="keep-best-checkpoints"),
    *_retire("train", "figures go to the log and to --tensorboard-logdir", values="wandb-project azureml-logging"),
    # Of the forks: read by nothing, or only by experiments under a secret name.
    *_retire("train", "nothing reads it in the fork either", flags="amsgrad embedding-aware", values="adam-freeze tb-tag"),
    *_retire("train", "an experiment of the fork that its paper does not use", flags="no-encoder-fnn no-decoder-fnn",
             values="addtional-source-output", is_refused=True),
)


def retired_for(command: str) -> list[Retired]:
    return [option for option in RETIRED if option.command == command]
