"""Models that answer many clients at once: an engine for each, published APIs in front of it, and a page."""
