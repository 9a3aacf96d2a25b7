"""Ids on disk: data folders, how they are made, and how training reads them."""
