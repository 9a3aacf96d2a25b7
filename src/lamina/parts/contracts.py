"""What a part of each kind answers: the contracts between variants and the code that meets them, in one place to import from.

Code that meets a part asks it and never its type. A question that a part does not answer is refused in its name: what nobody
thought of is never treated as the plain case. `docs/extending.md` shows a part of each kind being written.
"""

from lamina.parts.model_contracts import (
    Adapter,
    Beginning,
    DepthResidual,
    Fusion,
    FusionPlace,
    Head,
    HeadPlace,
    LayerPlace,
    Mixing,
    Positions,
    Residual,
    without_pre_norm,
)
from lamina.parts.part import ModelPart, Part
from lamina.parts.search_contracts import RuleInForce, RulePlace, Stage, Step, StepRule
from lamina.parts.task_contracts import TaskKind
from lamina.parts.text_contracts import EDITS, REFERENCES, SOURCES, Figure, Metric, MetricInputs, Score, SubwordLibrary
from lamina.parts.tracking_contracts import Recorder, TrackedRun, Tracker
from lamina.parts.training_contracts import Criterion, Curve, MatrixRule, Optimizer, Rates, Schedule, ValidatedCurve

__all__ = ["EDITS", "REFERENCES", "SOURCES", "Adapter", "Beginning", "Criterion", "Curve", "DepthResidual", "Figure",
           "Fusion", "FusionPlace", "Head", "HeadPlace", "LayerPlace", "MatrixRule", "Metric", "MetricInputs", "Mixing",
           "ModelPart", "Optimizer", "Part", "Positions", "Rates", "Recorder", "Residual", "RuleInForce", "RulePlace",
           "Schedule", "Score", "Stage", "Step", "StepRule", "SubwordLibrary", "TaskKind", "TrackedRun", "Tracker",
           "ValidatedCurve", "without_pre_norm"]
