"""Looks inside a model: its attention while it runs, what its outputs depend on, and how far that can be trusted.

with vitrail.explain.capture(model, layers=[-1], rows="class") as captured:
    logits = model(images)
captured.attention[-1]
"""

from vitrail.callable_module import make_callable
from vitrail.explain.attention.capture import Captured, capture
from vitrail.explain.attention.capture import Captured as Seen
from vitrail.explain.attention.head_statistics import statistics
from vitrail.explain.attention.layer import AttentionLayer, attention_layers
from vitrail.explain.embeddings import filters, position_similarity
from vitrail.explain.methods.saliency import methods, saliency
from vitrail.explain.probes.probe import probe
from vitrail.explain.scoring.faithfulness import faithfulness
from vitrail.explain.similarity import cka

__all__ = [
    "AttentionLayer",
    "Captured",
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

make_callable(__name__)
