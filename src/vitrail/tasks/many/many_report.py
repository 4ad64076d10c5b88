"""The result of many tasks for reports: the metrics and sections of each, and the worst images."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vitrail.report import Group, Metric, Section
from vitrail.tasks.answer import Example, Examples
from vitrail.tasks.gallery import example_gallery
from vitrail.tasks.many.many_meter import SCORE
from vitrail.tasks.many.many_names import joined
from vitrail.tasks.task import Task

_WORST = "The images with the largest errors of all tasks together, with the answers in layers."


def metrics(tasks: Mapping[str, Task]) -> dict[str, Metric]:
    """The mean score first, then what each task measures, its loss and the weight of that."""
    chosen = {name: task.about_metrics[task.best_metric] for name, task in tasks.items()}
    best = [f"{'' if metric.higher else 'minus '}{name} {metric.title}" for name, metric in chosen.items()]
    found = {SCORE: Metric("mean score", "", f"mean of {', '.join(best)}")}
    for name, task in tasks.items():
        own = {key: named(name, metric) for key, metric in task.about_metrics.items()}
        own["loss"] = Metric(f"{name} loss", "", higher=False, curve_only=True)
        own["weight"] = Metric(f"{name} weight", "", "of its loss, learned", curve_only=True)
        found |= joined({name: own})
    return found


def named(task: str, metric: Metric) -> Metric:
    """A metric of one of the tasks, with the name of that before its own."""
    curve = f"{task} {metric.curve}" if metric.curve else ""
    return replace(metric, title=f"{task} {metric.title}", curve=curve, is_loss=False)


def examples_of(name: str, task: Task, examples: Examples) -> Examples:
    """The same images as examples of one task, without those that lack its targets.

    A task that is right or wrong gets none: which of these images it is wrong on is not known.
    """
    worst, first = (
        [one for example in some if (one := _example_of(name, task, example)) is not None]
        for some in (examples.worst, examples.first)
    )
    return Examples(worst, first, examples.preprocess)


def _example_of(name: str, task: Task, example: Example) -> Example | None:
    values = {field: example.targets[field] for field in task.schema if field in example.targets}
    known = [bool(task.schema[field].known(value[None])) for field, value in values.items()]
    answer = example.answer.parts()[name]
    if answer.decides or len(values) < len(task.schema) or not all(known):
        return None
    truth = "; ".join(task.schema[field].text(value) for field, value in values.items())
    return example._replace(answer=answer, truth=truth, targets=values)


def sections(each: Mapping[str, Sequence[Section]], examples: Examples) -> tuple[Section, ...]:
    """The sections of each task under its name, and the worst images."""
    found: list[Section] = [
        Group(f"{name[:1].upper()}{name[1:]}", tuple(members)) for name, members in each.items() if members
    ]
    if examples.worst:
        found.append(example_gallery("Worst images", _WORST, examples.worst))
    return tuple(found)
