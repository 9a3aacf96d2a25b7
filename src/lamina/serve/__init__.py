"""Models behind HTTP: an engine for each, the APIs of others in front of it, and a page."""
