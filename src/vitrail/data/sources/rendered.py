"""Rendered scenes of boxes, balls and cylinders: `scenes`, `scenes:5000`, `scenes:5000:96x128`."""

import re
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset, Found, Targets, digest
from vitrail.data.render.numbered import SceneNumber, truth
from vitrail.data.render.renderer import CLASSES, FAR, render_image
from vitrail.data.render.scene import OBJECTS
from vitrail.data.sources.table import Wanted
from vitrail.data.targets import ClassTarget, Schema, Target
from vitrail.data.targets.boxes_target import Box, BoxesTarget
from vitrail.data.targets.depth_target import DepthTarget, depth_references
from vitrail.data.targets.mask_target import MaskTarget, mask_classes
from vitrail.data.targets.pixel_files import references
from vitrail.errors import DataError

NAME = "scenes"
COUNT, SIZE = 2000, (128, 128)
PARTS = ("train", "val", "test")
KINDS = ("class", "boxes", "mask", "depth")
PLACES = ("indoors", "outdoors")  # classes of whole scenes
_HELD = 10  # a tenth as many images to validate and to test with
_MOST = 1_000_000  # images to train on, which are listed when a set is opened
_SMALLEST, _LARGEST = 8, 4096  # pixels of a side
_IGNORED = 1e-3  # of the picture: objects of which less is visible are neither learned nor missed
_FORM = re.compile(rf"{NAME}(?::(\d{{1,9}}))?(?::(\d{{1,9}})(?:x(\d{{1,9}}))?)?", re.ASCII)


class RenderedScenes(Dataset):
    """Scenes that follow from a seed, a part (0 train, 1 val, 2 test) and their index, rendered when they are read."""

    computed = True

    def __init__(
        self, count: int, *, size: tuple[int, int] = SIZE, part: int = 0, seed: int = 0,
        kinds: tuple[str, ...] = ("depth",),
    ) -> None:  # fmt: skip
        self.count, self.size, self.part, self.seed = count, size, part, seed
        self.name = f"{NAME} ({PARTS[part]})"
        self.schema, self.targets = self._targets(kinds)

    def __len__(self) -> int:
        return self.count

    def number(self, index: int) -> SceneNumber:
        """The scene of a sample."""
        assert self.size is not None  # noqa: S101  (all have the same)
        return SceneNumber(self.seed, self.part, range(self.count)[index], *self.size)

    def read(self, index: int) -> Tensor:
        """One image, uint8, 3 H W."""
        number = self.number(index)
        return torch.from_numpy(render_image(number.scene, number.size)).permute(2, 0, 1).contiguous()

    def where(self, index: int) -> str:
        """The name of a sample in messages; number and size are part of it, so that each set has a pack of its own."""
        number = self.number(index)
        return f"{self.name} {number.height}x{number.width}, {number.index} of {self.count}"

    @property
    def fingerprint(self) -> str:
        """The name of the first scene, their number, and the kinds of target."""
        return digest([self.image_fingerprint, *self.schema])

    @property
    def image_fingerprint(self) -> str:
        """The name of the first scene, which has the version of the renderer, and their number."""
        return digest([str(self.number(0).path), str(self.count)])

    def _targets(self, kinds: tuple[str, ...]) -> tuple[Schema, Targets]:
        numbers = [self.number(index) for index in range(self.count)]
        paths = [number.path for number in numbers]
        schema: dict[str, Target] = {}
        targets: dict[str, Tensor] = {}
        if "class" in kinds:
            schema["label"] = ClassTarget(classes=PLACES)
            targets["label"] = torch.tensor([int(number.scene.room is None) for number in numbers])
        if "boxes" in kinds:  # batches have room for the most boxes of any image, so all are needed now
            schema["boxes"], targets["boxes"] = BoxesTarget.of([_boxes(number) for number in numbers], OBJECTS)
        if "mask" in kinds:
            classes, table = mask_classes(set(), CLASSES)
            schema["mask"], targets["mask"] = MaskTarget(classes=classes), references(paths, [table] * len(paths))
        if "depth" in kinds:
            schema["depth"], targets["depth"] = DepthTarget(), depth_references(paths)
        return schema, targets


def _boxes(number: SceneNumber) -> list[Box]:
    least = _IGNORED * number.height * number.width
    found = truth(number).boxes(number.scene)
    return [Box(corners, label, ignore=area < least, area=area) for corners, label, area in found]


def is_scenes(text: str) -> bool:
    """Whether a source is one of rendered scenes, by its name; a folder called scenes is that folder."""
    return text.startswith(f"{NAME}:") or (text == NAME and not Path(text).exists())


def read_scenes(text: str, wanted: Wanted = Wanted()) -> Found:  # noqa: B008  (immutable)
    """Train, val and test of rendered scenes, with depth unless other kinds of target are wanted."""
    count, size = _parsed(text)
    kinds = tuple(kind for kind in KINDS if kind in wanted.kinds) if wanted.kinds else ("depth",) * wanted.targets
    held = -(-count // _HELD)
    train, val, test = (
        RenderedScenes(many, size=size, part=part, kinds=kinds) for part, many in enumerate((count, held, held))
    )
    notes = [f"Rendered scenes of {size[1]} x {size[0]} pixels: train {count:,}, val {held:,}, test {held:,} images."]
    if "depth" in kinds:
        notes.append(f"Depth is in metres along the optical axis, unknown for the sky and beyond {FAR:g} m.")
    if kinds and not wanted.kinds:
        notes.append("They also have boxes, masks and a class each; --task detect, segment or classify uses these.")
    return Found(train, val, test, tuple(notes))


def _parsed(text: str) -> tuple[int, tuple[int, int]]:
    """The number of training images, and their height and width."""
    found = _FORM.fullmatch(text)
    if found is None or not 1 <= int(found[1] or COUNT) <= _MOST:
        raise DataError(
            f"{text[:80]!r} is not a number of scenes; expected {NAME}, {NAME}:5000 or {NAME}:5000:96x128 (images to "
            f"train on, at most {_MOST:,}, height x width)"
        )
    height = int(found[2] or SIZE[0])
    size = (height, int(found[3] or height))
    if not _SMALLEST <= min(size) <= max(size) <= _LARGEST:
        raise DataError(f"{text!r}: sides of {_SMALLEST} to {_LARGEST} pixels are allowed, not {size[0]} x {size[1]}")
    return int(found[1] or COUNT), size
