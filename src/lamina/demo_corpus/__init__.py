"""A real English-Romanian corpus made on the spot, for demonstrations and end-to-end tests without a download."""
