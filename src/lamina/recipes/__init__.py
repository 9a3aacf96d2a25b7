"""Experiments as files: corpora prepared from what one downloads, runs that resume, results that say where they come from."""
