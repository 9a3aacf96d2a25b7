"""Several processes that train one model: how they start, talk, share weights and stop."""
