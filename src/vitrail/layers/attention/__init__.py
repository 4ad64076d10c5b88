"""Attention mechanisms, one file each; a new one is added by its file and one line here."""

from vitrail.layers.attention.base import Attention, AttentionConfig, MultiHead, Site
from vitrail.layers.attention.softmax import SoftmaxAttention, SoftmaxConfig

__all__ = ["Attention", "AttentionConfig", "MultiHead", "Site", "SoftmaxAttention", "SoftmaxConfig"]
