"""Checkpoints: tensors and plain containers, written atomically, loaded without running code."""
