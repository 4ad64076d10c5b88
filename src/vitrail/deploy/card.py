"""What an artefact says of itself: classes, image size, normalisation, licence, recipe; stored inside the file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, Self

from vitrail import __version__
from vitrail.data.augment import AugmentConfig
from vitrail.deploy.calibration import Calibration
from vitrail.errors import CheckpointError
from vitrail.models.registry import family_of
from vitrail.tasks.task import Task

KEY = "vitrail"  # under which a file's metadata hold the card, as JSON


class Opened(Protocol):
    """A run or a checkpoint that is ready for use, as `open_trained` gives it."""

    @property
    def task(self) -> Task:
        """The task, whose backbone answers with logits."""
        ...

    @property
    def augment(self) -> AugmentConfig:
        """The treatment that training gave images, for its normalisation."""
        ...

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several labels."""
        ...

    @property
    def about(self) -> str:
        """Model, data, classes and result, in one sentence."""
        ...


@dataclass(frozen=True, kw_only=True)
class Card:
    """Everything that a person who finds an artefact needs in order to use it."""

    about: str
    family: str
    labels: tuple[str, ...]
    image_size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    multi_label: bool = False
    thresholds: tuple[float, ...] | None = None  # from which probability on a label is given
    calibration: Calibration = Calibration()  # how sure it may sound, by the float32 model
    licence: str = "not stated"
    recipe: Mapping[str, Any] = field(default_factory=dict)
    precision: str = "float32"
    kept: tuple[str, ...] = ()  # layers that stayed in floating point where the others are int8
    opset: int | None = None
    step: int | None = None  # pixels: the model works at the size of its images, in whole steps; None: at image_size
    input: str = "images: uint8 B H W C, any size; C is 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA)"
    output: str = "logits: float32 B K; probabilities: float32 B K"
    version: str = __version__

    @classmethod
    def of(
        cls, opened: Opened, *, calibration: Calibration | None = None, licence: str | None = None,
        recipe: Mapping[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        """The card of a run or a checkpoint."""
        model = opened.task.backbone
        thresholds = getattr(opened.task, "thresholds", None)
        return cls(
            about=opened.about,
            family=family_of(model).name,
            labels=opened.task.classes,
            image_size=model.config.image_size,
            channels=model.config.channels,
            mean=_each(opened.augment.mean, model.config.channels),
            std=_each(opened.augment.std, model.config.channels),
            multi_label=opened.multi_label,
            thresholds=None if thresholds is None else tuple(thresholds.tolist()),
            calibration=calibration or Calibration(),
            licence=licence or "not stated",
            recipe=recipe or {},
        )

    def to_json(self) -> str:
        """One line of JSON, which `from_json` reads."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | None, *, name: str) -> Self:
        """The card that stands in a file, or an error that names the file."""
        if not text:
            raise CheckpointError(f"{name} says nothing of its classes and image size; was `vitrail export` its maker?")
        try:
            data = json.loads(text)
            plain: dict[str, Any] = {
                key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
            }
            plain["calibration"] = Calibration(**plain.get("calibration", {}))
            return cls(**plain)
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{name} describes itself in a way that cannot be read: {error}") from error


def _each(values: Sequence[float] | None, channels: int) -> tuple[float, ...]:
    """One number a channel, half where none are given, as `Prepare` has it."""
    found = tuple(values or (0.5,))
    return found if len(found) == channels else found * channels
