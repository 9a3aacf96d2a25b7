"""Text against text."""
