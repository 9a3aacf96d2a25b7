"""Frozen dataclasses, one per concern; flags, recipes, checkpoints and docs are generated from them."""
