"""Pictures explained with a model: its answer, its attention, saliency maps, and how faithful the maps are.

views = picture_views(trained.task, trained.preprocess, pictures, model="runs/my-run", methods=("relevance", "rollout"))
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from vitrail.data.preprocess import Preprocess
from vitrail.errors import CheckpointError, Unsupported
from vitrail.explain.attention.capture import capture
from vitrail.explain.attention.cells import LayerView
from vitrail.explain.attention.layer_views import layer_views
from vitrail.explain.methods.saliency import method_of, saliency, usable
from vitrail.explain.methods.saliency import methods as all_methods
from vitrail.explain.methods.target import targets
from vitrail.explain.page.gallery import View
from vitrail.explain.pictures import Picture
from vitrail.explain.progress import Counter, Progress
from vitrail.explain.scoring.map_scores import ScoreLevel, Scoring, score_maps
from vitrail.explain.scoring.randomisation import shuffled
from vitrail.explain.unwrap import eval_mode
from vitrail.models.backbone import Backbone
from vitrail.tasks.task import Task, finite_rows

USUAL = ("relevance", "attention", "rollout", "grad_cam", "gradient")  # methods that take one or two passes
CROSS = "cross_attention"  # of a decoder, for detectors
_BASELINES = 2  # maps that do not depend on the model and are scored too


@dataclass(frozen=True, kw_only=True)
class PictureExplainer:
    """A task and what to show of it; `source` names the model, `layers` None are all, and `attention` False is none."""

    task: Task
    preprocess: Preprocess
    source: str
    methods: Sequence[str]
    scoring: Scoring
    target: str | None = None
    layers: Sequence[int] | None = None
    attention: bool = True
    cross: bool | None = None  # whether the attention of a decoder is shown; None: where there is one
    top: int = 5

    @property
    def parts(self) -> int:
        """The parts of the work on one picture, as a counter counts them."""
        curves = 2 * max(self.scoring.steps - 1, 0)
        return 1 + self.attention + len(self.methods) * (1 + self.scoring.shuffle) + curves

    def view(self, picture: Picture, copied: Backbone | None, counter: Counter) -> View:
        """Explains one picture; `copied` is the model with shuffled weights."""
        task = self.task
        images = self.preprocess.normalise(picture.pixels[None].to(next(task.parameters()).device))  # 1 C H W
        counter.begin("answer")
        with torch.no_grad():
            outputs = task.outputs(images)
            if not all(finite_rows(outputs)):
                raise CheckpointError(f"{picture.name}: {self.source} computed numbers that are not finite")
            (answer,) = task.decode(outputs, top=self.top)
            backbone = task.explained_for(outputs)
            target = targets(task, images, self.target, outputs=outputs)
            score = float(target.score(backbone(images)))
            part = task.explained_part(outputs, target.indices, self.preprocess.image_size)
        counter.advance()
        maps = {}
        for name in self.methods:
            counter.begin(name)
            maps[name] = saliency(backbone, images, name, target)
            counter.advance()
        seen = task.cross_attention(images, target.indices) if self.cross is not False else None
        if seen is not None:
            maps[CROSS] = seen
        elif self.cross:
            raise Unsupported(f"{CROSS} is that of a detector's decoder; a model of task {task.config.kind!r} has none")
        layers, missing = list[LayerView](), ""
        if self.attention:
            counter.begin("attention")
            layers, missing = layer_views(backbone, images, self.layers)
            counter.advance()
        scores = score_maps(
            backbone, images, maps, target, self.scoring, copied=copied, mask=picture.mask, counter=counter
        )
        return View(
            model=self.source,
            picture=picture.name,
            image=picture.shown,
            bars=answer.placed(picture.maps, picture.size).bars(),
            target=task.output_names[int(target.indices)],
            score=score,
            maps={name: values[0] for name, values in maps.items()},
            untargeted=[name for name in self.methods if not method_of(name).targeted],
            scores=scores,
            note=self.scoring.note,
            layers=layers,
            missing=missing,
            part=None if part is None else part[0],
        )


def picture_views(
    task: Task,
    preprocess: Preprocess,
    pictures: Sequence[Picture],
    *,
    model: str,
    methods: Sequence[str] | None = None,
    target: str | None = None,
    layers: Sequence[int] | None = None,
    attention: bool = True,
    top: int = 5,
    scores: ScoreLevel = "quick",
    steps: int | None = None,
    progress: Progress | None = None,
) -> Iterator[View]:
    """Explains each picture in turn: the answer, attention, and saliency maps of one output with their scores.

    `methods` are quick ones by default, `target` is the model's answer, `layers` are all attention layers. Without
    `attention`, none is read. `scores` and `steps` are those of `Scoring.of`. `progress(text, done, total)` is
    called as the work goes on.
    """
    backbone = task.explained()
    with eval_mode(task):
        if attention and layers is not None:
            with capture(backbone, layers=layers):
                pass  # an error in `layers` is raised before the work starts
        cross = None if methods is None else CROSS in methods
        named = None if methods is None else [_checked(name, backbone) for name in methods if name != CROSS]
        names = usual_methods(backbone) if named is None else named
        explainer = PictureExplainer(
            task=task,
            preprocess=preprocess,
            source=model,
            methods=names,
            scoring=Scoring.of(scores, backbone, len(names) + _BASELINES, steps=steps),
            target=target,
            layers=layers,
            attention=attention,
            cross=cross,
            top=top,
        )
        copied = shuffled(backbone) if explainer.scoring.shuffle else None
        counter = Counter(progress, len(pictures) * explainer.parts)
        for picture in pictures:
            yield explainer.view(picture, copied, counter)


def usual_methods(model: Backbone) -> list[str]:
    """The quick methods that can be used for a model; if none can, all that can."""
    return usable([method_of(name) for name in USUAL], model) or all_methods(model)


def _checked(name: str, model: Backbone) -> str:
    """The name of a method that can be used for a model; otherwise an error."""
    if reason := method_of(name).refusal(model):
        raise Unsupported(reason)
    return name
