"""What a run learns: data, vocabularies, and the figures that judge it. kinds.py is the table of tasks."""
