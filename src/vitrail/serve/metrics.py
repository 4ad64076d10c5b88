"""Metrics in the format of Prometheus: one row of numbers per worker, in a file that all workers map into memory.

Any worker can answer for all of them. A worker that replaces a dead one continues its row, so counters never decrease.
prometheus_client is not used: its multiprocess mode leaves a file behind for every process that ever ran.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

ROUTES = ("/predict", "/explain", "/model", "/metrics", "/healthz", "/readyz", "/admin/reload", "page", "other")
STATUSES = (200, 202, 304, 400, 401, 403, 404, 405, 406, 408, 413, 415, 421, 422, 500, 501, 503)
REASONS = ("full", "slow", "memory", "decoders", "timeout")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)

Row = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Metric:
    """A metric: its name, help text, the values of its labels, and the bounds of its buckets."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    labels: Mapping[str, tuple[str, ...]]
    bounds: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """One number for each combination of labels; a histogram has its buckets, +Inf and the sum."""
        buckets = (len(self.bounds) + 2,) if self.kind == "histogram" else ()
        return (*(len(values) for values in self.labels.values()), *buckets)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return int(np.prod(self.shape, dtype=int))


_STATUS = {"route": ROUTES, "status": tuple(map(str, STATUSES))}
METRICS = (
    Metric("requests_total", "counter", "Requests answered.", _STATUS),
    Metric(
        "request_seconds", "histogram", "Time from the head of a request to its response.", {"route": ROUTES}, SECONDS
    ),
    Metric("images_total", "counter", "Images computed.", {}),
    Metric("broken_images_total", "counter", "Images that could not be decoded.", {}),
    Metric("received_bytes_total", "counter", "Bytes of request bodies.", {}),
    Metric("fetched_bytes_total", "counter", "Bytes of images fetched from URLs.", {}),
    Metric("refused_total", "counter", "Requests refused with 503.", {"reason": REASONS}),
    Metric("malformed_total", "counter", "Requests refused with 400 because they are not valid HTTP.", {}),
    Metric("abandoned_total", "counter", "Requests whose clients disconnected before the response.", {}),
    Metric("batch_size", "histogram", "Images computed together.", {}, SIZES),
    Metric("queue_seconds", "histogram", "Time in the queue.", {}, SECONDS),
    Metric("compute_seconds", "histogram", "Time of a batch in the engine.", {}, SECONDS),
    Metric("waiting_images", "gauge", "Images that are being decoded, queued or computed.", {}),
    Metric("reloads_total", "counter", "Times the model was reloaded.", {"outcome": ("done", "failed")}),
    Metric("dropped_log_lines_total", "counter", "Log lines that could not be written.", {}),
    Metric("worker_starts_total", "counter", "Worker processes started.", {}),
    Metric("resident_memory_bytes", "gauge", "Memory of the workers.", {}),
)
_OFFSETS = dict(zip((m.name for m in METRICS), np.cumsum([0, *(m.size for m in METRICS)]).tolist(), strict=False))
WIDTH = sum(metric.size for metric in METRICS)


class Metrics:
    """The metrics of one worker, and the sums over all workers."""

    def __init__(self, rows: Row, row: int) -> None:
        self.rows = rows  # workers x WIDTH
        self._views = {
            metric.name: rows[row, _OFFSETS[metric.name] : _OFFSETS[metric.name] + metric.size].reshape(metric.shape)
            for metric in METRICS
        }
        self._metrics = {metric.name: metric for metric in METRICS}

    @classmethod
    def create(cls, file: Path, workers: int) -> None:
        """Writes a file of zeros."""
        np.zeros((workers, WIDTH), dtype=np.float64).tofile(file)

    @classmethod
    def open(cls, file: Path, row: int) -> "Metrics":
        """The metrics of one worker, in the file of all."""
        rows: Row = np.memmap(file, dtype=np.float64, mode="r+").reshape(-1, WIDTH)
        return cls(rows, row)

    def add(self, name: str, *labels: str, amount: float = 1.0) -> None:
        """Adds to a counter."""
        self._views[name][self._at(name, labels)] += amount

    def set(self, name: str, value: float) -> None:
        """Sets a gauge."""
        self._views[name][()] = value

    def observe(self, name: str, value: float, *labels: str) -> None:
        """Adds to a histogram."""
        series = self._views[name][self._at(name, labels)]
        series[int(np.searchsorted(self._metrics[name].bounds, value))] += 1
        series[-1] += value

    def total(self, name: str, *labels: str) -> float:
        """The sum of a counter or gauge over all workers."""
        metric, start = self._metrics[name], _OFFSETS[name]
        summed = self.rows.sum(axis=0)[start : start + metric.size].reshape(metric.shape)
        return float(summed[self._at(name, labels)])

    def text(self) -> str:
        """All metrics in Prometheus' text format, summed over the workers."""
        sums = self.rows.sum(axis=0)
        lines: list[str] = []
        for metric in METRICS:
            name, start = f"vitrail_{metric.name}", _OFFSETS[metric.name]
            lines += [f"# HELP {name} {metric.text}", f"# TYPE {name} {metric.kind}"]
            lines += _lines(metric, name, sums[start : start + metric.size].reshape(metric.shape))
        return "\n".join(lines) + "\n"

    def _at(self, name: str, labels: tuple[str, ...]) -> tuple[int, ...]:
        known = self._metrics[name].labels.values()
        return tuple(values.index(label) for values, label in zip(known, labels, strict=True))


def _lines(metric: Metric, name: str, values: Row) -> Iterator[str]:
    many = metric.labels and metric.kind != "gauge"
    for index in np.ndindex(*(len(labels) for labels in metric.labels.values())):
        pairs = [f'{key}="{known[at]}"' for (key, known), at in zip(metric.labels.items(), index, strict=True)]
        series = values[index]
        if many and not np.any(series):
            continue  # combinations that never happened
        if metric.kind != "histogram":
            yield f"{name}{_labels(pairs)} {float(series):.15g}"
            continue
        counts = np.cumsum(series[:-1])
        for bound, count in zip((*metric.bounds, "+Inf"), counts, strict=True):
            bucket = _labels([*pairs, f'le="{bound}"'])
            yield f"{name}_bucket{bucket} {count:.0f}"
        yield f"{name}_sum{_labels(pairs)} {series[-1]:.6f}"
        yield f"{name}_count{_labels(pairs)} {counts[-1]:.0f}"


def _labels(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""
