"""Backbones: one file per family, and the registry of all families."""
