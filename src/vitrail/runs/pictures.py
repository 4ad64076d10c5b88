"""Whole pictures as Hugging Face reads them: its processor before the model, its post-processing after it.

Each picture has the size that the processor gives it, and outputs are those of all its pixels: logits and depth are
resized to the picture before classes are chosen.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import InputError, Unsupported
from vitrail.layers.bilinear import resized
from vitrail.layers.boxes import precise
from vitrail.models.checkpoint.headed.processor import Processing
from vitrail.models.heads.eomt import Eomt
from vitrail.tasks.depth.depth_estimation import Depth
from vitrail.tasks.detect.detection import Detect
from vitrail.tasks.segment.segmentation import Segment
from vitrail.tasks.task import Task

Outputs = dict[str, Tensor]
Size = tuple[int, int]
_LARGEST = 1 << 26  # pixels of an input
_STRIP = 1 << 26  # numbers in memory at once, where the logits of all classes are enlarged


class Pictures(ABC):
    """A task that is given whole pictures, uint8 C H W of any size; outputs are in pixels of each picture."""

    def __init__(self, task: Task, processing: Processing) -> None:
        self.task, self.processing = task, processing

    @torch.no_grad()
    def outputs(self, pictures: Sequence[Tensor], *, pad: bool = False) -> list[Outputs]:
        """The task's outputs for each picture, 1 ... by name.

        Pictures that have the same size for the model are computed together. With `pad` all are, padded to the largest
        of them, as Hugging Face does it: what the model says of one then depends a little on the others.
        """
        images = []
        for picture in pictures:
            if (reason := self.refusal(picture)) is not None:
                raise InputError(reason)
            images.append(self.fitted(picture))
        groups: dict[tuple[int, ...], list[int]] = {}
        for index, image in enumerate(images):
            groups.setdefault(() if pad else tuple(image.shape), []).append(index)
        learning, found = self.task.training, dict[int, Outputs]()
        self.task.eval()
        try:
            for group in groups.values():
                sizes = [(pictures[index].shape[1], pictures[index].shape[2]) for index in group]
                found |= zip(group, self._run([images[index] for index in group], sizes), strict=True)
        finally:
            self.task.train(learning)
        return [{name: values.float() for name, values in found[index].items()} for index in range(len(pictures))]

    def refusal(self, picture: Tensor) -> str | None:
        """Why a picture cannot be read: it is so long and narrow that it would become huge; None if it can be."""
        own, (height, width) = self.processing.own_size, picture.shape[1:]
        if own is None or math.prod(size := own.of(height, width)) <= _LARGEST:
            return None
        return (
            f"the picture has {width} x {height} pixels, which would be resized to {size[1]} x {size[0]}: too long; "
            "cut it into parts"
        )

    def fitted(self, picture: Tensor) -> Tensor:
        """The input for a picture, normalised: uint8 C H W -> float 1 c h w."""
        how = self.processing
        if how.own_size is None:
            return self._ready(how.preprocess.fit(picture[None])[0])
        return self._ready(how.preprocess.whole(picture[None], how.own_size.of(*picture.shape[1:])))

    def _ready(self, images: Tensor) -> Tensor:
        """Fitted pixels, uint8, normalised on the device of the model and in its type."""
        weight = next(self.task.backbone.parameters())
        return self.processing.preprocess.normalise(images.to(weight.device)).to(weight.dtype)

    def _run(self, images: Sequence[Tensor], sizes: Sequence[Size]) -> list[Outputs]:
        """Outputs 1 ... for inputs 1 c h w, all of one size, of pictures of these sizes."""
        if len({image.shape for image in images}) > 1:
            raise Unsupported(f"{type(self.task.config).__name__}: images of different sizes cannot be padded to one")
        return self.run(torch.cat(list(images)), sizes)

    @abstractmethod
    def run(self, images: Tensor, sizes: Sequence[Size]) -> list[Outputs]:
        """Outputs 1 ... for inputs B c h w of pictures of these sizes."""


class BoxPictures(Pictures):
    """Boxes in pixels of the picture."""

    task: Detect

    def _run(self, images: Sequence[Tensor], sizes: Sequence[Size]) -> list[Outputs]:
        if len({image.shape for image in images}) == 1 or not self.task.head.config.takes_padding:
            return super()._run(images, sizes)
        padded, valid = padded_batch(images)
        return self.run(padded, sizes, valid)

    def run(self, images: Tensor, sizes: Sequence[Size], valid: Tensor | None = None) -> list[Outputs]:
        """The best boxes of each picture; `valid` B H W is True for what is not padding."""
        head, features = self.task.head, self.task.backbone.features(images)
        found = (head(features) if valid is None else head(features, valid=valid)).found
        boxes, scores, labels = head.decode(found.logits[-1], found.boxes[-1], self.task.count)
        sides = boxes.new_tensor([(width, height, width, height) for height, width in sizes])[:, None]  # B 1 4
        every = zip((boxes * sides).split(1), scores.split(1), labels.to(scores.dtype).split(1), strict=True)
        return [{"boxes": one, "scores": score, "labels": label} for one, score, label in every]


class MaskPictures(Pictures):
    """A class for each pixel: the logits are enlarged to the picture first."""

    task: Segment

    def run(self, images: Tensor, sizes: Sequence[Size]) -> list[Outputs]:
        """The likeliest class of each pixel and its probability."""
        head = self.task.head
        logits = precise(head(head.read(self.task.backbone, images)))
        return [likeliest(one, size) for one, size in zip(logits, sizes, strict=True)]


class QueryPictures(Pictures):
    """A class for each pixel from queries with masks, in windows along the longer side or in one padded square."""

    task: Segment

    def fitted(self, picture: Tensor) -> Tensor:
        """The input for a picture, normalised; padding is black: uint8 C H W -> float 1 c h w."""
        how = self.processing
        if how.own_size is None or how.windows:
            return super().fitted(picture)
        image = how.preprocess.whole(picture[None], how.own_size.of(*picture.shape[1:]))
        rows, columns = how.preprocess.image_size
        return self._ready(F.pad(image, (0, columns - image.shape[3], 0, rows - image.shape[2])))

    def run(self, images: Tensor, sizes: Sequence[Size]) -> list[Outputs]:
        """The likeliest class of each pixel, and its share of what all classes claim."""
        own, found = self.processing.own_size, list[Outputs]()
        for image, size in zip(images[:, None], sizes, strict=True):
            if self.processing.windows:
                claims = self._of_windows(image)
            else:
                height, width = image.shape[2:] if own is None else own.of(*size)
                claims = self._of_squares(image)[0, :, :height, :width]
            found.append(likeliest(claims, size, shares=True))
        return found

    def _of_windows(self, image: Tensor) -> Tensor:
        """How much each class claims each pixel, the mean of all windows: 1 c h w -> K h w."""
        found, (axis, side, firsts) = self._of_squares(self.cut(image)), self._windows(image)  # W K s s
        total = found.new_zeros(found.shape[1], *image.shape[2:])
        count = found.new_zeros(image.shape[axis])
        for first, claims in zip(firsts, found, strict=True):
            total.narrow(axis - 1, first, side).add_(claims)
            count[first : first + side] += 1
        return total / (count[:, None] if axis == 2 else count)

    def cut(self, image: Tensor) -> Tensor:
        """The windows of an input: 1 c h w -> W c s s."""
        axis, side, firsts = self._windows(image)
        return torch.cat([image.narrow(axis, first, side) for first in firsts])

    def _windows(self, image: Tensor) -> tuple[int, int, list[int]]:
        """The axis of the longer side, the side of a window, and the first pixels of all."""
        axis = 2 if image.shape[2] > image.shape[3] else 3
        side = self.processing.preprocess.image_size[axis - 2]
        return axis, side, window_starts(image.shape[axis], side)

    def _of_squares(self, images: Tensor) -> Tensor:
        """Claims for images of the size of the model: B c h w -> B K h w."""
        head = self.task.head
        assert isinstance(head, Eomt)  # noqa: S101  (chosen by that)
        classes, masks = head.predict(head.read(self.task.backbone, images))
        shares, areas = precise(classes).softmax(dim=-1)[..., :-1], resized(precise(masks), images.shape[2:]).sigmoid()
        return torch.einsum("bqk,bqhw->bkhw", shares, areas)


class DepthPictures(Pictures):
    """A distance for each pixel, enlarged to the picture by a bicubic filter."""

    task: Depth

    def run(self, images: Tensor, sizes: Sequence[Size]) -> list[Outputs]:
        """Distances, not negative."""
        head = self.task.head
        found = head.positive(precise(head(head.read(self.task.backbone, images)))) * self.task.scale
        enlarged = (
            F.interpolate(one[None, None], size=size, mode="bicubic", align_corners=False)[0]
            for one, size in zip(found, sizes, strict=True)
        )
        return [{"depth": one.clamp(min=0)} for one in enlarged]


def pictures_of(task: Task, processing: Processing) -> Pictures:
    """What gives whole pictures to a task."""
    if isinstance(task, Detect):
        return BoxPictures(task, processing)
    if isinstance(task, Depth):
        return DepthPictures(task, processing)
    assert isinstance(task, Segment)  # noqa: S101  (checkpoints with a head are for one of these)
    return (QueryPictures if isinstance(task.head, Eomt) else MaskPictures)(task, processing)


def padded_batch(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Inputs 1 c h w of any size, padded to one right and below, and which pixels are theirs: B c H W, B H W bool."""
    rows, columns = (max(image.shape[axis] for image in images) for axis in (2, 3))
    padded = [F.pad(image, (0, columns - image.shape[3], 0, rows - image.shape[2])) for image in images]
    valid = torch.zeros(len(images), rows, columns, dtype=torch.bool, device=images[0].device)
    for mask, image in zip(valid, images, strict=True):
        mask[: image.shape[2], : image.shape[3]] = True
    return torch.cat(padded), valid


def window_starts(length: int, side: int) -> list[int]:
    """The first pixel of each window along a side: as few as cover it, at even distances, rounded down."""
    count = math.ceil(length / side)
    step = side - (count * side - length) / (count - 1) if count > 1 else 0.0
    return [int(index * step) for index in range(count)]


def likeliest(values: Tensor, size: Size, *, shares: bool = False) -> Outputs:
    """The class of each pixel of a picture with the largest value, K h w, enlarged: "classes", "confidence" 1 *size.

    Values are logits, or with `shares` not negative, and confidence is their share of the sum. All classes of a large
    picture may not fit into memory, so rows are enlarged in strips.
    """
    height = values.shape[1]
    across = resized(values[None], (height, size[1]))[0]  # K h W
    at = ((torch.arange(size[0], device=values.device).to(values) + 0.5) * (height / size[0]) - 0.5).clamp(
        0, height - 1
    )
    above = at.floor().long()
    below, part = (above + 1).clamp(max=height - 1), (at - above)[:, None]  # H, H 1
    classes, confidence = list[Tensor](), list[Tensor]()
    step = max(_STRIP // max(values.shape[0] * size[1], 1), 1)
    for first in range(0, size[0], step):
        rows = slice(first, first + step)
        strip = across[:, above[rows]].lerp(across[:, below[rows]], part[rows])  # K r W
        best, chosen = strip.max(dim=0)
        classes.append(chosen)
        confidence.append(best / strip.sum(dim=0).clamp(min=1e-12) if shares else (best - strip.logsumexp(dim=0)).exp())
    return {"classes": torch.cat(classes)[None].to(values.dtype), "confidence": torch.cat(confidence)[None]}
