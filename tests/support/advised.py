"""Facts, rows and settings for advice, small enough to be judged by hand."""

from types import SimpleNamespace
from typing import Any

from vitrail.advice.facts import DataFacts
from vitrail.advice.rows import Row

SETTINGS = {
    "probe": SimpleNamespace(start="packaged-photos", changes={"probe": "linear"}, about="a linear head"),
    "tune": SimpleNamespace(start="packaged", changes={"epochs": 8, "task.safe": ["flip"]}, about="fine-tuning"),
}


def facts(**changes: Any) -> DataFacts:
    """A thousand colour pictures of 128 pixels, in four classes."""
    known = {"source": "photos", "task": "classify", "targets": "4 classes", "images": 1000, "classes": 4}
    return DataFacts(**{**known, "pixels": 128, "grey": False, **changes})


def result(of: str, name: str, validation: float, *, test: float | None = None, **changes: Any) -> Row:
    """The result of a training on a set like those facts."""
    values = {
        "set": name, "task": "classify", "images": 1000, "classes": 4, "pixels": 128, "grey": False,
        "metric": "accuracy", "validation": validation, "test": validation if test is None else test,
        "seconds": 50.0, "device": "cpu", "cores": 2, **changes,
    }  # fmt: skip
    return Row(kind="result", of=of, values=values, hardware="a core", versions="torch", command=f"run {of}")


def speed(of: str, ms: float, *, kind: str = "speed") -> Row:
    """The time of an answer of a network."""
    values = {"ms": ms, "low": ms, "high": ms, "device": "cpu", "machine": "epyc"}
    return Row(kind=kind, of=of, values=values, hardware="a core", versions="torch", command="measure")


def tuning(name: str, others: int, *, minutes: int = 8) -> Row:
    """A search that kept its default."""
    values = {
        "set": name, "task": "classify", "minutes": minutes, "others": others, "metric": "accuracy", "default": 0.9,
        "best_other": 0.8 if others else None, "kept": "the default", "test": 0.85, "device": "cpu",
    }  # fmt: skip
    return Row(kind="tuning", of="train --minutes", values=values, hardware="a core", versions="x", command="search")


def engine(of: str, times: float, *, same: float = 1.0) -> Row:
    """How many times as fast an engine is."""
    values = {"engine": "int8", "target": "onnx", "int8": True, "times": times, "low": times, "high": times}
    return Row(kind="engine", of=of, values={**values, "same": same}, hardware="a core", versions="x", command="bench")
