"""Pictures of a report as HTML: images inside the file, small ones pixel for pixel, attention as light over them."""

import base64
import html
from io import BytesIO

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.training.evidence import Picture, Rebuilt, View

_TINY = 96  # pixels: up to here an image is kept as it is; the page enlarges it
_LARGEST = 192  # pixels of the longer side of what is kept of a photo
_GLOW = ((0, 0, 0), (48, 18, 96), (148, 38, 106), (226, 92, 48), (252, 178, 52), (255, 250, 206))  # dark to bright


def data_uri(image: Tensor) -> str:
    """An image, uint8 C H W with 1, 3 or 4 channels, as text that a page can show: PNG, or JPEG for photos."""
    height, width = image.shape[1:]
    pixels = image.permute(1, 2, 0).contiguous().cpu().numpy()  # H W C
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    stored = BytesIO()
    if max(height, width) <= _TINY or image.shape[0] == 4:
        picture.save(stored, "PNG", optimize=True)
        kind = "png"
    else:
        picture.thumbnail((_LARGEST, _LARGEST), Image.Resampling.LANCZOS)
        picture.save(stored, "JPEG", quality=85)
        kind = "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(stored.getvalue()).decode()}"


def mistake_html(picture: Picture) -> str:
    """A picture that was taken for another class: what the model said, how sure it was, and what it is."""
    said, truth, name = (html.escape(text) for text in (picture.predicted, picture.truth, picture.name))
    return (
        f"<figure>{_image(picture.image, f'{picture.name}: {picture.truth}, taken for {picture.predicted}')}"
        f'<figcaption><span class="said">{said}</span> <span class="sure">{100 * picture.confidence:.0f} %</span>'
        f'<br>is <b>{truth}</b><br><span class="name" title="{name}">{name}</span></figcaption></figure>'
    )


def view_html(view: View, words: str) -> str:
    """A picture beside the same picture under its light, which `words` name."""
    picture = view.picture
    truth, said = html.escape(picture.truth), html.escape(picture.predicted)
    verdict = (
        f"<b>{truth}</b>" if picture.truth == picture.predicted else f'<b>{truth}</b>, <span class="said">{said}</span>'
    )
    return (
        f'<figure class="pair"><div>{_image(picture.image, f"{picture.name}: {picture.truth}")}'
        f"{_image(lit(picture.image, view.light), f'{words} in {picture.name}')}</div>"
        f'<figcaption>{verdict} <span class="sure">{100 * picture.confidence:.0f} %</span></figcaption></figure>'
    )


def rebuilt_html(one: Rebuilt) -> str:
    """A picture, what was shown of it, and what was made of that."""
    told = (one.name, f"what the model saw of {one.name}", f"what it made of {one.name}")
    images = "".join(map(_image, (one.image, one.shown, one.rebuilt), told))
    name = html.escape(one.name)
    caption = f'<figcaption><span class="name" title="{name}">{name}</span></figcaption>'
    return f'<figure class="triple"><div>{images}</div>{caption}</figure>'


def lit(image: Tensor, attention: Tensor) -> Tensor:
    """The picture in grey with the attention h w as a glow over it, uint8 3 H W; its range is stretched to see it."""
    scale = max(1, -(-_LARGEST // max(image.shape[1:])))
    grey = image.float().mean(dim=0)[None, None] / 255  # 1 1 H W
    grey = F.interpolate(grey, scale_factor=scale, mode="nearest")
    size = (grey.shape[2], grey.shape[3])
    low, high = attention.min(), attention.max()
    share = ((attention - low) / (high - low).clamp_min(1e-12)).float()[None, None]  # 1 1 h w
    share = F.interpolate(share, size=size, mode="bicubic", align_corners=False).clamp(0, 1)[0, 0]
    ramp = torch.tensor(_GLOW, dtype=torch.float32) / 255
    place = share * (len(_GLOW) - 1)
    step = place.long().clamp(max=len(_GLOW) - 2)
    part = (place - step)[..., None]
    glow = (ramp[step] * (1 - part) + ramp[step + 1] * part).permute(2, 0, 1)  # 3 H W
    strength = 0.35 + 0.35 * share
    return ((grey[0] * (1 - strength) + glow * strength) * 255).round().to(torch.uint8)


def heat_html(confusion: Tensor, told: str) -> str:
    """A confusion matrix K K as a picture of K x K pixels: right answers in blue, mistakes in orange."""
    shares = confusion.double() / confusion.sum(dim=1, keepdim=True).clamp_min(1)
    right = torch.eye(len(confusion), dtype=torch.bool)
    colour = torch.where(right[..., None], torch.tensor([58, 124, 196]), torch.tensor([226, 108, 40]))  # K K 3
    alpha = torch.where(right, 0.15 + 0.85 * shares, shares.sqrt().clamp(max=1)).where(confusion > 0, 0.0)
    pixels = torch.cat([colour.double(), 255 * alpha[..., None]], dim=2).round().to(torch.uint8)  # K K 4
    return f'<img class="heat" src="{data_uri(pixels.permute(2, 0, 1))}" alt="{html.escape(told)}">'


def _image(image: Tensor, told: str) -> str:
    height, width = image.shape[1:]
    tiny = ' class="tiny"' if max(height, width) <= _TINY else ""
    return f'<img{tiny} src="{data_uri(image)}" width="{width}" height="{height}" alt="{html.escape(told)}">'
