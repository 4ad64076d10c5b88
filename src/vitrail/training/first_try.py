"""What a run does where nothing is named: the setting that did best on measured sets like the data at hand.

`first_try.json` has a cell for each set that `benchmarks/first_try.py` measured: how many images and classes, their
size and colour, and the accuracy and seconds (two cores of a CPU) of every setting. Validation accuracy decides;
test accuracy is only said.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import torch

from vitrail.data.dataset import Dataset
from vitrail.data.targets import ClassTarget
from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import PHOTOS
from vitrail.tasks.task import TaskConfig, infer
from vitrail.training.first_model import SMALL, Sampled, default_model, sample

_NEAR = 4  # measured sets that the expected accuracy is taken from
_PATIENCE = 15 * 60  # seconds that the first try may take on two cores of a CPU
_UNKNOWN = -0.1  # the accuracy below the best that is assumed of a setting that was not measured on a set
# What a probe, which is fitted at once, has no use for.
OF_TRAINING = {
    "accumulate", "augment", "early_stop", "ema", "epochs", "eval_every", "mix", "optimiser", "sampling", "save_steps",
    "schedule",
}  # fmt: skip
_OWN_SIZE = 160  # pixels: the size that a packaged network of photographs was measured at
_LEAST, _MOST = 16, 256  # pixels: images outside of this are like those at its ends


class Setting(NamedTuple):
    """Weights to start from, changes to the recipe of fine-tuning, and what that is in words."""

    start: str
    changes: Mapping[str, Any]
    about: str
    sizes: tuple[int, ...] = ()  # of images above 64 pixels: folds choose between these and the network's own


SETTINGS = {
    "probe-photos": Setting(
        PHOTOS, {"probe": "linear"}, "a linear head on the features of a packaged network", sizes=(256,)
    ),
    "tune-late": Setting(
        PHOTOS,
        {"fit_head": True, "freeze_until": "stages.3", "epochs": 8},
        "the last stages of a packaged network are fine-tuned",
    ),
    "tune-photos": Setting(PHOTOS, {"fit_head": True}, "a packaged network is fine-tuned"),
    "tune-packaged": Setting(PACKAGED, {}, "the packaged vit32_conv is fine-tuned"),
    "lora-packaged": Setting(PACKAGED, {"lora": 8}, "low-rank updates of the packaged vit32_conv are trained"),
    "probe-packaged": Setting(
        PACKAGED, {"probe": "linear"}, "a linear head on the features of the packaged vit32_conv"
    ),
}


class Measured(NamedTuple):
    """Accuracy on validation and on test images, and seconds on two cores of a CPU."""

    validation: float
    test: float
    seconds: float


@dataclass(frozen=True)
class Cell:
    """A set that was measured: what it is like, and results by setting."""

    name: str
    images: int
    classes: int
    pixels: int
    grey: bool
    results: Mapping[str, Measured]

    def distance(self, other: "Cell") -> float:
        """How unlike two sets are: doublings of the image size and, for half as much, of the number of images."""
        sizes = (math.log2(min(max(cell.pixels, _LEAST), _MOST)) for cell in (self, other))
        counts = (math.log2(max(cell.images, 1)) for cell in (self, other))
        return abs(next(sizes) - next(sizes)) + abs(next(counts) - next(counts)) / 2 + (self.grey != other.grey) / 2


class FirstTry(NamedTuple):
    """The name of a setting, what it does, a sentence about it, and image sizes to choose from besides."""

    name: str
    setting: Setting
    note: str
    sizes: tuple[int, ...] = ()


# Numbers, several labels and other tasks with a linear head; docs/first-try.md has what was measured.
OTHERS = FirstTry(
    "probe-photos",
    SETTINGS["probe-photos"],
    f"no model was named: {SETTINGS['probe-photos'].about}, which takes a minute or two for some hundred images on a "
    "CPU. docs/first-try.md says how else; --model and --from override it",
)


@cache
def measured() -> tuple[Cell, ...]:
    """All cells of the package."""
    text = resources.files("vitrail.training").joinpath("first_try.json").read_text()
    cells = json.loads(text)["cells"]
    return tuple(
        Cell(**{**cell, "results": {name: Measured(*row) for name, row in cell["results"].items()}}) for cell in cells
    )


def first_try(
    images: int, classes: int, seen: Sampled, *, on_cpu: bool = True, fitted: bool = True,
    cells: Sequence[Cell] | None = None,
) -> FirstTry:  # fmt: skip
    """The setting with the least regret on measured sets, near ones counting most, that ends in time on a CPU.

    Without `fitted`, only those that train for epochs.
    """
    here = Cell("", images, classes, max(seen.height, seen.width), seen.grey, {})
    cells = sorted(measured() if cells is None else cells, key=here.distance)
    known = [name for name in _known(cells) if fitted or "probe" not in SETTINGS[name].changes]
    best = max(known, key=lambda name: _merit(name, here, cells, on_cpu=on_cpu))
    near = [cell for cell in cells if best in cell.results][:_NEAR]
    shares = [cell.results[best].test for cell in near]
    setting, seconds = SETTINGS[best], _seconds(best, here, near)
    longer = seconds * (1 + sum((size / _OWN_SIZE) ** 2 for size in setting.sizes))
    sizes = setting.sizes if here.pixels > SMALL and not (on_cpu and longer > _PATIENCE) else ()
    seconds = longer if sizes else seconds
    note = (
        f"no model was named: {setting.about}, which did best on measured sets like this one (test accuracy "
        f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % on {len(near)} of them; about {_minutes(seconds)} on "
        "two cores of a CPU). docs/first-try.md says how else; --model and --from override it"
    )
    return FirstTry(best, setting, note, sizes)


def first_try_for(
    data: Dataset, seen: Sampled, changes: Mapping[str, Any], task: TaskConfig, *, device: torch.device
) -> FirstTry | None:
    """The first try of a task with a linear head, unless the caller changes what the model is or learns from.

    An image size that a linear head could choose may be named.
    """
    own = {"options", "freeze_until", "lora", "probe"} & changes.keys()
    if own or not seen.height or not measured() or not task.num_outputs(data.schema):
        return None
    fitted = not OF_TRAINING & {key.split(".")[0] for key in changes}
    classes = [len(target.classes) for target in data.schema.values() if isinstance(target, ClassTarget)]
    found, one_class = OTHERS if fitted else None, task.kind == "classify" and len(classes) == 1
    if one_class or (task.kind == "classify" and not fitted):
        outputs = task.num_outputs(data.schema)
        found = first_try(len(data), outputs, seen, on_cpu=device.type == "cpu", fitted=fitted)
        found = found if one_class else found._replace(note=_as_for_one_class(found.setting))
    size = changes.get("image_size")
    if found is None or size is None:
        return found
    named = any(size in (side, [side, side], (side, side)) for side in own_sizes(found.setting))
    return found._replace(sizes=()) if named else None


def _as_for_one_class(setting: Setting) -> str:
    """The note on a setting for several labels, which no measured set has."""
    return (
        f"no model was named: {setting.about}, as would be for one class an image. docs/first-try.md says how else; "
        "--model and --from override it"
    )


def own_sizes(setting: Setting) -> tuple[int, ...]:
    """The image sizes that a linear head may choose from; none where the setting has one size."""
    return (_OWN_SIZE, *setting.sizes) if setting.sizes else ()


def first_try_on(data: Dataset, *, device: torch.device) -> FirstTry | None:
    """The first try on training images, for the task that they suggest; None where what suits them is not known."""
    if len(data.schema) != 1:
        return None
    return first_try_for(data, sample(data), {}, infer(data.schema)(), device=device)


def default_on(data: Dataset, *, device: torch.device) -> tuple[str, str]:
    """What a run on training images does where nothing is named, and the network that answers then."""
    if (first := first_try_on(data, device=device)) is not None:
        return first.setting.about, first.setting.start
    name, size = default_model(data)
    return f"a new {name}", f"{name}@{max(size)}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"


def _known(cells: list[Cell]) -> list[str]:
    return [name for name in SETTINGS if any(name in cell.results for cell in cells)]


def _merit(name: str, here: Cell, cells: list[Cell], *, on_cpu: bool) -> float:
    """How far a setting is below the best of each set, as a weighted mean; much less where it takes too long."""
    weights = [1 / (0.5 + here.distance(cell)) ** 2 for cell in cells]
    merits = [_below(name, cell) for cell in cells]
    mean = sum(weight * merit for weight, merit in zip(weights, merits, strict=True)) / sum(weights)
    near = [cell for cell in cells if name in cell.results][:_NEAR]
    return mean - (1.0 if on_cpu and _seconds(name, here, near) > _PATIENCE else 0.0)


def _below(name: str, cell: Cell) -> float:
    """How far a setting is below the best of a set; a guess where it was not measured."""
    if name not in cell.results:
        return _UNKNOWN
    return cell.results[name].validation - max(each.validation for each in cell.results.values())


def _seconds(name: str, here: Cell, near: list[Cell]) -> float:
    """The seconds that a setting takes, in proportion to the number of images."""
    return max(5.0, sum(cell.results[name].seconds / cell.images for cell in near) / len(near) * here.images)
