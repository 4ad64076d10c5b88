"""A run that is over, opened again: its model with the way its images are prepared; and what training would cost.

trained = open_trained("runs/my-run")  # or a checkpoint; with nothing named, the model that ships with the package
print(trained.about)
trained.predict("picture.jpg", top=3)
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitrail.config import from_dict
from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.decode import SUFFIXES as PICTURES
from vitrail.data.doctor import Cost
from vitrail.errors import CheckpointError, ConfigError, nearest
from vitrail.hardware import autocast, precision
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import load
from vitrail.models.checkpoint.files import PICKLES, is_word
from vitrail.models.checkpoint.hub import PREFIX
from vitrail.models.registry import create, is_known, name_of, presets
from vitrail.packaged import NAME as PACKAGED
from vitrail.packaged import find_packaged
from vitrail.profiling import describe, sketch
from vitrail.report import Facts
from vitrail.tasks.classify import Classify
from vitrail.tasks.distill import Normalisation
from vitrail.tasks.predict import Prediction, as_task, predict
from vitrail.tasks.task import Task
from vitrail.training.normalisation import normalisation_of, of_config

_ADAM = 4  # weights, gradients and two moments
_NAMED = 12  # classes that a sentence lists
_TIMED = {"cpu": 4, "cuda": 64}  # images that tell a device's pace


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A task ready for use, and the treatment that its training gave images."""

    task: Task
    augment: AugmentConfig
    multi_label: bool
    about: str  # model, data, classes and result, in one sentence
    of_run: bool  # whether a run left it, so that all of this is known
    normalisation: Normalisation | None  # None where no file tells it: `augment` has the usual one then

    @property
    def prepare(self) -> Prepare:
        """Makes the model's input of uint8 images."""
        config = self.task.backbone.config
        return Prepare(self.augment, image_size=config.image_size, channels=config.channels)

    def predict(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        top: int = 5,
        on_result: Callable[[Prediction], None] | None = None,
    ) -> list[Prediction]:
        """What is in image files and in all below folders; see `vitrail.tasks.predict`."""
        return predict(self.task, paths, top=top, augment=self.augment, on_result=on_result)


def open_trained(source: str | Path = PACKAGED) -> Trained:
    """The best model of a run's folder, with its classes, thresholds and normalisation; or a checkpoint.

    A checkpoint's normalisation is what the files beside it tell, as timm and Hugging Face write them, or else ours.
    "packaged" is the model that ships with the package; a folder of that name is "./packaged".
    """
    place = place_of(source)
    model = load(place)
    file = Path(place) / "run.json"
    if not file.is_file():
        return _of_checkpoint(str(source), model, normalisation_of(place))
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        best = json.loads((Path(place) / "best.json").read_text(encoding="utf-8"))
        several, thresholds = run["multi_label"], best.get("thresholds")
        if not run["classes"]:
            raise ConfigError(
                f"{source} learned from images without labels and cannot tell classes apart; fine-tune it first: "
                f"vitrail train photos/ --from {source}"
            )
        augment = from_dict(AugmentConfig, run["recipe"]["augment"])
        task = Classify(model, classes=run["classes"], multi_label=several, thresholds=thresholds)
    except ConfigError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{place} is no whole run, its run.json or best.json is damaged: {error!r}") from error
    about = _about(str(source), task, run, best)
    return Trained(
        task=task.eval(),
        augment=augment,
        multi_label=several,
        about=about,
        of_run=True,
        normalisation=of_config(augment),
    )


def place_of(source: str | Path) -> str | Path:
    """Where weights lie: what was named, or the folder of those that ship with the package."""
    if source == PACKAGED:
        return find_packaged()
    _refuse_misspelt(str(source))
    return source


def _refuse_misspelt(source: str) -> None:
    """Tells the nearest of what lies there and, for a word, of the packaged model, the runs below runs/ and models."""
    path = Path(source)
    if path.exists() or is_known(source):
        return
    places = {item.name: str(item) for item in path.parent.iterdir()} if path.parent.is_dir() else {}
    if is_word(path):
        places |= {name: name for name in (PACKAGED, *presets())}
        places |= {file.parent.name: str(file.parent) for file in Path("runs").glob("*/run.json")}
    hint = nearest(path.name, places)
    for name, place in places.items():
        hint = hint.replace(f"{name!r}?", f"{place!r}?")
    if hint.startswith("did you mean"):
        raise CheckpointError(f"there is no {source}; {hint}")


def _of_checkpoint(source: str, model: Backbone, normalisation: Normalisation | None) -> Trained:
    task = as_task(model).eval()
    augment = AugmentConfig() if normalisation is None else AugmentConfig(**normalisation._asdict())
    return Trained(
        task=task,
        augment=augment,
        multi_label=False,
        about=_about(source, task, {}, {}),
        of_run=False,
        normalisation=normalisation,
    )


def _about(source: str, task: Task, run: Mapping[str, Any], best: Mapping[str, Any]) -> str:
    """What a model is, learned from, how well, and what it can tell apart."""
    millions = sum(parameter.numel() for parameter in task.backbone.parameters()) / 1e6
    kind = name_of(task.backbone.config) or run.get("recipe", {}).get("model", type(task.backbone).__name__)
    told = f"{source}: {kind}, {millions:.2f} M parameters"
    told += f", trained on {run['source']}" if run.get("source") else ""
    scores = ((name, best.get(name)) for name in (f"test_{task.best_metric}", task.best_metric))
    score = next((f", {name.replace('_', ' ')} {value:.4f}" for name, value in scores if value is not None), "")
    return f"{told}{score}; it tells apart {', '.join(task.classes[:_NAMED])}" + (
        f" and {len(task.classes) - _NAMED} more" if len(task.classes) > _NAMED else ""
    )


def names_model(source: str | Path) -> bool:
    """Whether a path names a run, a checkpoint or the packaged model, rather than pictures."""
    text, path = str(source), Path(source).expanduser()
    if text == PACKAGED or text.startswith(PREFIX):
        return True
    if path.is_dir():
        weights = (".safetensors", *PICKLES)
        return any(item.name == "run.json" or item.suffix in weights for item in path.iterdir())
    # What is not there is taken for a run that was misspelt, unless it is named like a picture.
    return path.suffix in (".safetensors", *PICKLES) or not (path.suffix.lower() in PICTURES or path.exists())


class TrainingCost(NamedTuple):
    """What the doctor is told of a model."""

    numbers: Cost
    image_size: tuple[int, int]


def training_cost(name: str, image_size: int | tuple[int, int] | None = None) -> TrainingCost:
    """The memory that training a named model takes on this machine: fixed, and for each image."""
    model = sketch(name) if image_size is None else sketch(name, image_size=image_size)
    totals = describe(model)["Totals"]
    assert isinstance(totals, Facts)  # noqa: S101  (describe writes it so)
    weights, activations = (int(totals.values[key] or 0) for key in ("weights", "activations"))
    if torch.cuda.is_available():
        memory = torch.cuda.mem_get_info()[1]
    else:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = Cost(model=name, fixed=_ADAM * weights, per_image=activations, memory=memory)
    return TrainingCost(numbers, model.config.image_size)


def training_pace(name: str, image_size: int | tuple[int, int] | None = None, *, device: torch.device) -> float:
    """Images a second of training a named model on a device: forward and backward passes, timed on a few images."""
    model = (create(name) if image_size is None else create(name, image_size=image_size)).to(device).train()
    config, chosen = model.config, precision("auto", device)[0]
    count = _TIMED.get(device.type, _TIMED["cpu"])
    images = torch.zeros(count, config.channels, *config.image_size, device=device)
    seconds = 0.0
    for _ in range(2):  # the first one warms up
        began = time.perf_counter()
        with autocast(device, chosen):
            loss = model(images).float().square().mean()
        loss.backward()
        loss.item()  # waits for the device
        seconds = time.perf_counter() - began
    return count / seconds
