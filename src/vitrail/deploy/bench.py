"""Which engine is fastest on this machine: latency and throughput side by side, measured in turns.

Processors differ in the backend, precision and number of threads that are fastest on them, so it is measured. An engine
whose answers differ from those of the base is shown but never chosen; a slow one is measured in fewer rounds.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from vitrail.config import Config, Count, Rate
from vitrail.deploy.artefact.engine import Array, Engine, in_batches, part_of
from vitrail.deploy.artefact.fingerprint import file_bytes
from vitrail.deploy.artefact.opening import Choice, write_choice
from vitrail.errors import ConfigError
from vitrail.report import Facts, Report, Table, Text, Unit, Value
from vitrail.timing import Spread, interleaved, machine, ratios


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Config):
    """Batches, rounds, and the share of images with the base's answer that an engine needs in order to be chosen.

    On a machine that others use as well, the processor's time of one thread is more reliable than wall time.
    """

    batches: tuple[Count, ...] = (1, 16)
    rounds: Count = 9
    agreement: Rate = 0.99
    clock: Literal["wall", "processor"] = "wall"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One engine at one batch size: milliseconds per batch, images per second, and speed relative to the base."""

    name: str
    batch: int
    milliseconds: Spread
    throughput: float
    speed: Spread
    rounds: int


@dataclass(frozen=True, kw_only=True, repr=False)
class Bench:
    """The measurements of engines by name, and the share of images on which each gives the base's answer."""

    rows: tuple[Timed, ...]
    base: str
    engines: Mapping[str, Engine]
    agreement: Mapping[str, float]
    images: int  # on which answers were compared
    needed: float

    def __repr__(self) -> str:
        return f"Bench({len(self.engines)} engines on {self.images} images; fastest: {self.ranked[0]})"

    @property
    def ranked(self) -> list[str]:
        """Those with the base's answers, the fastest over all batches first, by the geometric mean."""
        same = [name for name, share in self.agreement.items() if share >= self.needed]
        return sorted(same, key=lambda name: -self._speed(name))

    def _speed(self, name: str) -> float:
        return float(np.mean([np.log(row.speed.median) for row in self.rows if row.name == name]))

    def report(self) -> Report:
        """The measurements as a page."""
        times = f"times {self.base}"
        rows: list[dict[str, Value]] = [
            {
                "model": row.name, "batch": row.batch, "ms": f"{row.milliseconds.median:.1f}",
                "images/s": f"{row.throughput:.1f}", times: str(row.speed), "same answer": self.agreement[row.name],
            }
            for row in self.rows
        ]  # fmt: skip
        columns: dict[str, Unit] = dict.fromkeys(rows[0], "")
        columns["same answer"] = "share"
        measured: dict[str, Value] = {"machine": machine(), "images compared": self.images, "fastest": self.ranked[0]}
        backends: dict[str, Value] = {name: self._about(engine) for name, engine in self.engines.items()}
        return Report(
            "Speed on this machine",
            (
                Facts("Measured on", measured),
                Facts("Engines", backends),
                Table("Side by side", columns, rows),
                Text("How to read it", _LEGEND.format(self.base, 100 * self.needed)),
            ),
        )

    @staticmethod
    def _about(engine: Engine) -> str:
        size = file_bytes(engine.source)
        return engine.backend + (f"; {size / 1e6:.1f} MB" if size else "")


_FIRST, _SLOW = 2, 2.0  # rounds for all; who takes longer than so many times the fastest is measured in these alone
_CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
_LEGEND = (
    "All took turns, round by round; a ratio compares times of the same round: its median, and the range of the middle "
    "half. Engines that took more than twice the time of the fastest left after two rounds. Same answer is the share "
    "of images with the answer of {}; an engine below {:g} % is never the fastest."
)


def bench(engines: Mapping[str, Engine], pixels: Array, config: BenchConfig | None = None) -> Bench:
    """Measures engines on real images uint8 B H W C; the first engine is the base of the ratios."""
    config = config or BenchConfig()
    if not engines or not config.batches:
        raise ConfigError("nothing to measure: give artefacts, folders of them or runs, and one batch size or more")
    base, rows = next(iter(engines)), []
    for name, engine in engines.items():
        if _question(engine) != _question(engines[base]):
            raise ConfigError(f"{name} cannot be compared with {base}: they have different tasks or outputs")
    for batch in config.batches:
        images = np.concatenate([pixels] * -(-batch // len(pixels)))[:batch]
        runs = {name: partial(engine.run, images) for name, engine in engines.items()}
        taken = _in_turns(runs, base, config)
        for name, speed in ratios(taken, base).items():
            times = Spread.of([1000 * seconds for seconds in taken[name]])
            rate = 1000 * batch / times.median
            rounds = len(taken[name])
            rows.append(Timed(name=name, batch=batch, milliseconds=times, throughput=rate, speed=speed, rounds=rounds))
    agreement = _agreement(engines, base, pixels, max(config.batches))
    return Bench(
        rows=tuple(rows), base=base, engines=engines, agreement=agreement, images=len(pixels), needed=config.agreement
    )  # fmt: skip


def _in_turns(runs: Mapping[str, Callable[[], object]], base: str, config: BenchConfig) -> dict[str, list[float]]:
    """Seconds of each in each round; who is far from being the fastest leaves after the first rounds."""
    first, clock = min(_FIRST, config.rounds), _CLOCKS[config.clock]
    taken = interleaved(runs, rounds=first, clock=clock)
    limit = _SLOW * min(min(times) for times in taken.values())
    fast = {name: run for name, run in runs.items() if name == base or min(taken[name]) < limit}
    for name, times in interleaved(fast, rounds=config.rounds - first, warm=0, clock=clock).items():
        taken[name] += times
    return taken


def _question(engine: Engine) -> tuple[str, tuple[str, ...]]:
    return engine.task.config.stored().kind, engine.task.output_names


def _agreement(engines: Mapping[str, Engine], base: str, pixels: Array, batch: int) -> dict[str, float]:
    """The share of images with the base's answer; in full batches, as compiled code has their size.

    Engines that differ in the number of threads alone are run once.
    """
    images = np.concatenate([pixels, *[pixels[:1]] * (-len(pixels) % batch)])
    rows, task = slice(len(pixels)), engines[base].task
    expected = part_of(in_batches(engines[base], images, batch), rows)
    known = {(engines[base].source, engines[base].backend): 1.0}
    for engine in engines.values():
        if (engine.source, engine.backend) not in known:
            found = part_of(in_batches(engine, images, batch), rows)
            known[engine.source, engine.backend] = float(task.same(expected, found).mean())
    return {name: known[engine.source, engine.backend] for name, engine in engines.items()}


def remember(bench: Bench, folder: Path) -> Path | None:
    """Writes which artefact of a folder is the fastest, so that `open_engine(folder)` takes it; None: none of them."""
    engines = (bench.engines[name] for name in bench.ranked)
    best = next((engine for engine in engines if Path(engine.source).resolve().parent == folder.resolve()), None)
    if best is None:
        return None
    choice = Choice(Path(best.source), best.threads, best.half, best.dynamic)
    return write_choice(folder, choice, machine=machine())
