"""What `import lamina` offers: models of checkpoints, ready to be used on raw text."""

from lamina.api.language_model import LanguageModel
from lamina.api.masked_model import Filling, MaskedLanguageModel, Prediction
from lamina.api.outputs import Score, Translation
from lamina.api.translator import DTYPES, Translator, load

__all__ = ["DTYPES", "Filling", "LanguageModel", "MaskedLanguageModel", "Prediction", "Score", "Translation",
           "Translator", "load"]
