"""The result of many tasks for reports: the metrics and sections of each, and the worst images."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from vitrail.report import Group, Metric, Section
from vitrail.tasks.answer import Examples
from vitrail.tasks.gallery import example_gallery
from vitrail.tasks.many.many_meter import SCORE
from vitrail.tasks.many.many_names import joined
from vitrail.tasks.task import Task

_WORST = "The images with the largest errors of all tasks together, with the answers in layers."


def metrics(tasks: Mapping[str, Task]) -> dict[str, Metric]:
    """The mean score first, then what each task measures, its loss and the weight of that."""
    best = [f"{name} {task.about_metrics[task.best_metric].title}" for name, task in tasks.items()]
    found = {SCORE: Metric("mean score", "", f"mean of {', '.join(best)}")}
    for name, task in tasks.items():
        own = {key: _named(name, metric) for key, metric in task.about_metrics.items()}
        own["loss"] = Metric(f"{name} loss", "", higher=False, curve_only=True)
        own["weight"] = Metric(f"{name} weight", "", "of its loss, learned", curve_only=True)
        found |= joined({name: own})
    return found


def _named(task: str, metric: Metric) -> Metric:
    curve = f"{task} {metric.curve}" if metric.curve else ""
    return replace(metric, title=f"{task} {metric.title}", curve=curve, is_loss=False)


def sections(each: Mapping[str, Sequence[Section]], examples: Examples) -> tuple[Section, ...]:
    """The sections of each task under its name, and the worst images."""
    found: list[Section] = [
        Group(f"{name[:1].upper()}{name[1:]}", tuple(members)) for name, members in each.items() if members
    ]
    if examples.worst:
        found.append(example_gallery("Worst images", _WORST, examples.worst))
    return tuple(found)
