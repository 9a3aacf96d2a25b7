"""Weights before step 0."""
