"""Loaded models that answer many clients at once."""
