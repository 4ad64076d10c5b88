"""Images mixed with their neighbours in the batch, and labels by the share of each.

Samples 2k and 2k + 1 of a batch are each other's partners, and every sample draws its own method and share from
(seed, epoch, its number). Batches are shuffled, so that partners are random; and since no such pair is ever split over
machines, their number changes nothing. The last sample of an odd batch stays as it is.
"""

import torch
from torch import Tensor

from vitrail.data.augment import MixConfig
from vitrail.data.dataset import Batch
from vitrail.data.randomness import Stream
from vitrail.data.resample import Boxes, Size
from vitrail.errors import InputError


class Mix:
    """Mixup (arXiv:1710.09412), CutMix (arXiv:1905.04899) and mixing by patches, as a config says."""

    def __init__(self, config: MixConfig, *, num_classes: int, seed: int) -> None:
        self.config, self.num_classes, self.seed = config, num_classes, seed
        alphas = {"mixup": config.mixup, "cutmix": config.cutmix, "patch_mixup": config.patch_mixup}
        self.alphas = {name: alpha for name, alpha in alphas.items() if alpha > 0}

    def __call__(self, batch: Batch, epoch: int | Tensor) -> Batch:
        """Float images B C H W; labels B int64 or B K become B K float32."""
        labels = self._soft(batch.labels)
        if not self.alphas or not self.config.share:
            return batch._replace(labels=labels)
        images = batch.images
        partner = (torch.arange(len(images), device=images.device) ^ 1).clamp(max=len(images) - 1)  # B
        stream = Stream(self.seed, epoch, batch.ids.to(images.device))
        keep, share = self._masks(stream, (images.shape[2], images.shape[3]))
        mixed = torch.lerp(images[partner], images, keep)  # exact where a pixel is kept or not
        return Batch(mixed, torch.lerp(labels[partner], labels, share), batch.ids)

    def _masks(self, stream: Stream, size: Size) -> tuple[Tensor, Tensor]:
        """How much of itself each sample keeps: by pixel (B 1 H W, or 1 1 for all pixels), and on the whole (B 1)."""
        draws = stream.uniform("mix", 2)
        method = (draws[:, 0] * len(self.alphas)).long()
        method = torch.where(draws[:, 1] < self.config.share, method, len(self.alphas))  # beyond the last: no mixing
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
            # Of a box or patches, the pixels count and not what was drawn: edges cut boxes off.
            share = torch.where(drawn, mask.mean(dim=(2, 3)), share)
        return keep, share

    def _soft(self, labels: Tensor) -> Tensor:
        """B K float32: what labels of several classes are already."""
        if labels.ndim == 2:
            if labels.shape[1] != self.num_classes:
                raise InputError(f"labels are of {labels.shape[1]} classes; they must be of {self.num_classes}")
            return labels.float()
        soft = torch.zeros(len(labels), self.num_classes, device=labels.device)
        return soft.scatter_(1, labels[:, None], 1.0)


def cut_boxes(draws: Tensor, kept: Tensor, size: Size) -> Boxes:
    """Boxes of 1 - `kept` of the area around centres from uniform numbers B 2, cut off at the edges."""
    height, width = size
    side = (1 - kept).sqrt()
    top, tall = _span((draws[:, 0] * height).floor(), (side * height).floor(), height)
    left, wide = _span((draws[:, 1] * width).floor(), (side * width).floor(), width)
    return Boxes(top, left, tall, wide, fits=(tall > 0) & (wide > 0))


def _span(centre: Tensor, length: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Start and length of what lies inside of a line."""
    start = (centre - (length / 2).floor()).clamp(min=0)
    stop = (centre + (length / 2).floor()).clamp(max=size)
    return start, stop - start


def patch_mask(stream: Stream, kept: Tensor, size: Size, patch: int) -> Tensor:
    """Each patch kept with a chance of `kept`: B 1 H W of zeros and ones; patches at the edges may be cut off."""
    rows, columns = -(-size[0] // patch), -(-size[1] // patch)
    draws = stream.uniform("mix.patches", rows * columns).unflatten(1, (rows, columns))  # B h w
    patches = (draws < kept[:, None, None]).float()
    mask = patches.repeat_interleave(patch, dim=1).repeat_interleave(patch, dim=2)
    return mask[:, None, : size[0], : size[1]]
