"""The result of masked autoencoding for reports: pictures beside what the model saw and rebuilt of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.report import Gallery, Line, Metric, Shot
from vitrail.report.images import data_uri

METRICS = {"explained": Metric("explained variance", "share", "share of the variance of hidden pixels that is rebuilt")}
_GREY = 128  # hidden patches
_TEXT = (
    "The picture, the patches that the model saw, and its reconstruction. Where it learned normalised patches, their "
    "mean and deviation are taken from the picture."
)


def lead(results: Mapping[str, Any]) -> str:
    """The result in a sentence, without a full stop."""
    share, images = 100 * results["explained"], int(results["images"])
    return f"Rebuilds {share:.1f} % of the variance of hidden pixels of {images:,} images"


def rebuilt_gallery(
    images: Tensor,
    rebuilt: Tensor,
    hidden: Tensor,
    names: Sequence[str],
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> Gallery:
    """Normalised images and reconstructions B C H W, and hidden patches B h w, as a gallery of three images each."""
    centre, spread = (torch.tensor(values, dtype=torch.float32).view(1, -1, 1, 1) for values in (mean, std))
    truth, made = (
        ((pixels.float().cpu() * spread + centre).clamp(0, 1) * 255).round().to(torch.uint8)
        for pixels in (images, rebuilt)
    )
    mask = F.interpolate(hidden[:, None].float().cpu(), size=images.shape[-2:]).bool()  # B 1 h w -> B 1 H W
    seen = truth.masked_fill(mask, _GREY)
    shots = (
        Shot(tuple(map(data_uri, three)), (Line(name, "soft"),), f"{name}: picture, visible patches, reconstruction")
        for *three, name in zip(truth, seen, made, names, strict=True)
    )
    return Gallery("Reconstructions", _TEXT, tuple(shots))
