"""Heat maps over pictures: attention, or Grad-CAM where a model has no attention matrix; a pass or two each."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.layers.block import Block
from vitrail.layers.pool import AttentionPool
from vitrail.models.backbone import Backbone
from vitrail.models.vit import ViT
from vitrail.tasks.grad_cam import grad_cam

_ROWS = 64  # queries whose attention is in memory at once
_STRETCHED = "stretched to the range of each picture"
_NOT_WHY = "It shows where information was taken from, not why the answer was given."


class HeatMap(NamedTuple):
    """Maps B h w, none negative; what they show in a few words, and in sentences for a page."""

    maps: Tensor
    words: str
    text: str


def heat_map(model: Backbone, images: Tensor, target: Tensor | None = None) -> HeatMap:
    """What a model attends to in float images B C H W, or Grad-CAM where it has no attention matrix.

    `target` B is the output that Grad-CAM explains, the largest by default. The mode of the model is kept. Unsupported,
    with the reason, where there is nothing to show.
    """
    learning = model.training
    model.eval()
    try:
        if isinstance(model, ViT) and len(model.blocks) and model.config.reduce is None:
            try:
                with torch.no_grad():
                    return _attended(model, images)
            except Unsupported:  # a mechanism without a matrix of tokens by tokens
                pass
        return _activated(model, images, target)
    finally:
        model.train(learning)


def _attended(model: ViT, images: Tensor) -> HeatMap:
    """What the tokens that the head reads attend to, in the mean of the heads.

    What goes to prefix tokens is left out, so that a map sums to at most 1.
    """
    if isinstance(model.pool, AttentionPool):
        features = model.features(images)
        maps = model.pool.weights(features.patches)[:, :, 0].mean(dim=1).unflatten(1, features.grid)  # B h w
        text = f"What the query that pools the patches attends to, mean of the heads, {_STRETCHED}. {_NOT_WHY}"
        return HeatMap(maps.float(), "what the pooling query attends to", text)
    tokens, grid = model.embed(images)
    for block in model.blocks[:-1]:
        tokens = block(tokens, grid)
    last, count = cast("Block", model.blocks[-1]), grid[0] * grid[1]
    read = last.norm1(tokens) if last.norm_placement == "pre" else tokens
    by_class = model.config.pool.needs_class_token
    asking = torch.arange(tokens.shape[1], device=tokens.device)[slice(1) if by_class else slice(-count, None)]
    sums = [last.attention.weights(read, grid, rows=rows).sum(dim=2).mean(dim=1) for rows in asking.split(_ROWS)]
    maps = (torch.stack(sums).sum(dim=0) / len(asking))[:, -count:].unflatten(1, grid).float()  # B P+N -> B h w
    if by_class:
        text = f"What the class token attends to in the last block, mean of the heads, {_STRETCHED}. {_NOT_WHY}"
        return HeatMap(maps, "where the class token looks", text)
    text = (
        "How much attention each patch receives from all patches in the last block, mean of the heads, "
        f"{_STRETCHED}. {_NOT_WHY}"
    )
    return HeatMap(maps, "the attention that patches receive", text)


def _activated(model: Backbone, images: Tensor, target: Tensor | None) -> HeatMap:
    """The positive effect of each patch on the answer."""
    maps = grad_cam(model, images, target)
    if not maps.any():
        raise Unsupported("no heat map can be drawn: no patch has a positive effect on the answer")
    text = (
        "The positive effect of each patch on the answer: its features, weighted by their gradients (Grad-CAM), "
        f"{_STRETCHED}."
    )
    return HeatMap(maps, "the effect of each patch on the answer", text)
