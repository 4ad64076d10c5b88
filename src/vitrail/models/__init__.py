"""Layers -> backbones: one file a family, and the registry that knows them all."""
