"""Lamina: deep, fused and prunable Transformers."""

__version__ = "0.1.0"
