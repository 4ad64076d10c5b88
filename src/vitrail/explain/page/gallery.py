"""What a page of explanations shows: pictures, models, saliency maps and their scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from vitrail.errors import ConfigError
from vitrail.explain.attention.cells import LayerView
from vitrail.explain.scoring.map_scores import Score
from vitrail.tasks.answer import Bar


@dataclass(frozen=True, kw_only=True, repr=False)
class View:
    """One picture explained with one model.

    `image` is uint8 C H W, cropped as the model takes it, at any scale; `bars` are the model's answer; `maps` H W by
    method explain the output `target`, whose score is `score`; `untargeted` names the methods whose maps are the same
    for every output; `note` says what the scores leave out. `layers` hold the attention, and `missing` says why some of
    it is missing. `part` H W is true for the pixels that the output is about, such as those of a box.
    """

    model: str
    picture: str
    image: Tensor
    bars: Sequence[Bar]
    target: str
    score: float
    maps: Mapping[str, Tensor] = field(default_factory=dict)
    untargeted: Sequence[str] = ()
    scores: Mapping[str, Score] = field(default_factory=dict)
    note: str = ""
    layers: Sequence[LayerView] = ()
    missing: str = ""
    part: Tensor | None = None

    def __repr__(self) -> str:
        return f"View({self.picture!r}, {self.model!r}: {self.answer}; {', '.join(self.maps)})"

    @property
    def answer(self) -> str:
        """The first line of the model's answer."""
        return f"{self.bars[0].label} {self.bars[0].text}" if self.bars else ""


@dataclass(frozen=True, kw_only=True, repr=False)
class Gallery:
    """Each picture explained with each model, once; `about` describes each model in a sentence."""

    title: str
    views: Sequence[View]
    about: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Checks that every picture is there for every model."""
        if not self.views:
            raise ConfigError("a page of explanations needs at least one picture")
        pairs = {(view.model, view.picture) for view in self.views}
        if len(pairs) != len(self.views) or len(pairs) != len(self.models) * len(self.pictures):
            raise ConfigError(
                f"a page needs one view for each picture and model, {len(self.pictures)} x {len(self.models)}; it got "
                f"{len(self.views)} views, {len(pairs)} of them different"
            )

    def __repr__(self) -> str:
        count = f"{len(self.pictures)} picture{'s' if len(self.pictures) != 1 else ''}"
        return f"Gallery({self.title!r}: {count}, {', '.join(self.models)})"

    @property
    def models(self) -> list[str]:
        """The names of the models, in order."""
        return list(dict.fromkeys(view.model for view in self.views))

    @property
    def pictures(self) -> list[str]:
        """The names of the pictures, in order."""
        return list(dict.fromkeys(view.picture for view in self.views))

    @property
    def measured(self) -> list[str]:
        """The scores that some map of the gallery has."""
        every = [score for view in self.views for score in view.scores.values()]
        names = ("insertion", "deletion", "shuffled", "pointing")
        return [name for name in names if any(getattr(score, name) is not None for score in every)]
