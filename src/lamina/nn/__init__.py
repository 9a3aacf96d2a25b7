"""Blocks: they know tensors, not text, files, flags or configurations."""
