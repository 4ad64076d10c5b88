"""Attention maps of a model over examples, as a section of a report."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.models.backbone import Backbone
from vitrail.report import Section, Text
from vitrail.report.images import heat_gallery
from vitrail.tasks.answer import Example
from vitrail.tasks.gallery import caption
from vitrail.training.overlay import heat_map


def attention_section(
    model: Backbone,
    examples: Sequence[Example],
    *,
    preprocess: Callable[[Tensor], Tensor],
    target: Callable[[Tensor], Tensor] | None = None,
) -> Section | None:
    """Examples beside what the model looks at, or why that is unknown; None without examples."""
    if not examples:
        return None
    images = torch.stack([example.image for example in examples])  # B C H W
    try:
        prepared = preprocess(images.to(next(model.parameters()).device))
        found = heat_map(model, prepared, None if target is None else target(prepared))
    except Unsupported as error:
        reason = str(error)
        return Text("Attention", f"{reason[:1].upper()}{reason[1:].rstrip('.')}.")
    return heat_gallery(
        "Attention",
        found.text,
        list(images),
        list(found.maps.cpu()),
        [caption(example) for example in examples],
        alt=found.words,
    )
