"""What a run learns: data, vocabularies, and the metric that judges it."""
