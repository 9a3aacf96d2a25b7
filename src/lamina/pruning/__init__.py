"""Everything that removes layers: cutting them out, and finding which ones a model can do without."""
