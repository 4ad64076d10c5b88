"""Seeing inside a model: its attention while it runs, what decided an answer, and whether that is true.

with vitrail.explain.capture(model, layers=[-1], rows="class") as seen:
    logits = model(images)
seen.attention[-1]
"""

from vitrail.explain.attention_statistics import statistics
from vitrail.explain.capture import Seen, capture
from vitrail.explain.embeddings import filters, position_similarity
from vitrail.explain.faithfulness import faithfulness
from vitrail.explain.layer import AttentionLayer, attention_layers
from vitrail.explain.probes import probe
from vitrail.explain.saliency import methods, saliency
from vitrail.explain.similarity import cka

__all__ = [
    "AttentionLayer",
    "Seen",
    "attention_layers",
    "capture",
    "cka",
    "faithfulness",
    "filters",
    "methods",
    "position_similarity",
    "probe",
    "saliency",
    "statistics",
]
