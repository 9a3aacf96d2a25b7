"""From a model to sentences."""
