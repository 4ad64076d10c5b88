"""Mixup and CutMix: images mixed with their neighbours in the batch, targets by the share of each.

Samples 2k and 2k + 1 of a batch are partners, and every sample draws its own method and share from (seed, epoch, its
index). Batches are shuffled, so partners are random; pairs are never split over processes, so the result does not
depend on their number. The last sample of an odd batch stays as it is.
"""

import torch
from torch import Tensor

from vitrail.data.augment.augmentation import MixConfig
from vitrail.data.augment.resample import Boxes, Size
from vitrail.data.dataset import Batch
from vitrail.data.randomness import Stream
from vitrail.data.targets import Schema


class Mix:
    """Mixup (arXiv:1710.09412), CutMix (arXiv:1905.04899) and mixing by patches."""

    def __init__(self, config: MixConfig, *, schema: Schema, seed: int) -> None:
        self.config, self.schema, self.seed = config, schema, seed
        alphas = {"mixup": config.mixup, "cutmix": config.cutmix, "patch_mixup": config.patch_mixup}
        self.alphas = {name: alpha for name, alpha in alphas.items() if alpha > 0}

    def __call__(self, batch: Batch, epoch: int | Tensor) -> Batch:
        """Mixes float images B C H W, and targets as their kinds define it."""
        if not self.alphas or not self.config.share:
            return batch
        images = batch.images
        partner = (torch.arange(len(images), device=images.device) ^ 1).clamp(max=len(images) - 1)  # B
        stream = Stream(self.seed, epoch, batch.ids.to(images.device))
        keep, share = self._masks(stream, (images.shape[2], images.shape[3]))
        mixed = torch.lerp(images[partner], images, keep)  # exact where a pixel is kept or not
        targets = {
            name: self.schema[name].mix(values, partner, share) if name in self.schema else values
            for name, values in batch.targets.items()
        }
        return Batch(mixed, targets, batch.ids)

    def _masks(self, stream: Stream, size: Size) -> tuple[Tensor, Tensor]:
        """The share that each sample keeps: per pixel (B 1 H W, or B 1 1 1) and in total (B 1)."""
        draws = stream.uniform("mix", 2)
        method = (draws[:, 0] * len(self.alphas)).long()
        method = torch.where(
            draws[:, 1] < self.config.share, method, len(self.alphas)
        )  # past the last method: no mixing
        alpha = torch.ones_like(draws[:, 0])
        for number, value in enumerate(self.alphas.values()):
            alpha = torch.where(method == number, value, alpha)
        kept = stream.beta("mix.share", alpha)  # B
        masks = {
            "mixup": lambda: kept[:, None, None, None],
            "cutmix": lambda: 1 - cut_boxes(stream.uniform("mix.box", 2), kept, size).mask(size).float(),
            "patch_mixup": lambda: patch_mask(stream, kept, size, self.config.patch),
        }
        keep, share = torch.ones_like(kept)[:, None, None, None], torch.ones_like(kept)[:, None]
        for number, name in enumerate(self.alphas):
            mask, drawn = masks[name](), (method == number)[:, None]
            keep = torch.where(drawn[:, :, None, None], mask, keep)
            # The real share of pixels, not the drawn one: boxes are cut off at the edges.
            share = torch.where(drawn, mask.mean(dim=(2, 3)), share)
        return keep, share


def cut_boxes(draws: Tensor, kept: Tensor, size: Size) -> Boxes:
    """Boxes of 1 - `kept` of the area around centres from uniform numbers B 2, cut off at the edges."""
    height, width = size
    side = (1 - kept).sqrt()
    top, tall = _span((draws[:, 0] * height).floor(), (side * height).floor(), height)
    left, wide = _span((draws[:, 1] * width).floor(), (side * width).floor(), width)
    return Boxes(top, left, tall, wide, fits=(tall > 0) & (wide > 0))


def _span(centre: Tensor, length: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Start and length of a box along one axis, cut off at the edges."""
    start = (centre - (length / 2).floor()).clamp(min=0)
    stop = (centre + (length / 2).floor()).clamp(max=size)
    return start, stop - start


def patch_mask(stream: Stream, kept: Tensor, size: Size, patch: int) -> Tensor:
    """Each patch is kept with probability `kept`: B 1 H W of zeros and ones; patches at the edges may be cut off."""
    rows, columns = -(-size[0] // patch), -(-size[1] // patch)
    draws = stream.uniform("mix.patches", rows * columns).unflatten(1, (rows, columns))  # B h w
    patches = (draws < kept[:, None, None]).float()
    mask = patches.repeat_interleave(patch, dim=1).repeat_interleave(patch, dim=2)
    return mask[:, None, : size[0], : size[1]]
