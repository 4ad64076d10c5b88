"""The cases of parity, one file a family."""
