"""Saliency methods: how much each pixel matters for one output of a model."""
