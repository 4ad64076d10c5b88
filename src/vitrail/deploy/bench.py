"""Which artefact is fastest here: latency and throughput of all of them side by side, measured in turns.

The choice is made by measuring: backends, precisions and numbers of threads that a processor favours differ. What
answers otherwise than the base does is shown but never chosen; what is slow is shown, and measured less often.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from vitrail.config import Config, Count, Rate
from vitrail.deploy.card import Opened
from vitrail.deploy.certificate import differences, file_bytes, in_batches
from vitrail.deploy.engine import CHOICE, Array, CompiledEngine, Engine, open_engine
from vitrail.deploy.timing import Spread, interleaved, machine, ratios
from vitrail.errors import ConfigError
from vitrail.hardware import bf16_works
from vitrail.report import Facts, Report, Table, Text, Unit, Value


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Config):
    """Batches, rounds, and the top-1 agreement with the base that a contender needs in order to be chosen.

    Where others share the machine, the processor's time, best of one thread, tells more than the clock on the wall.
    """

    batches: tuple[Count, ...] = (1, 16)
    rounds: Count = 9
    agreement: Rate = 0.99
    clock: Literal["wall", "processor"] = "wall"


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One contender at one batch: milliseconds a batch, images a second, and how many times as fast as the base."""

    name: str
    batch: int
    milliseconds: Spread
    throughput: float
    speed: Spread
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Bench:
    """All that was measured, of engines by their names, with the shares of images on which they agree with the base."""

    rows: tuple[Timed, ...]
    base: str
    engines: Mapping[str, Engine]
    agreement: Mapping[str, float]
    images: int  # on which they were compared
    needed: float

    @property
    def ranked(self) -> list[str]:
        """Those that agree with the base, the fastest over all batches first, by the geometric mean."""
        true = [name for name, share in self.agreement.items() if share >= self.needed]
        return sorted(true, key=lambda name: -self._speed(name))

    def _speed(self, name: str) -> float:
        return float(np.mean([np.log(row.speed.median) for row in self.rows if row.name == name]))

    def report(self) -> Report:
        """The measurements as a page."""
        times = f"times {self.base}"
        rows: list[dict[str, Value]] = [
            {
                "model": row.name, "batch": row.batch, "ms": f"{row.milliseconds.median:.1f}",
                "images/s": f"{row.throughput:.1f}", times: str(row.speed), "agreement": self.agreement[row.name],
            }
            for row in self.rows
        ]  # fmt: skip
        columns: dict[str, Unit] = dict.fromkeys(rows[0], "")
        columns["agreement"] = "share"
        measured: dict[str, Value] = {"machine": machine(), "images compared": self.images, "fastest": self.ranked[0]}
        contenders: dict[str, Value] = {name: self._about(engine) for name, engine in self.engines.items()}
        return Report(
            "Speed on this machine",
            (
                Facts("Measured on", measured),
                Facts("Contenders", contenders),
                Table("Side by side", columns, rows),
                Text("How to read it", _LEGEND.format(self.base, 100 * self.needed)),
            ),
        )

    @staticmethod
    def _about(engine: Engine) -> str:
        size = file_bytes(engine.source)
        return engine.backend + (f"; {size / 1e6:.1f} MB" if size else "")


_FIRST, _SLOW = 2, 2.0  # rounds that all take part in; times the fastest's time, from which on it is enough of them
_CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
_LEGEND = (
    "All took turns, round by round; a ratio compares times of the same round: its median, and the range of the middle "
    "half. Who took more than twice the time of the fastest left after two rounds. Agreement is the share of real "
    "images with the same likeliest class as {}; what has less than {:g} % is never the fastest."
)


def bench(engines: Mapping[str, Engine], pixels: Array, config: BenchConfig | None = None) -> Bench:
    """Measures engines on real images uint8 B H W C; the first engine is the base of the ratios."""
    config = config or BenchConfig()
    if not engines or not config.batches:
        raise ConfigError("there is nothing to measure; name artefacts, folders of them, or runs, and a batch or more")
    base, rows = next(iter(engines)), []
    for name, engine in engines.items():
        if engine.labels != engines[base].labels:
            raise ConfigError(f"{name} cannot be compared with {base}: their classes are not the same")
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


def _agreement(engines: Mapping[str, Engine], base: str, pixels: Array, batch: int) -> dict[str, float]:
    """The share of images on which each says what the base says; whole batches, as compiled code has their size.

    What differs in the number of threads alone is asked once.
    """
    images = np.concatenate([pixels, *[pixels[:1]] * (-len(pixels) % batch)])
    expected = in_batches(engines[base], images, batch)[: len(pixels)]
    known = {(engines[base].source, engines[base].backend): 1.0}
    for engine in engines.values():
        if (engine.source, engine.backend) not in known:
            answers = in_batches(engine, images, batch)[: len(pixels)]
            known[engine.source, engine.backend] = differences(expected, answers)[2]
    return {name: known[engine.source, engine.backend] for name, engine in engines.items()}


def open_artefacts(paths: Sequence[Path], threads: Sequence[int] = ()) -> dict[str, Engine]:
    """An engine for each artefact and each number of threads: those asked for, or all cores and half of them.

    Of OpenVINO's there is a second one, which computes in bf16 what is not int8; of a float32 .onnx one in int8 that
    needs no calibration.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if wrong := [count for count in threads if not 1 <= count <= cores]:
        raise ConfigError(f"{wrong[0]} threads were asked for; this machine gives 1 to {cores}, one a core")
    tried = tuple(threads) or tuple(dict.fromkeys((cores, max(1, cores // 2))))
    torch.set_num_threads(max(tried))
    engines: dict[str, Engine] = {}
    for path in paths:
        if path.suffix == ".pt2":  # torch has one number of threads for the whole process
            engines[path.name] = open_engine(path)
            continue
        for count in tried:
            name = path.name if len(tried) == 1 else f"{path.name}, {count} thread{'s' if count > 1 else ''}"
            engines[name] = open_engine(path, threads=count)
            if path.suffix == ".xml":
                engines[f"{name}, bf16"] = open_engine(path, threads=count, half=True)
            if path.suffix == ".onnx" and engines[name].card.precision == "float32":
                engines[f"{name}, dynamic int8"] = open_engine(path, threads=count, dynamic=True)
    return engines


def open_compiled(name: str, opened: Opened) -> dict[str, Engine]:
    """A run compiled for this processor, in float32 and, where it can, in bf16."""
    engines: dict[str, Engine] = {f"{name}, compiled": CompiledEngine(name, opened)}
    if bf16_works():
        engines[f"{name}, compiled bf16"] = CompiledEngine(name, opened, half=True)
    return engines


def base_of(engines: Mapping[str, Engine]) -> str:
    """Who the others are compared with: of the last that is in float32, the one with most threads; else the last."""
    true = [name for name, one in engines.items() if one.card.precision == "float32" and not (one.half or one.dynamic)]
    same = [name for name in true if engines[name].source == engines[true[-1]].source] or [*engines]
    return max(reversed(same), key=lambda name: engines[name].threads or 0)


def remember(bench: Bench, folder: Path) -> Path | None:
    """Writes which artefact of a folder is fastest, so that `open_engine(folder)` takes it; None where it is none."""
    engines = (bench.engines[name] for name in bench.ranked)
    best = next((engine for engine in engines if Path(engine.source).resolve().parent == folder.resolve()), None)
    if best is None:
        return None
    choice = {"artefact": Path(best.source).name, "threads": best.threads, "half": best.half, "dynamic": best.dynamic}
    choice["machine"] = machine()
    (folder / CHOICE).write_text(json.dumps(choice, indent=2) + "\n", encoding="utf-8")
    return folder / CHOICE
