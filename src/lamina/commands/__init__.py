"""One thin file a command: a configuration comes in, library functions do the work."""
