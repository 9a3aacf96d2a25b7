"""Strings to ids and back: subword models, tokenizers and vocabularies."""
