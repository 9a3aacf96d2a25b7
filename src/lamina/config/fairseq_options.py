"""What became of each option of fairseq and the two forks: the one table behind retired flags, the migration page and its test.

An option that the command's configuration knows, by name or alias, is implemented. The others are retired: accepted with a
notice where leaving them out changes nothing that matters, refused with a reason where the run would not be what was asked
for. `FAIRSEQ_OPTIONS` are those of 0.9's commands for the tasks that are here too; `RETIRED` also has those of other tasks, of
the forks and of main.
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


def _refuse(commands: str, reason: str, names: str) -> Iterator[Retired]:
    """Whether they take a value does not matter: they are named, and nothing runs."""
    yield from _retire(commands, reason, flags=names, is_refused=True)


_DECODING_COMMANDS = "generate interactive"
_USING = f"{_DECODING_COMMANDS} eval-lm"
_ALL = f"train {_USING}"
_ONE_PAIR = ("a model has one source and one target language; several pairs share one where a mark in each source "
             "line names the target")
_NO_BACK_TRANSLATION = ("back-translation comes before training: `lamina interactive` translates, and `lamina preprocess` "
                        "takes what comes out")
_NO_DENOISING = "no task restores damaged text as BART does; --task masked_lm fills gaps"
_NO_EXPERTS = "there are no mixtures of experts"
_NO_REFINING = "there are no models that refine a translation step by step"
_WHOLE_MODELS = "weights come from a whole model, by --finetune-from-model"
_NO_LEGACY = "it belongs to masked language models older than RoBERTa; here is --task masked_lm"
_NO_RANKING = "sentences are classified (--task sentence_prediction), not ranked"
_NO_SIMULTANEOUS = "translation starts when the source is read to its end"
_NO_SPEECH = "models read text, and there are none of speech"
_IN_DATA = "how text is cut into subwords is an option of `lamina preprocess`; the data folder and checkpoints remember it"

RETIRED: tuple[Retired, ...] = (
    *_retire("train", "gradients of parts that took no part are zeros, and no rank waits for them",
             flags="find-unused-parameters"),
    *_retire("train", "ranks always exchange a few numbers, never objects", flags="fast-stat-sync"),
    *_retire("train", "batches are drawn again each epoch; a fixed share per GPU saves nothing with memory-mapped data",
             flags="fix-batches-to-gpus"),
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
    *_retire("train", "the optimizers are adam, radam, adamw, muon, nag and sgd",
             flags="anneal-eps scale-parameter warmup-init relative-step no-bias-correction",
             values="adadelta-rho adadelta-eps adafactor-eps clip-threshold decay-rate beta1 adamax-betas adamax-eps",
             is_refused=True),
    *_retire("train", "block-wise model updates gave way to large batches: use --update-freq",
             flags="use-bmuf use-nbm average-sync",
             values="block-lr block-momentum global-sync-iter warmup-iterations", is_refused=True),
    *_retire("train", "the schedules are fixed, inverse_sqrt, linear, polynomial_decay, poly, cosine and "
             "reduce_lr_on_plateau", flags="shrink-min",
             values="warmup-steps hold-steps decay-steps init-lr-scale final-lr-scale", is_refused=True),
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
    *_retire("train", "training batches are drawn again each epoch, and validation keeps its order", flags="no-shuffle",
             is_refused=True),
    *_retire("train", "sentences are classified by encoders alone", flags="add-prev-output-tokens", is_refused=True),
    *_retire("train", "a checkpoint's own head always loads with it", flags="load-checkpoint-heads"),
    *_retire("train", "predictions come from Python: lamina.load(FILE).predict_all(...)", values="save-predictions",
             is_refused=True),
    # Of other tasks and models, in any release: unknown here for a reason.
    *_refuse(_ALL, _ONE_PAIR, """
        add-lang-token baseline-model baseline-model-langs decoder-langtok enable-lang-ids
        enable-reservsed-directions-shared-datasets encoder-langtok extra-data extra-lang-pairs fixed-dictionary
        keep-inference-langtok lang-dict lang-pairs lang-to-offline-shard-ratio lang-tok-replacing-bos-eos lang-tok-style
        langs langtoks langtoks-specs mono-langs monolingual-langs multilang-sampling-alpha no-whole-word-mask-langs
        prepend-bos sampling-method sampling-temperature sampling-weights sampling-weights-from-file share-decoder-embeddings
        share-decoders share-encoder-embeddings share-encoders source-dict target-dict valid-lang-pairs virtual-data-size
        virtual-epoch-size
        """),
    *_refuse(_ALL, _NO_BACK_TRANSLATION, """
        bt-beam-size bt-max-len-a bt-max-len-b generate-one-by-one lambda-bt lambda-dae lambda-denoising-config
        lambda-otf-bt-config lambda-parallel-config max-word-shuffle-distance word-blanking-prob word-dropout-prob
        """),
    *_refuse(_ALL, _NO_DENOISING, """
        hack-layernorm-embedding insert mask mask-length mask-random mean-noise-span-length noise-density permute
        permute-sentences poisson-lambda pretrained-decoder pretrained-mlm-checkpoint replace-length rotate shuffle-instance
        """),
    *_refuse(_ALL, _NO_EXPERTS, """
        gen-expert mean-pool-gating-network mean-pool-gating-network-dropout mean-pool-gating-network-encoder-dim method
        num-experts
        """),
    *_refuse(_ALL, _NO_REFINING, """
        crf-beam-approx crf-lowrank-approx dae-ratio early-exit label-tau length-loss-factor no-share-discriminator
        no-share-maskpredictor noise pred-length-offset sampling-for-deletion sg-length-pred share-discriminator-maskpredictor
        src-embedding-copy stochastic-approx train-step word-ins-loss-factor
        """),
    *_refuse(_ALL, "models are Transformers, and there are no LSTMs", """
        decoder-attention decoder-dropout-in decoder-dropout-out decoder-freeze-embed decoder-hidden-size
        decoder-out-embed-dim encoder-bidirectional encoder-dropout-in encoder-dropout-out encoder-freeze-embed
        encoder-hidden-size residuals
        """),
    *_refuse(_ALL, "models are Transformers, and there are no convolutions", """
        decoder-conv-dim decoder-conv-type decoder-glu decoder-kernel-size-list downsample encoder-attention
        encoder-attention-nheads encoder-conv-dim encoder-conv-type encoder-glu encoder-kernel-size-list gated-attention
        input-dropout multihead-attention-nheads multihead-self-attention-nheads pretrained pretrained-checkpoint
        project-input self-attention share-input-output-embed weight-dropout weight-softmax
        """),
    *_refuse(_ALL, "alignment is not trained; `lamina generate --print-alignment` reads it off the last decoder layer",
             "alignment-heads alignment-lambda alignment-layer full-context-alignment"),
    *_refuse(_ALL, _WHOLE_MODELS, "init-decoder-only init-encoder-only pretrained-xlm-checkpoint"),
    *_refuse(_ALL, _NO_LEGACY, """
        act-dropout apply-bert-init bias-kv break-mode masked-lm-only nsp-loss-weight num-segment sent-loss sentence-class-num
        share-encoder-input-output-embed shuffle shuffle-dataset zero-attn
        """),
    *_refuse(_ALL, _NO_RANKING, "max-option-length ranking-head-name"),
    *_refuse(_ALL, "there is no task on made-up data", "dataset-size dict-size src-len tgt-len"),
    *_refuse(_ALL, "each stack has its own, such as --encoder-layers and --decoder-layers",
             "embed-dim num-attention-heads num-layers"),
    *_refuse(_ALL, "each stack has its own: --encoder-layerdrop and --decoder-layerdrop", "layerdrop"),
    *_refuse(_ALL, "both stacks have the same: --dropout, --attention-dropout and --activation-dropout",
             "decoder-activation-dropout decoder-attention-dropout decoder-dropout encoder-dropout"),
    *_refuse(_ALL, _NO_SPEECH, """
        activation adaptor-kernel-size adaptor-layerdrop adaptor-layernorm adaptor-n-layers adaptor-proj adaptor-stride
        add-eos add-postnet adp-act-fn adp-dim adp-num adp-trf-idx agg-zero-pad aggregator apply-mask attention-conv-dim
        attention-conv-kernel-size attention-dim attention-use-cumprob attn-type autoregressive balanced-classes
        bce-pos-weight binarized-dataset blank-mode blank-weight can-sum channel-weights channels chunk-bound chunk-incr
        chunk-init clone-batch codebook-negatives combine-groups config-yaml conv-adapator-kernal conv-aggregator-layers
        conv-bias conv-channels conv-feature-layers conv-kernel-sizes conv-layers conv-out-channels conv-pos
        conv-pos-batch-norm conv-pos-groups conv-version crop-seq-to-multiple cross-sample-negatives ctc-weight
        decoder-cross-layers decoder-hidden-dim decoder-lstm-dim decoder-lstm-layers decoder-num-layers
        decoder-transformer-layers dedup delayed-duration-target depthwise-conv-kernel-size discrete-duration discrete-f0
        do-chunk drop-path dropout-agg dropout-features dropout-input duration-loss-weight duration-prediction
        edge-unit-loss-weight edge-unit-prediction enable-padding encoder encoder-conv-kernel-size encoder-conv-layers
        encoder-freezing-updates encoder-lstm-layers encoder-proj encoder-transformer-layers eos-prob-threshold eval-args
        eval-inference eval-tb-nsample eval-wer eval-wer-config eval-wer-parse eval-wer-post-process eval-wer-tokenizer
        expand-adjacent extractor-mode feature-encoder-spec feature-grad-mult fft-hidden-dim fft-kernel-size final-dim
        final-dropout fine-tuning finetune-decoder-params finetune-w2v-params freeze-finetune-updates freeze-regex
        general-unit-loss-weight gru-dim guided-attention-loss-sigma ignore-duration-input ignore-f0-input in-channels
        infer-target-lang infonce init-attn-c input-channels input-feat-per-channel input-layers interpolate-f0 inverse-mask
        label-dir label-rate label-rate-ratios labels latency-avg-type latency-avg-weight latency-gather-method
        latency-update-after latency-var-type latency-var-weight latent-dim latent-embed-dim latent-groups latent-temp
        latent-vars layer-decay layer-norm-first layer-type left-context load-ema load-pretrained-aux-decoder-from
        load-pretrained-decoder-from load-pretrained-encoder-from log-compression log-f0 log-keys logit-temp loss-weights
        lstm-size main-and-cross-weights mask-channel-before mask-channel-length mask-channel-min-space mask-channel-other
        mask-channel-prob mask-channel-selection mask-dropout mask-dur-prob mask-dur-seg-leng mask-dur-seg-prob
        mask-dur-seg-type mask-f0-prob mask-f0-seg-leng mask-f0-seg-prob mask-f0-seg-type mask-min-space mask-other
        mask-prob-adjust mask-selection mask-unit-seg-leng mask-unit-seg-prob mask-unit-seg-type max-keep-size max-memory-size
        max-sample-size max-target-durations max-token-duration mcd-normalize-type min-sample-size multi-corpus-keys
        multi-corpus-sampling-weights multires-hubert-args multires-hubert-path multitask-config-yaml n-frames-per-step
        negatives-from-everywhere next-unit-prediction no-conv-bias no-mask-channel-overlap no-mask-overlap
        no-pretrained-weights no-scale-feature non-affine-group-norm non-overlapping normalize normalize-f0-mean
        normalize-f0-std num-blstm-layers num-negatives offset output-frame-dim output-layer-dim override-encoder-layers
        pad-audio pooling pos-conv-depth pos-enc-type post-save-script postnet-conv-dim postnet-conv-kernel-size
        postnet-dropout postnet-layers precompute-mask-config pred-masked-weight pred-nomask-weight prediction-steps
        prenet-dim prenet-dropout prenet-layers project-features quantize-input quantize-targets quantizer-depth
        quantizer-factor random-crop rebuild-batches ref-fpu remove-weight-norm require-same-masks reset-dict residual-scale
        right-context same-quantizer sample-distance sample-rate segment-size seq2seq-path single-target skip-connections-agg
        skip-connections-feat skip-masked skip-nomask speaker-embed-dim spec-bwd-max-iter speech-conv-bias
        speech-encoder-layers speech-extractor-mode speech-mask-channel-length speech-mask-channel-min-space
        speech-mask-channel-other speech-mask-channel-prob speech-mask-channel-selection speech-mask-length
        speech-mask-min-space speech-mask-other speech-mask-prob speech-mask-selection speech-no-mask-channel-overlap
        speech-no-mask-overlap stream-shifts subsample synthesizer synthesizer-augmented-cross-attention
        synthesizer-encoder-layers target-code-size target-dictionary target-glu target-is-code text-compression-level
        text-encoder-layers translation-decoder-layers untie-final-proj update-alibi use-guided-attention-loss
        use-multi-stream use-plain-updownsample use-single-prediction use-single-target var-pred-dropout var-pred-hidden-dim
        var-pred-kernel-size var-pred-n-bins vocoder vq-depth vq-dim vq-gamma vq-groups vq-temp vq-type vq-vars w2v-args
        w2v-freezing-updates w2v-path wer-args wer-char-level wer-kenlm-model wer-lexicon wer-lm-weight wer-lowercase
        wer-remove-punct wer-sil-weight wer-tokenizer wer-word-score zero-infinity zero-mask zoneout
        """),
    *_refuse(_ALL, "a loss is made of one criterion", "underlying-criterion"),
    *_refuse(_ALL, "this variant of later releases is not built", """
        base-layers base-shuffle base-sublayers char-inputs d2v2-multi decoder-xformers-att-config encoder-xformers-att-config
        ffn-blocks-to-remove ffn-reg-scale-factor ignore-prefix-size include-index include-target-tokens mask-multiple-length
        mask-stdev merge-src-tgt-embed mha-heads-to-keep mha-reg-scale-factor no-final-layer-norm rdrop-alpha scale-attn
        scale-fc scale-heads scale-resids skip-masking spectral-norm-classification-head
        """),
    *_refuse(_ALL, "training does not imitate rounding; --quantize int8 of generate and interactive rounds a trained model",
             "quant-noise-pq quant-noise-pq-block-size quant-noise-scalar quantization-config-path"),
    *_refuse(_ALL, _NO_SIMULTANEOUS, "simul-type"),
    *_refuse(_ALL, "what to do with long lines is said by --truncate-source, --too-long, or when the data folder is made",
             "shorten-data-split-list shorten-method"),
    *_refuse(_ALL, "a model is whole on each GPU, or sharded over them with --fsdp", """
        model-parallel-size num-embedding-chunks pipeline-balance pipeline-checkpoint pipeline-chunks pipeline-decoder-balance
        pipeline-decoder-devices pipeline-devices pipeline-encoder-balance pipeline-encoder-devices pipeline-model-parallel
        """),
    *_refuse(_ALL, "there is no support for TPUs", "tpu"),
    *_refuse(_ALL, "checkpoints are whole files with one name", "checkpoint-shard-count checkpoint-suffix"),
    *_refuse("train", "--fsdp shards weights, gradients and the optimizer's state", "zero-sharding"),
    *_refuse("train", "memory is saved by --fsdp and --checkpoint-activations", "cpu-offload offload-activations"),
    *_refuse("train", "every update adds up the gradients of all ranks",
             "localsgd-frequency slowmo-base-algorithm slowmo-momentum"),
    *_refuse("train", "`lamina average` averages checkpoints; no running mean is kept while training",
             "ema-decay ema-fp32 ema-seed-model ema-start-update ema-update-freq store-ema"),
    *_refuse("train", "splits are named by --valid-subset, with commas between them", "combine-val combine-valid-subsets"),
    *_refuse("train", "validation reads the whole split", "max-valid-steps nval"),
    *_refuse("train", "send the run SIGTERM when its time is over: it saves and stops", "stop-time-hours"),
    *_refuse("train", "use --restore-file, or --finetune-from-model for the weights alone", "continue-once"),
    *_refuse("train", "the newest are kept by --keep-interval-updates; copy those that should stay",
             "keep-interval-updates-pattern"),
    *_refuse("train", "the optimizers are adam, radam, adamw, muon, nag and sgd", "dynamic-groups groups lamb-betas lamb-eps"),
    *_refuse("train", "Adam always corrects its running means for their start at 0", "adam-no-correction1"),
    *_refuse("train", "the schedules are fixed, inverse_sqrt, linear, polynomial_decay, poly, cosine and "
             "reduce_lr_on_plateau", "epoch2lr lr-deacy-period lr-decay phase-ratio update2lr"),
    *_refuse("train", "block-wise model updates gave way to large batches: use --update-freq", "tbmf-wrapper"),
    *_refuse("train", "validation's figures are --eval-bleu and --eval-rouge; `lamina generate --metric` and `lamina score` "
             "have others", "bert-score-lang eos pad sacrebleu-char-level sacrebleu-lowercase sacrebleu-tokenizer unk"),
    *_refuse(_USING, "figures are chosen by --sacrebleu and --metric; `lamina score` has others",
             "bert-score-lang eos pad sacrebleu-char-level sacrebleu-lowercase sacrebleu-tokenizer unk"),
    *_refuse("train", "subwords are joined by --eval-bleu-remove-bpe in validation", "post-process"),
    *_refuse(_DECODING_COMMANDS, "decoding has no second model beside it", "lm-path lm-weight"),
    *_refuse(_DECODING_COMMANDS, "use --diverse-beam-groups, or --sampling", "diversity-rate"),
    *_refuse(_DECODING_COMMANDS, _NO_REFINING, "iter-decode-with-beam iter-decode-with-external-reranker"),
    *_refuse(_DECODING_COMMANDS, "dropout is always off outside training", "retain-dropout retain-dropout-modules"),
    *_refuse(_DECODING_COMMANDS, "a translation ends with </s>", "eos-token"),
    *_refuse(_DECODING_COMMANDS, _NO_SPEECH, "beam-mt lenpen-mt max-len-a-mt max-len-b-mt"),
    # Of releases after 0.9 and of the forks: how the work is done, not what comes out.
    *_retire("train", "gradients travel in pieces; --bucket-cap-mb says how large they are",
             flags="fp16-no-flatten-grads gradient-as-bucket-view", values="ddp-comm-hook"),
    *_retire("train preprocess", "ranks always exchange a few numbers, never objects", values="all-gather-list-size"),
    *_retire("train", "models have no buffers that training changes", flags="broadcast-buffers"),
    *_retire("train", "there is one Adam, and its state is float32", flags="fp16-adam-stats use-old-adam"),
    *_retire("train", "an update whose gradient overflows is skipped, not repeated", values="amp-batch-retries"),
    *_retire("train", "--fsdp needs no further settings",
             flags="fp32-reduce-scatter not-fsdp-flatten-parameters",
             values="min-params-to-wrap"),
    *_retire("train", "there is one process per GPU", values="distributed-num-procs nprocs-per-node"),
    *_retire("train", "a rank that fails stops the others", values="heartbeat-timeout"),
    *_retire("train", "batches are drawn again each epoch, and the last, smaller one is used like the others",
             flags="grouped-shuffling update-epoch-batch-itr update-ordered-indices-seed skip-remainder-batch"),
    *_retire("train", "padding never changes a result",
             flags="pad-to-fixed-bsz pad-to-fixed-length", values="num-batch-buckets required-seq-len-multiple"),
    *_retire("train preprocess", "data folders are always memory-mapped (mmap)", flags="use-plasma-view", values="plasma-path"),
    *_retire("train", "data folders are always memory-mapped (mmap)", values="data-buffer-size"),
    *_retire("train", "only the splits that --valid-subset names are read", flags="ignore-unused-valid-subsets"),
    *_retire("train", "validation begins with the first interval", values="validate-after-updates"),
    *_retire("train", "figures go to the log, to train.jsonl in --save-dir and to --tracker",
             flags="debug-param-names reset-logging suppress-crashes", values="aim-repo aim-run-hash log-file"),
    *_retire("train", "every rank reads the checkpoint", flags="load-checkpoint-on-all-dp-ranks"),
    *_retire("train", "figures at validation are those of the task",
             flags="report-acc-and-f1 report-accuracy report-mcc report-pearson-and-spearman", values="scoring"),
    *_retire("train", "a model is built for training; `lamina export` writes it for others", flags="export"),
    *_retire("train", "the conversion takes no memory worth saving", flags="on-cpu-convert-precision"),
    *_retire("train", _IN_DATA,
             flags="""
        bpe-add-prefix-space sentencepiece-enable-sampling
        """,
             values="""
        bpe-merges bpe-vocab sentencepiece-alpha sentencepiece-model sentencepiece-model-path
        """),
    *_retire("train", "`lamina analyze depth` shows it for a trained model",
             flags="plot-gradient plot-stability plot-variance"),
    *_retire("train", "nothing reads it in the fork either", flags="gradient-as-delta mixed-precision"),
    *_retire("preprocess", "it belongs to training, and preprocessing never read it",
             flags="""
        amp azureml-logging bf16 fp16-no-flatten-grads memory-efficient-bf16 on-cpu-convert-precision profile reset-logging
        suppress-crashes tbmf-wrapper
        """,
             values="""
        aim-repo aim-run-hash amp-batch-retries amp-init-scale amp-scale-window log-file scoring simul-type wandb-project
        """),
    *_refuse("preprocess", "it belongs to training, and has no meaning here",
             "model-parallel-size quantization-config-path tpu"),
    *_retire(_USING, "it belongs to training, and decoding never read it",
             flags="""
        adam-no-correction1 amsgrad azureml-logging broadcast-buffers combine-val combine-valid-subsets cpu-offload
        disable-validation distributed-no-spawn dynamic-groups fast-stat-sync find-unused-parameters fix-batches-to-gpus
        fp16-adam-stats fp16-no-flatten-grads fp32-reduce-scatter gradient-as-bucket-view grouped-shuffling
        ignore-unused-valid-subsets load-checkpoint-on-all-dp-ranks maximize-best-checkpoint-metric no-reshard-after-forward
        not-fsdp-flatten-parameters on-cpu-convert-precision pad-to-fixed-bsz pad-to-fixed-length profile report-acc-and-f1
        report-accuracy report-mcc report-pearson-and-spearman reset-logging sentence-avg suppress-crashes tbmf-wrapper
        update-epoch-batch-itr update-ordered-indices-seed use-old-adam use-plasma-view use-sharded-state
        """,
             values="""
        adam-freeze aim-repo aim-run-hash all-gather-list-size amp-batch-retries amp-init-scale amp-scale-window
        batch-size-valid best-checkpoint-metric bucket-cap-mb classification-head-name curriculum data-buffer-size ddp-backend
        ddp-comm-hook device-id distributed-backend distributed-init-method distributed-num-procs distributed-port
        distributed-rank distributed-world-size epoch2lr fixed-validation-seed groups heartbeat-timeout lamb-betas lamb-eps
        local-rank localsgd-frequency log-file lr lr-deacy-period lr-decay lr-patience max-sentences-valid max-tokens-valid
        max-update max-valid-steps nprocs-per-node num-batch-buckets nval phase-ratio plasma-path poly-pow
        required-seq-len-multiple slowmo-base-algorithm slowmo-momentum tb-tag train-subset update2lr valid-subset
        validate-after-updates validate-interval validate-interval-updates wandb-project zero-sharding
        """),
    *_retire(_DECODING_COMMANDS, "it belongs to training, and decoding never read it",
             flags="""
        no-epoch-checkpoints no-last-checkpoints no-save no-save-optimizer-state reset-dataloader reset-lr-scheduler
        reset-meters reset-optimizer save-async write-checkpoints-asynchronously
        """,
             values="""
        continue-once finetune-from-model keep-best-checkpoints keep-interval-updates keep-interval-updates-pattern
        keep-last-epochs optimizer-overrides patience restore-file save-dir save-interval save-interval-updates
        """),
    *_retire(_DECODING_COMMANDS, "--seed fixes what --sampling draws", flags="no-seed-provided"),
    *_retire("interactive", "it belongs to `lamina generate`", values="scoring"),
    *_retire("eval-lm", "the figures are loss and perplexity", values="scoring"),
    *_retire(_USING, "it belongs to training, and decoding never read it",
             flags="""
        eval-bleu eval-bleu-print-samples eval-tokenized-bleu
        """,
             values="""
        eval-bleu-args eval-bleu-detok eval-bleu-detok-args eval-bleu-remove-bpe min-lr
        """),
    *_retire(_USING, "the model's positions are its checkpoint's", values="max-positions"),
    *_retire(_USING, _IN_DATA,
             flags="""
        bpe-add-prefix-space sentencepiece-enable-sampling
        """,
             values="""
        bpe-merges bpe-vocab sentencepiece-alpha sentencepiece-model sentencepiece-model-path
        """),
    *_retire("train", "it belongs to `lamina generate`", values="gen-subset num-shards shard-id"),
    *_refuse("average", "one best checkpoint is kept; --num-epoch-checkpoints and --num-update-checkpoints average the "
             "newest", "num-best-checkpoints"),
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
    *_retire("generate interactive", _NO_REFINING,
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
    *_retire("train", "figures go to the log, to train.jsonl in --save-dir and to --tracker", flags="azureml-logging"),
    # Of the forks: read by nothing, or only by experiments under a secret name.
    *_retire("train", "nothing reads it in the fork either", flags="amsgrad embedding-aware", values="adam-freeze tb-tag"),
    *_retire("train", "an experiment of the fork that its paper does not use", flags="no-encoder-fnn no-decoder-fnn",
             values="addtional-source-output", is_refused=True),
)


_TASKS = (
    ("multilingual_translation multilingual_language_modeling multilingual_masked_lm multilingual_denoising "
     "translation_multi_simple_epoch translation_from_pretrained_bart cross_lingual_lm", _ONE_PAIR),
    ("semisupervised_translation online_backtranslation", _NO_BACK_TRANSLATION),
    ("denoising span_masked_lm", _NO_DENOISING),
    ("translation_moe", _NO_EXPERTS),
    ("translation_lev", _NO_REFINING),
    ("translation_from_pretrained_xlm", _WHOLE_MODELS),
    ("legacy_masked_lm", _NO_LEGACY),
    ("sentence_ranking", _NO_RANKING),
    ("simul_text_to_text", _NO_SIMULTANEOUS),
    ("audio_pretraining audio_finetuning audio_classification speech_to_text speech_to_speech text_to_speech "
     "frm_text_to_speech simul_speech_to_text hubert_pretraining multires_hubert_pretraining nlu_finetuning speech_dlm_task "
     "speech_unit_modeling", _NO_SPEECH),
)

# What became of values that an option had there and has not here: (option, value) -> why.
REFUSED_VALUES: dict[tuple[str, str], str] = {
    ("print-alignment", "soft"): "an A- line names the source token that is looked at most, for each token",
    ("init-type", "looklinear"): "its mirrored feed-forward weights are not built; for deep Post-LN models there is admin",
    **{("task", task): reason for tasks, reason in _TASKS for task in tasks.split()},
}


def retired_for(command: str) -> list[Retired]:
    return [option for option in RETIRED if option.command == command]
