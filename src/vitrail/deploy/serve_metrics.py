"""What a service counts, as Prometheus reads it: one row of numbers a worker, in a file that all of them map.

Whichever worker is asked answers for all. A worker that takes the place of a dead one goes on with its row, so that no
counter ever falls.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

ROUTES = ("/predict", "/explain", "/model", "/metrics", "/healthz", "/readyz", "/admin/reload", "page", "other")
STATUSES = (200, 202, 304, 400, 401, 403, 404, 405, 406, 408, 413, 415, 422, 500, 501, 503)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

Row = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Metric:
    """A name and what it tells, with the values of its one or two labels, or the bounds of its buckets."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: Mapping[str, tuple[str, ...]]
    bounds: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """How many numbers: one for each combination of labels; a histogram has its buckets, +Inf and the sum."""
        buckets = (len(self.bounds) + 2,) if self.kind == "histogram" else ()
        return (*(len(values) for values in self.labels.values()), *buckets)

    @property
    def size(self) -> int:
        """The same, in all."""
        return int(np.prod(self.shape, dtype=int))


_STATUS = {"route": ROUTES, "status": tuple(map(str, STATUSES))}
METRICS = (
    Metric("requests_total", "counter", "Requests answered.", _STATUS),
    Metric("request_seconds", "histogram", "From a request's head to its answer.", {"route": ROUTES}, SECONDS),
    Metric("images_total", "counter", "Pictures computed.", {}),
    Metric("broken_images_total", "counter", "Pictures that could not be decoded.", {}),
    Metric("received_bytes_total", "counter", "Bytes of request bodies.", {}),
    Metric("fetched_bytes_total", "counter", "Bytes of pictures fetched by address.", {}),
    Metric("refused_total", "counter", "Requests sent away with 503.", {"why": ("full", "slow", "memory", "late")}),
    Metric("abandoned_total", "counter", "Requests whose clients left before they were answered.", {}),
    Metric("batch_size", "histogram", "Pictures computed together.", {}, SIZES),
    Metric("queue_seconds", "histogram", "From decoded to computed, less the computing.", {}, SECONDS),
    Metric("compute_seconds", "histogram", "Time of a batch in the engine.", {}, SECONDS),
    Metric("waiting_images", "gauge", "Pictures that are read, decoded, queued or computed now.", {}),
    Metric("reloads_total", "counter", "Times the model was opened again.", {"outcome": ("done", "failed")}),
    Metric("worker_starts_total", "counter", "Processes started.", {}),
    Metric("resident_memory_bytes", "gauge", "Memory of the workers.", {}),
)
_PLACES = dict(zip((m.name for m in METRICS), np.cumsum([0, *(m.size for m in METRICS)]).tolist(), strict=False))
WIDTH = sum(metric.size for metric in METRICS)


class Metrics:
    """The numbers of one worker, and the sums of all."""

    def __init__(self, rows: Row, row: int) -> None:
        self.rows = rows  # workers x WIDTH
        self._views = {
            metric.name: rows[row, _PLACES[metric.name] : _PLACES[metric.name] + metric.size].reshape(metric.shape)
            for metric in METRICS
        }
        self._metrics = {metric.name: metric for metric in METRICS}

    @classmethod
    def create(cls, file: Path, workers: int) -> None:
        """Writes a file of zeros for so many workers."""
        np.zeros((workers, WIDTH), dtype=np.float64).tofile(file)

    @classmethod
    def open(cls, file: Path, row: int) -> "Metrics":
        """The numbers of one worker in the file of all."""
        rows: Row = np.memmap(file, dtype=np.float64, mode="r+").reshape(-1, WIDTH)
        return cls(rows, row)

    @classmethod
    def alone(cls) -> "Metrics":
        """Numbers in memory, for an app that stands by itself."""
        return cls(np.zeros((1, WIDTH)), 0)

    def add(self, name: str, *labels: str, amount: float = 1.0) -> None:
        """Adds to a counter."""
        self._views[name][self._at(name, labels)] += amount

    def put(self, name: str, value: float) -> None:
        """Sets a gauge."""
        self._views[name][()] = value

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Adds to a histogram."""
        series = self._views[name][self._at(name, labels)]
        series[int(np.searchsorted(self._metrics[name].bounds, value))] += 1
        series[-1] += value

    def total(self, name: str, *labels: str) -> float:
        """The sum of a counter or gauge over all workers."""
        metric, start = self._metrics[name], _PLACES[name]
        summed = self.rows.sum(axis=0)[start : start + metric.size].reshape(metric.shape)
        return float(summed[self._at(name, labels)])

    def text(self) -> str:
        """All metrics in Prometheus' text format, summed over the workers."""
        sums = self.rows.sum(axis=0)
        lines: list[str] = []
        for metric in METRICS:
            name, start = f"vitrail_{metric.name}", _PLACES[metric.name]
            lines += [f"# HELP {name} {metric.text}", f"# TYPE {name} {metric.kind}"]
            lines += _series(metric, name, sums[start : start + metric.size].reshape(metric.shape))
        return "\n".join(lines) + "\n"

    def _at(self, name: str, labels: tuple[str, ...]) -> tuple[int, ...]:
        known = self._metrics[name].labels.values()
        return tuple(values.index(label) for values, label in zip(known, labels, strict=True))


def _series(metric: Metric, name: str, values: Row) -> Iterator[str]:
    many = metric.labels and metric.kind != "gauge"
    for place in np.ndindex(*(len(labels) for labels in metric.labels.values())):
        pairs = [f'{key}="{known[at]}"' for (key, known), at in zip(metric.labels.items(), place, strict=True)]
        series = values[place]
        if many and not np.any(series):
            continue  # combinations that never happened
        if metric.kind != "histogram":
            yield (
                f"{name}{_braced(pairs)} {float(series):g}" if series < 1e6 else f"{name}{_braced(pairs)} {series:.0f}"
            )
            continue
        counts = np.cumsum(series[:-1])
        for bound, count in zip((*metric.bounds, "+Inf"), counts, strict=True):
            inside = _braced([*pairs, f'le="{bound}"'])
            yield f"{name}_bucket{inside} {count:.0f}"
        yield f"{name}_sum{_braced(pairs)} {series[-1]:.6f}"
        yield f"{name}_count{_braced(pairs)} {counts[-1]:.0f}"


def _braced(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""
