"""From text files to a data folder."""
