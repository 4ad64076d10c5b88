"""Many tasks: one backbone, which runs once for all heads; each task keeps its own loss, metrics and answers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.dataset import Batch, Targets
from vitrail.data.targets import Schema
from vitrail.errors import ConfigError, DataError, nearest
from vitrail.models.backbone import Backbone
from vitrail.models.shared import Shared
from vitrail.report import Section
from vitrail.tasks.answer import NO_EXAMPLES, Answer, Examples
from vitrail.tasks.many import many_report
from vitrail.tasks.many.many_answer import ManyAnswer
from vitrail.tasks.many.many_explained import ManyOutputs
from vitrail.tasks.many.many_meter import SCORE, ManyMeter, known_part
from vitrail.tasks.many.many_names import explained_names, full, joined, part_of
from vitrail.tasks.many.uncertainty import Uncertainty
from vitrail.tasks.task import Agreement, Arrays, Breakdown, Outputs, Task, TaskConfig


class Many(Task):
    """Tasks by name around one backbone; outputs, metrics and columns have the names of their tasks before theirs."""

    best_metric = SCORE
    int8_loss = 0.005

    def __init__(
        self, config: TaskConfig, schema: Schema, backbone: Backbone | None, tasks: Mapping[str, TaskConfig]
    ) -> None:
        super().__init__(config, schema, backbone)
        self.shared = None if backbone is None else Shared(backbone)
        self.tasks, self.heads = nn.ModuleDict(), nn.ModuleDict()
        for name, one in tasks.items():
            self._add(name, one, one.learns(schema))
        parts = dict(self.parts())
        self.uncertainty = Uncertainty({name: task.likelihood for name, task in parts.items()})
        self.partial = set(parts)  # tasks whose targets some images may lack
        if self.shared is not None:
            self.shared.layers = tuple(sorted({layer for task in parts.values() for layer in task.layers}))
        # Class variables of other tasks: here they depend on the parts.
        self.about_metrics = many_report.metrics(parts)  # type: ignore[misc]
        self.answered_by = joined({name: task.answered_by for name, task in parts.items()})  # type: ignore[misc]
        self.gives_maps = any(task.gives_maps for task in parts.values())
        self.relative_scores = any(task.relative_scores for task in parts.values())
        lines = [full(name, metric) for name, task in parts.items() for metric in ("loss", task.best_metric)]
        self.printed = ("loss", SCORE, *lines)
        self.columns = tuple(full(name, column) for name, task in parts.items() for column in task.columns)
        self.output_names = explained_names({name: task.output_names for name, task in parts.items()})

    def _add(self, name: str, config: TaskConfig, schema: Schema) -> None:
        """A task around a view of the backbone, whose parameters stay those of the whole."""
        view = None if self.shared is None else self.shared.view(config.num_outputs(schema))
        task = config.build(view, schema)
        self.tasks[name] = task
        if view is None:
            return
        del task._modules["backbone"]
        object.__setattr__(task, "backbone", view)
        own = {key: part for key, part in view._modules.items() if part is not self.backbone._modules.get(key)}
        if own:
            self.heads[name] = nn.ModuleDict(cast("dict[str, nn.Module]", own))

    def parts(self) -> Iterator[tuple[str, Task]]:
        """The tasks by name."""
        for name, task in self.tasks.items():
            yield name, cast("Task", task)

    def _each(self, values: Mapping[str, Any], work: Callable[[Task, dict[str, Any]], Any]) -> dict[str, Any]:
        """What a method of each task gives for its own part of some values, by name."""
        return {name: work(task, part_of(values, name)) for name, task in self.parts()}

    # Learning

    def fit(self, targets: Targets) -> None:
        """Each task takes over what it needs of the images that have its targets."""
        self.partial.clear()
        for name, task in self.parts():
            known = known_part(task.schema, targets)
            if not len(next(iter(known.targets.values()))):
                raise DataError(f"no training image has a target of task {name!r}; leave it out, or add annotations")
            if known.rows is not None:
                self.partial.add(name)
            task.fit(known.targets)
        self.capturable = not self.partial and all(task.capturable for _, task in self.parts())

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The balanced sum of all losses, the loss of each task and its weight."""
        assert self.shared is not None  # noqa: S101  (there is a model to train)
        found: dict[str, dict[str, Tensor]] = {}
        present: dict[str, float] = {}
        with self.shared.reading(batch.images):
            for name, task in self.parts():
                found[name] = self._loss_of(name, task, batch)
                present[name] = float("loss" in found[name])
                if not present[name]:  # every parameter has a gradient, as wrappers of modules ask for
                    found[name] = {
                        "loss": sum((one.sum() for one in task.parameters()), batch.images.new_zeros(())) * 0
                    }
        total = self.uncertainty({name: losses["loss"] for name, losses in found.items()}, present)
        weights = {name: {"weight": value} for name, value in self.uncertainty.weights().items()}
        shown = {name: {key: value.detach() for key, value in losses.items()} for name, losses in found.items()}
        return {"loss": total, **joined(shown), **joined(weights)}

    def _loss_of(self, name: str, task: Task, batch: Batch) -> dict[str, Tensor]:
        """The losses of one task on the images that have its targets; none where there is no such image."""
        assert self.shared is not None  # noqa: S101  (there is a model to train)
        own = batch._replace(targets={key: batch.targets[key] for key in task.schema})
        if name not in self.partial:
            return task.loss(own)
        known = known_part(task.schema, batch.targets)
        if known.rows is None:
            return task.loss(own)
        if not bool(known.rows.any()):
            return {}
        with self.shared.selecting(known.rows) as images:
            return task.loss(Batch(images, known.targets, batch.ids[known.rows]))

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """The outputs of all tasks, of one pass of the backbone."""
        assert self.shared is not None  # noqa: S101  (there is a model)
        with self.shared.reading(images):
            return joined({name: task.outputs(images) for name, task in self.parts()})

    # Measuring

    def metrics(self) -> ManyMeter:
        """A fresh meter for one evaluation."""
        return ManyMeter(dict(self.parts()))

    def adopt(self, results: Mapping[str, Any]) -> None:
        """Each task takes over what its validation chose."""
        self._each(results, lambda task, own: task.adopt(own))

    def calibrate(self, outputs: Outputs, targets: Targets) -> None:
        """Calibrates each task on the images that have its targets."""
        for name, task in self.parts():
            known = known_part(task.schema, targets)
            task.calibrate(known.of(part_of(outputs, name)), known.targets)

    def clear_calibration(self) -> None:
        """Of all tasks."""
        for _, task in self.parts():
            task.clear_calibration()

    def state(self) -> dict[str, Any]:
        """The state of each task by its name."""
        return {name: task.state() for name, task in self.parts()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        for name, task in self.parts():
            task.load_state(state.get(name, {}))

    def calibration(self) -> str:
        """What was calibrated, of each task that says so."""
        found = ((name, task.calibration()) for name, task in self.parts())
        return "; ".join(f"{name}: {text}" for name, text in found if text)

    # Answers

    def of_view(self, images: Tensor, *, mirrored: bool) -> dict[str, Tensor]:
        """What each task averages, of one pass of the backbone."""
        assert self.shared is not None  # noqa: S101  (there is a model)
        with self.shared.reading(images):
            return joined({name: task.of_view(images, mirrored=mirrored) for name, task in self.parts()})

    def average(self, outputs: Sequence[Outputs]) -> dict[str, Tensor]:
        """As each task averages its own."""
        return joined({name: task.average([part_of(one, name) for one in outputs]) for name, task in self.parts()})

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """The answers of all tasks to each image."""
        each = self._each(outputs, lambda task, own: task.decode(own, top=top))
        return [ManyAnswer(dict(zip(each, row, strict=True))) for row in zip(*each.values(), strict=True)]

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The mean error over the tasks, each at most 1; a task without a target for an image counts 0."""
        total = torch.zeros(len(next(iter(targets.values()))))
        for name, task in self.parts():
            known = known_part(task.schema, targets)
            found = task.errors(known.of(part_of(outputs, name)), known.targets).float().cpu().clamp(max=1)
            rows = slice(None) if known.rows is None else known.rows.cpu()
            total[rows] += found
        return total / len(self.tasks)

    def answer_schema(self) -> dict[str, Any]:
        """An entry for each task."""
        properties = {name: task.answer_schema() for name, task in self.parts()}
        return {"type": "object", "required": list(properties), "properties": properties}

    # Reports

    def sections(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """The sections of each task under its name, and the worst images."""
        each = {
            name: task.sections(part_of(results, name), many_report.examples_of(name, task, examples))
            for name, task in self.parts()
        }
        return many_report.sections(each, examples)

    def lead(self, results: Mapping[str, Any]) -> str:
        """The sentence of each task."""
        each = self._each(results, lambda task, own: task.lead(own))
        return "; ".join(f"{name}: {text}" for name, text in each.items())

    def intervals(self, results: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
        """Those of each task."""
        return joined(self._each(results, lambda task, own: task.intervals(own)))

    def breakdowns(self, results: Mapping[str, Any]) -> dict[str, Breakdown]:
        """Those of each task."""
        each = {name: task.breakdowns(part_of(results, name)) for name, task in self.parts()}
        return {
            full(name, key): one._replace(metric=many_report.named(name, one.metric))
            for name, found in each.items()
            for key, one in found.items()
        }

    # Artefacts

    def graph(self, outputs: Outputs) -> dict[str, Tensor]:
        """What the graph of each task gives."""
        return joined(self._each(outputs, lambda task, own: task.graph(own)))

    def agreement(self, expected: Arrays, found: Arrays) -> Agreement:
        """The worst of all tasks."""
        each = [task.agreement(part_of(expected, name), part_of(found, name)) for name, task in self.parts()]
        error, cosine, agreement = zip(*each, strict=True)
        return Agreement(max(error), min(cosine), min(agreement))

    def width_of(self, output: str) -> int | None:
        """That of a task's own output."""
        return next((task.width_of(own) for name, task in self.parts() for own in part_of({output: 0}, name)), None)

    def same(self, expected: Arrays, found: Arrays) -> "np.ndarray[Any, Any]":
        """The same answer of every task."""
        each = [task.same(part_of(expected, name), part_of(found, name)) for name, task in self.parts()]
        return np.asarray(np.stack(each).all(axis=0))

    # Explanations

    def explained(self) -> Backbone:
        """A model whose outputs are those of all tasks, side by side."""
        return self._joined({name: task.explained() for name, task in self.parts() if task.output_names})

    def explained_for(self, outputs: Outputs) -> Backbone:
        """The same, where each task follows what it found in one image."""
        known = {name: task for name, task in self.parts() if task.output_names}
        return self._joined({name: task.explained_for(part_of(outputs, name)) for name, task in known.items()})

    def _joined(self, views: Mapping[str, Backbone]) -> Backbone:
        assert self.shared is not None  # noqa: S101  (there is a model)
        each = ManyOutputs(self.shared, views)
        return self.backbone.with_outputs(each.outputs, len(self.output_names), features=each.features)

    def explain_target(self, outputs: Outputs, name: str | None) -> Tensor:
        """An output "detect:box 3" or "classify:cat"; "detect:3" by its number, "depth" the answer of a task."""
        task, _, asked = (name or "").partition(":")
        if name is not None and task not in self.tasks:
            raise ConfigError(
                f"the output {name!r} does not begin with a task of the model; {nearest(task, self.tasks)}"
            )
        if name not in self.output_names and task in self.tasks:
            own = self.output_names.index(next(one for one in self.output_names if one.startswith(f"{task}:")))
            part = cast("Task", self.tasks[task])
            if not asked:
                return own + part.explain_target(part_of(outputs, task), None)
            if not asked.isdecimal() or int(asked) >= len(part.output_names):
                try:
                    return own + part.explain_target(part_of(outputs, task), asked)
                except ConfigError as error:  # it says what the task has
                    hint = f"name an output with its task, such as {self.output_names[own]!r}"
                    raise ConfigError(f"{error}; {hint}") from error
            name = self.output_names[own + int(asked)]
        return super().explain_target(outputs, name)

    def likeliest(self, outputs: Outputs) -> Tensor:
        """The answer of the first task that can be explained: B."""
        name, task = next((name, task) for name, task in self.parts() if task.output_names)
        return task.likeliest(part_of(outputs, name))

    def explained_part(self, outputs: Outputs, indices: Tensor, size: tuple[int, int]) -> Tensor | None:
        """As the task of the first image's output says."""
        name, task, start = self._task_at(int(indices[0]))
        return task.explained_part(part_of(outputs, name), (indices - start).clamp(min=0), size)

    def cross_attention(self, images: Tensor, indices: Tensor) -> Tensor | None:
        """Of the task of the first image's output, if it has a decoder."""
        _, task, start = self._task_at(int(indices[0]))
        return task.cross_attention(images, (indices - start).clamp(min=0))

    def _task_at(self, index: int) -> tuple[str, Task, int]:
        """The task of an output that is explained, and the number of its first output."""
        start = 0
        for name, task in self.parts():
            if index < start + len(task.output_names):
                return name, task, start
            start += len(task.output_names)
        raise IndexError(index)

    def scores(self, logits: Tensor, reference: Tensor | None = None) -> Tensor:
        """The scores of each task: B K -> B K."""
        tasks = [task for _, task in self.parts() if task.output_names]
        widths = [len(task.output_names) for task in tasks]
        whole = [None] * len(tasks) if reference is None else reference.split(widths, dim=1)
        found = [
            task.scores(own, other if task.relative_scores else None)
            for task, own, other in zip(tasks, logits.split(widths, dim=1), whole, strict=True)
        ]
        return torch.cat(found, dim=1)
