"""The card of an artefact: its task, preprocessing, licence and recipe as one JSON, stored inside the file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from vitrail import __version__
from vitrail.config import from_dict, to_dict
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import Schema
from vitrail.data.targets.target import schema_from_dict, schema_to_dict
from vitrail.errors import CheckpointError, ConfigError, nearest
from vitrail.models.checkpoint.outline import MAX_SIDE, check_numbers, of_file
from vitrail.models.registry import family_of
from vitrail.runs.trained import TrainedModel
from vitrail.strict_json import from_json, to_json
from vitrail.tasks.task import Task, TaskConfig

KEY = "vitrail"  # the name of the card in a file's metadata
VERSION = 2  # of its JSON
INPUT = "images: uint8 B H W C, any size; C is 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA)"


@dataclass(frozen=True, kw_only=True)
class Card:
    """Everything that is needed to use an artefact without the run that it was made from."""

    about: str
    family: str
    config: TaskConfig  # of the task
    schema: Schema
    state: Mapping[str, Any]  # of the task: what validation chose and calibration found
    preprocess: Preprocess
    licence: str = "not stated"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "float32"
    kept: tuple[str, ...] = ()  # layers that stayed in floating point where the others are int8
    opset: int | None = None
    step: int | None = None  # pixels: the model works at the size of its images, in multiples; None: at one size
    input: str = INPUT
    vitrail: str = __version__  # that wrote it

    @classmethod
    def of(cls, trained: TrainedModel, *, licence: str | None = None) -> Self:
        """The card of a trained model; Unsupported where its task gives no answers."""
        task, record = trained.task, trained.record
        card = cls(
            about=trained.about,
            family=family_of(trained.backbone).name,
            config=task.config.stored(),
            schema=task.schema,
            state=task.state(),
            preprocess=trained.preprocess,
            licence=licence or (None if record is None else record.licence) or "not stated",
            recipe={} if record is None else record.recipe,
        )
        card.task()
        return card

    def task(self) -> Task:
        """The task that reads the artefact's outputs; it has no model."""
        task = self.config.build(None, self.schema)
        task.load_state(self.state)
        return task.eval()

    def to_json(self) -> str:
        """One line of JSON, which `from_json` reads."""
        plain = {name: value for name, value in vars(self).items() if name not in ("config", "schema", "preprocess")}
        stored = {
            "task": to_dict(self.config),
            "schema": schema_to_dict(self.schema),
            "preprocess": to_dict(self.preprocess),
        }
        return to_json({"version": VERSION, **plain, **stored})

    @classmethod
    def from_json(cls, text: str | None, *, name: str) -> Self:
        """The card in a file's metadata; CheckpointError names the file."""
        if not text:
            raise CheckpointError(f"{name} has no vitrail metadata; it must be a file that `vitrail export` wrote")
        try:
            data = from_json(text)
            version = data.pop("version", None)
            if version != VERSION:
                raise CheckpointError(
                    f"{name} has a card of version {version!r:.9}; this vitrail reads {VERSION}: export the model again"
                )
            with of_file(name):
                card = cls(**_parsed(data))
                card.task()  # its state fits its task
                return card
        except (ValueError, TypeError, AttributeError, KeyError, ConfigError) as error:
            raise CheckpointError(f"{name} has damaged vitrail metadata: {error!r:.300}") from error


def _parsed(data: dict[str, Any]) -> dict[str, Any]:
    known = {one.name for one in fields(Card)} - {"config"} | {"task"}
    if wrong := data.keys() - known:
        raise ConfigError(f"unknown key {min(wrong)!r}; {nearest(min(wrong), known)}")
    task = dict(data.pop("task"))
    kind = TaskConfig.kinds[task.pop("kind")]
    config, preprocess = from_dict(kind, task), from_dict(Preprocess, data["preprocess"])
    check_numbers((config, preprocess))
    if not isinstance(step := data.get("step"), int | None) or (step is not None and not 0 < step <= MAX_SIDE):
        raise ConfigError(f"step is {step!r}; it must be a number of pixels")
    return data | {
        "config": config,
        "schema": schema_from_dict(data["schema"]),
        "preprocess": preprocess,
        "kept": tuple(data.get("kept", ())),
    }
