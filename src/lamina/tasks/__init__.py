"""What a run learns: data, vocabularies, and the metric that judges it."""

from __future__ import annotations

from lamina.tasks.base import Task
from lamina.tasks.language_modeling import LanguageModeling
from lamina.tasks.masked_lm import MaskedLm
from lamina.tasks.sentence_prediction import SentencePrediction
from lamina.tasks.translation import Translation

TASKS: dict[str, type[Task]] = {task.name: task for task in (Translation, LanguageModeling, MaskedLm, SentencePrediction)}
