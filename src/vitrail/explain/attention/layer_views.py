"""The attention of all layers for one image, in cells, ready to be shown."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.explain.attention.capture import Captured, capture
from vitrail.explain.attention.cells import LayerView, cell_of_patch
from vitrail.explain.attention.layer import attention_layers, prefix_names
from vitrail.models.backbone import Backbone

MAX_CELLS = 16  # a side; finer grids are shown in cells of several patches


def layer_views(model: Backbone, image: Tensor, layers: Sequence[int] | None = None) -> tuple[list[LayerView], str]:
    """The attention of all layers, or of chosen ones, for one image 1 C H W; and why layers are missing, as text.

    A chosen layer without an attention matrix raises Unsupported.
    """
    try:
        every = attention_layers(model)
        with torch.no_grad(), capture(model, layers=layers) as captured:
            model(image)
    except Unsupported as error:
        if layers is not None:
            raise
        return [], f"{_sentence(error)} Only methods that do not need attention are shown."
    views, missing = list[LayerView](), dict[str, list[int]]()
    for index in captured.layers:
        try:
            views.append(_layer_view(model, captured, index, every[index].name))
        except Unsupported as error:
            if layers is not None:
                raise
            missing.setdefault(_sentence(error), []).append(index)
    reasons = [
        f"{'Layer' if len(indices) == 1 else 'Layers'} {', '.join(map(str, indices))}: {reason}"
        for reason, indices in missing.items()
    ]
    return views, " ".join(reasons)


def _layer_view(model: Backbone, captured: Captured, index: int, name: str) -> LayerView:
    """One layer's attention in at most 16 x 16 cells, added up chunk by chunk of rows, so that no N x N is held."""
    grid, num_prefix = captured.grid[index], captured.num_prefix[index]
    side = -(-max(grid) // MAX_CELLS)
    cells = cell_of_patch(grid, side)  # N
    rows = torch.cat([torch.arange(num_prefix), num_prefix + cells]).to(captured.tokens[index].device)  # P+N
    sizes = torch.bincount(rows).float()[:, None]  # P+G 1
    count = len(sizes)  # P+G
    weights = torch.zeros(captured.layers[index].module.num_heads, count, count, device=rows.device)
    for chunk in captured.chunks(index):
        keys = weights.new_zeros(*chunk.attention.shape[1:3], count)  # A R P+G
        keys.index_add_(2, rows, chunk.attention[0])
        weights.index_add_(1, rows[chunk.rows], keys)
    prefix = prefix_names(model, num_prefix)
    return LayerView(index=index, name=name, grid=grid, side=side, prefix=prefix, weights=(weights / sizes).half())


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[0].upper()}{text[1:].rstrip('.')}."
