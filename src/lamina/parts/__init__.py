"""The built-in parts, one file per family, registered as anybody's would be; contracts.py says what each kind answers.

A part is a frozen dataclass: its fields are options, its methods say what it builds and what becomes of it when a model is
folded, pruned, exported or analysed. torch is imported inside methods only.
"""

from lamina.parts import (
    activations,
    adapters,
    bottom_to_top,
    criteria,
    encoder_fusion,
    keel,
    layernorm_scaling,
    mixings,
    model_manners,
    muon,
    position_kinds,
    rate_schedules,
    residuals,
    search_rules,
    subword_libraries,
    surface_fusion,
    text_metrics,
    update_rules,
)
from lamina.parts.contracts import (
    Adapter,
    Criterion,
    DepthResidual,
    Figure,
    Fusion,
    FusionPlace,
    Head,
    HeadPlace,
    LayerPlace,
    MatrixRule,
    Metric,
    MetricInputs,
    Mixing,
    Optimizer,
    Part,
    Positions,
    Rates,
    Residual,
    RuleInForce,
    RulePlace,
    Schedule,
    Score,
    Stage,
    Step,
    StepRule,
    SubwordLibrary,
    TaskKind,
)

__all__ = ["Adapter", "Criterion", "DepthResidual", "Figure", "Fusion", "FusionPlace", "Head", "HeadPlace", "LayerPlace",
           "MatrixRule", "Metric", "MetricInputs", "Mixing", "Optimizer", "Part", "Positions", "Rates", "Residual",
           "RuleInForce", "RulePlace", "Schedule", "Score", "Stage", "Step", "StepRule", "SubwordLibrary", "TaskKind",
           "activations", "adapters", "bottom_to_top", "criteria", "encoder_fusion", "keel", "layernorm_scaling", "mixings",
           "model_manners", "muon", "position_kinds", "rate_schedules", "residuals", "search_rules", "subword_libraries",
           "surface_fusion", "text_metrics", "update_rules"]
