"""Three parts from outside: a residual, a fusion and a criterion. To try them: `--user-dir examples/parts/example_parts.py`."""

from dataclasses import dataclass, replace

from lamina import register
from lamina.fields import check, flag
from lamina.parts import Criterion, Fusion, Residual


@register.residual("layer-scale")
@dataclass(frozen=True, kw_only=True)
class LayerScale(Residual):
    """x + gamma * f(x), a small gamma for each channel that training finds (Touvron et al. 2021, §2)."""

    start: float = flag(0.1, "what gamma starts from", name="layer-scale-start", paper="Touvron et al. 2021 §2")

    def __post_init__(self):
        check(self.start > 0, f"--layer-scale-start is {self.start}; it must be above 0.")

    def adds(self, place):
        import torch

        from lamina.nn.residual import Add

        class ScaledAdd(Add):
            def __init__(self, start):
                super().__init__()
                self.start, self.gamma = start, torch.nn.Parameter(torch.empty(place.dim))

            def initialise_(self):
                self.gamma.fill_(self.start)

            def scales(self):
                return 1.0, self.gamma

            def forward(self, x, branch_output):
                return torch.addcmul(x, self.gamma, branch_output)

        return [ScaledAdd(self.start) for _ in range(place.num_sub_layers)]

    def fold(self, folding):
        folding.scale_branches("add.gamma")  # into the branch's last weights


@register.fusion("mean")
@dataclass(frozen=True, kw_only=True)
class MeanFusion(Fusion):
    """Every decoder layer reads the mean of all encoder layers, normalised."""

    counts: tuple[int, ...] = flag((), "how often the input and each layer count; once each layer if left out. Pruning sets it",
                                   name="mean-counts", metavar="N,N,..")
    reads_final = False
    set_by_pruning = ("mean-counts",)

    def check(self, num_encoder_layers, num_decoder_layers):
        check(len(self.counts) in (0, num_encoder_layers + 1),
              f"--mean-counts has {len(self.counts)} numbers; an encoder of {num_encoder_layers} layers needs one more.")

    def counts_of(self, num_layers):
        return self.counts or (0, *[1] * num_layers)

    def build(self, place):
        import torch

        from lamina.nn.fusion import INPUT, Memory, layer_name

        counts = self.counts_of(place.num_layers)

        class Mean(Memory):
            reads_final = False
            reads_states = frozenset(state for state, count in enumerate(counts) if count)

            def __init__(self):
                super().__init__()
                self.norm = torch.nn.LayerNorm(place.dim)

            def prepare(self, encoder):
                total = sum(encoder.states[state] * counts[state] for state in sorted(self.reads_states))
                return self.norm(total / sum(counts))

            def forward(self, prepared, reader):
                return prepared

            def in_words(self):
                return "the mean of all encoder layers"

            def read_weights(self, num_layers):
                names = (INPUT, *(layer_name(number + 1) for number in range(num_layers)))
                return names, torch.tensor([[count / sum(counts) for count in counts]] * place.num_readers)

        return Mean()

    def pruned(self, cut):
        """A layer that is gone passed on the state below it, which now counts for both."""
        counts = [0] * (len(cut.encoder) + 1)
        for state, count in enumerate(self.counts_of(cut.num_encoder)):
            counts[cut.encoder_state(state)] += count
        return replace(self, counts=tuple(counts))


@register.criterion("focal")
@dataclass(frozen=True, kw_only=True)
class FocalLoss(Criterion):
    """-(1 - p)^gamma log p: words that are known already count less (Lin et al. 2017, eq. 4)."""

    gamma: float = flag(2.0, "how much less; 0 is cross entropy", name="focal-gamma", paper="Lin et al. 2017 §3.2")

    def loss(self, model, batch, active, *, is_compiled):
        from lamina.nn.cross_entropy import LossSums

        log_probs = model.head.log_probs(model(*batch.inputs, active=active))
        own = log_probs.gather(-1, batch.target[..., None])[..., 0]
        nll = -(own * batch.target.ne(model.pad_id)).float()
        return LossSums(((1.0 - own.exp()) ** self.gamma * nll).sum(), nll.detach().sum())
