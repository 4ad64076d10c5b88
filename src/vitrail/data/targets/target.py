"""The contract of every kind of target, and the columns of a table that targets are read from."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.config import Choice, from_dict, to_dict
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.report import Section

Change = Literal["flip", "crop"]  # augmentations that can make a target wrong


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, its cells, and the line number of each for messages."""

    path: Path
    name: str
    cells: Sequence[Any]
    lines: Sequence[int]

    def error(self, row: int, problem: str) -> DataError:
        """A DataError about one cell."""
        return DataError(f"{self.path}, line {self.lines[row]}, column {self.name!r}: {problem}")


class Read(NamedTuple):
    """A target, its values N ..., and notes for the user."""

    target: "Target"
    values: Tensor
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """What the doctor reports about a target: sections of its report, and advice in sentences."""

    sections: Sequence[Section] = ()
    advice: Sequence[str] = field(default_factory=list)


class Target(Choice):
    """A kind of ground truth that travels with an image: one field of a dataset's schema.

    Values are a tensor N ... with the same shape for every image, so batches have a fixed shape too. Those of dense
    kinds (a mask, depth) are references to files N L uint8 in a dataset, and pixels B H W in a batch.
    """

    field: ClassVar[str]  # the name of such a field in batches
    column_names: ClassVar[tuple[str, ...]] = ()  # lower-case names of table columns that hold this kind
    stratum: ClassVar[str] = ""  # what `strata` numbers, for messages: "class"
    vague: ClassVar[int] = 0  # of kinds that can read a column which the user named, that with the least is meant
    dense: ClassVar[torch.dtype | None] = None  # of one value for each pixel; datasets hold references to their files
    missing_cells: ClassVar[tuple[Any, ...]] = (None, "", "?")  # of an image without a value, where others have one

    @property
    def number_names(self) -> tuple[str, ...]:
        """The names of its values N K, where these are numbers that a linear probe can predict; none otherwise."""
        return ()

    # Reading

    @classmethod
    def recognise(cls, columns: Sequence[Column]) -> list[Column]:
        """The columns of a table that hold this kind, where the user named none: by default one of `column_names`."""
        return [] if (column := cls.named_column(columns)) is None else [column]

    @classmethod
    @abstractmethod
    def read(cls, columns: Sequence[Column]) -> Read:
        """The target and its values from these columns; DataError with the line number of a wrong cell."""

    @classmethod
    def named_column(cls, columns: Sequence[Column]) -> Column | None:
        """The first column that has one of `column_names` as its name."""
        by_name = {column.name.lower(): column for column in columns}
        return next((by_name[name] for name in cls.column_names if name in by_name), None)

    @abstractmethod
    def describe(self) -> str:
        """A short description: "3 classes"."""

    # Splits

    def strata(self, values: Tensor) -> list[int]:
        """A group number for each sample: a validation split takes its share of each group. N ... -> N."""
        return [0] * len(values)

    def align(self, values: Tensor, to: "Target", *, name: str) -> Tensor:
        """The values of the dataset `name`, converted to another target, usually that of the training data."""
        if to != self:
            raise DataError(f"{name} has {self.describe()}; the training data has {to.describe()}")
        return values

    def joined(self, other: "Target") -> "Target":
        """The target that can hold the values of both: the splits of a source are aligned to it."""
        return self

    def refusal(self, parts: Mapping[str, tuple[str, Tensor]]) -> str | None:
        """Why a model cannot learn from these splits (split -> dataset name, values); None if it can."""
        return None

    def lost(self, before: Tensor, after: Tensor) -> tuple[str, ...]:
        """What had samples before and has none after, such as classes whose images are all broken."""
        return ()

    def notes(self) -> Iterator[str]:
        """Remarks on the target itself that the user should check."""
        yield from ()

    # Batches

    def load(self, value: Tensor) -> Tensor:
        """The value of one sample as batches hold it: dense kinds read H W from a file, others have it already."""
        return value

    def unknown(self, like: Tensor) -> Tensor:
        """The value of an image without one, in the shape of values like N ...; DataError if every image needs one."""
        raise DataError(f"every image needs a value for {self.describe()}; some have none")

    def known(self, values: Tensor) -> Tensor:
        """Which samples have a value, in a dataset or in a batch: N ... -> N bool."""
        return torch.ones(len(values), dtype=torch.bool, device=values.device)

    def keeps(self, change: Change) -> bool:
        """Whether a value stays correct when the image is flipped or cropped."""
        return True

    def move(self, values: Tensor, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Values B ... after the pixels moved: maps B 2 3 take new pixels to old ones, `size` is the new size."""
        return values

    def mix(self, values: Tensor, partner: Tensor, share: Tensor) -> Tensor:
        """Values of mixed images: `share` B 1 is the part of each image that stays; ConfigError if they cannot mix."""
        raise ConfigError(f"targets of kind {self.kind!r} cannot be mixed; turn off mixup, cutmix and patch_mixup")

    def paste(self, values: Tensor, other: Tensor, region: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Values of images in which the pixels `region` B H W come from images with the values `other`.

        `hidden` B H W are all pixels that will be covered, where more is pasted afterwards; `region` by default.
        """
        raise ConfigError(f"targets of kind {self.kind!r} cannot be pasted; turn off mosaic and copy_paste")

    def objects(self, values: Tensor, draws: Tensor, size: tuple[int, int]) -> Tensor | None:
        """The pixels B H W of objects that uniform numbers B 64 choose for pasting; None if the kind has no objects."""
        return None

    # For people

    @abstractmethod
    def text(self, value: Tensor) -> str:
        """The value of one sample as text."""

    def draw(self, image: Tensor, value: Tensor) -> Tensor:
        """The image, uint8 C H W, with the value drawn on it; unchanged if the kind has no position in the image."""
        return image

    def audit(self, parts: Mapping[str, Tensor]) -> Audit:
        """Problems in the values of each split: what is uneven, missing or suspicious."""
        return Audit()

    def misfit(self, value: Tensor, size: tuple[int, int]) -> str | None:
        """What is wrong with a value, as `load` gives it, in an image of this height and width; None if nothing is."""
        if self.dense is None or value.numel() == 1 or tuple(value.shape) == size:
            return None
        return f"its {self.field} has {value.shape[1]} x {value.shape[0]} pixels, the image {size[1]} x {size[0]}"

    def groups(self, values: Tensor) -> list[str | None]:
        """A group name for each sample, or None; image size or file type should not predict the group."""
        return [None] * len(values)


Schema = Mapping[str, Target]


def schema_to_dict(schema: Schema) -> dict[str, Any]:
    """Plain data for JSON."""
    return {name: to_dict(target) for name, target in schema.items()}


def schema_from_dict(data: Mapping[str, Any]) -> dict[str, Target]:
    """The inverse of `schema_to_dict`."""
    return {name: target_from_dict(plain) for name, plain in data.items()}


def target_from_dict(data: Mapping[str, Any]) -> Target:
    """A target of any registered kind from plain data."""
    kind = str(data.get("kind"))
    if kind not in Target.kinds:
        raise ConfigError(f"unknown target kind {kind!r}; {nearest(kind, Target.kinds)}")
    found = from_dict(Target.kinds[kind], {name: value for name, value in data.items() if name != "kind"})
    assert isinstance(found, Target)  # noqa: S101  (registered as such)
    return found
