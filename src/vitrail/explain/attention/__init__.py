"""Attention weights while a model runs: capture, layers, statistics by head."""
