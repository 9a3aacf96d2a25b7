"""Whole models, put together from blocks by models/build.py."""
