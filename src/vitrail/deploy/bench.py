"""Which artefact is fastest here: latency and throughput of all of them side by side, measured in turns.

The choice is made by measuring: backends, precisions and numbers of threads that a processor favours differ.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.config import Config, Count
from vitrail.deploy.certificate import file_bytes
from vitrail.deploy.engine import ARTEFACTS, CHOICE, Array, Engine, open_engine
from vitrail.deploy.timing import Spread, interleaved, machine, ratios
from vitrail.errors import ConfigError
from vitrail.report import Facts, Report, Table, Text


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Config):
    """Batches, rounds, and the numbers of threads that are tried (all cores where none are given)."""

    batches: tuple[Count, ...] = (1, 16)
    rounds: Count = 9
    threads: tuple[Count, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One contender at one batch: milliseconds a batch, images a second, and how many times as fast as the base."""

    name: str
    backend: str
    batch: int
    milliseconds: Spread
    throughput: float
    speed: Spread


@dataclass(frozen=True, kw_only=True)
class Bench:
    """All that was measured; `best` is the name that is fastest over all batches, by the geometric mean."""

    rows: tuple[Timed, ...]
    base: str
    sizes: Mapping[str, int]

    @property
    def best(self) -> str:
        """The contender with the largest geometric mean of speeds."""
        names = list(dict.fromkeys(row.name for row in self.rows))
        return max(names, key=lambda name: np.mean([np.log(row.speed.median) for row in self.rows if row.name == name]))

    def report(self) -> Report:
        """The measurements as a page."""
        columns = {"model": "", "runs in": "", "batch": "", "ms": "", "images/s": "", f"times {self.base}": "",
                   "middle half": "", "size": "bytes"}  # fmt: skip
        rows: list[dict[str, Any]] = [
            {
                "model": row.name, "runs in": row.backend, "batch": row.batch, "ms": f"{row.milliseconds.median:.1f}",
                "images/s": f"{row.throughput:.1f}", f"times {self.base}": f"{row.speed.median:.2f}",
                "middle half": f"{row.speed.low:.2f} to {row.speed.high:.2f}", "size": self.sizes.get(row.name),
            }
            for row in self.rows
        ]  # fmt: skip
        return Report(
            "Speed on this machine",
            (
                Facts("Measured on", {"machine": machine(), "fastest": self.best}),
                Table("Side by side", columns, rows),  # type: ignore[arg-type]
                Text("How to read it", "All took turns, round by round; a ratio compares times of the same round."),
            ),
        )


def bench(engines: Mapping[str, Engine], pixels: Array, config: BenchConfig | None = None) -> Bench:
    """Measures engines on images uint8 B H W C; the first engine is the base of the ratios."""
    config = config or BenchConfig()
    if not engines:
        raise ConfigError("there is nothing to measure; name artefacts, folders of them, or runs")
    base, rows = next(iter(engines)), []
    for batch in config.batches:
        images = np.concatenate([pixels] * -(-batch // len(pixels)))[:batch]
        runs = {name: partial(engine.run, images) for name, engine in engines.items()}
        taken = interleaved(runs, rounds=config.rounds)
        for name, speed in ratios(taken, base).items():
            times = Spread.of([1000 * seconds for seconds in taken[name]])
            rate = 1000 * batch / times.median
            backend = engines[name].backend
            rows.append(
                Timed(name=name, backend=backend, batch=batch, milliseconds=times, throughput=rate, speed=speed)
            )
    return Bench(rows=tuple(rows), base=base, sizes={name: file_bytes(e.source) for name, e in engines.items()})


def artefacts_in(folder: Path) -> list[Path]:
    """The artefacts of a folder, in alphabetical order."""
    return sorted(path for path in folder.iterdir() if path.suffix in ARTEFACTS)


def open_artefacts(paths: Sequence[Path], threads: Sequence[int] = ()) -> dict[str, Engine]:
    """An engine for each artefact, and for each number of threads where several are asked for."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    tried = tuple(threads) or (cores,)
    if threads and (wrong := [count for count in threads if count > cores]):
        raise ConfigError(f"{wrong[0]} threads were asked for; this machine gives {cores} cores")
    torch.set_num_threads(max(tried))
    engines: dict[str, Engine] = {}
    for path in paths:
        if path.suffix == ".pt2":  # torch has one number of threads for the whole process
            engines[path.name] = open_engine(path)
            continue
        for count in tried:
            name = path.name if len(tried) == 1 else f"{path.name}, {count} threads"
            engines[name] = open_engine(path, threads=count)
    return engines


def remember(bench: Bench, folder: Path) -> Path | None:
    """Writes which artefact of a folder is fastest, so that `open_engine(folder)` takes it; None where it is none."""
    ranked = [row.name for row in sorted(bench.rows, key=lambda row: -row.speed.median)]
    best = next((name for name in [bench.best, *ranked] if (folder / name.partition(",")[0]).is_file()), None)
    if best is None:
        return None
    artefact, _, rest = best.partition(", ")
    choice = {"artefact": artefact, "threads": int(rest.split()[0]) if rest else None, "machine": machine()}
    (folder / CHOICE).write_text(json.dumps(choice, indent=2) + "\n", encoding="utf-8")
    return folder / CHOICE
