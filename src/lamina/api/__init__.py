"""What `import lamina` offers: data, training, and models ready to be used on raw text."""

from lamina.api.data_sets import Data, prepare
from lamina.api.language_model import LanguageModel
from lamina.api.loaded_model import LoadedModel, States
from lamina.api.loading import load
from lamina.api.masked_model import Filling, MaskedLanguageModel, Prediction
from lamina.api.outputs import DTYPES, Attention, Score, Translation
from lamina.api.saving import save
from lamina.api.train_function import train
from lamina.api.translator import Translator
from lamina.config.model import ModelConfig
from lamina.config.search_options import SearchConfig
from lamina.data.batching import AnyBatch
from lamina.training.events import Event

__all__ = ["DTYPES", "AnyBatch", "Attention", "Data", "Event", "Filling", "LanguageModel", "LoadedModel",
           "MaskedLanguageModel", "ModelConfig", "Prediction", "Score", "SearchConfig", "States", "Translation",
           "Translator", "load", "prepare", "save", "train"]
