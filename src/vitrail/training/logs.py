"""Progress of a run: a bar in a terminal, a line an epoch elsewhere, and every number in metrics.jsonl."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from vitrail.console import Console
from vitrail.errors import ConfigError, TrainingError
from vitrail.files import TEXT_LIMIT, read_bytes, write_atomically
from vitrail.report import show
from vitrail.strict_json import to_json
from vitrail.training.eta import LONG, StepTimer, duration
from vitrail.training.ledger import Ledger

_COUNT = "images"  # the metric that is the number of validation images, the same each time
_WIDE = 110  # characters of a terminal that has room for a bar beside the numbers
_SILENCE = 60  # seconds between lines on progress, where no bar shows it

Sink = Literal["tensorboard", "wandb"]


class Writer(Protocol):
    """A service that draws curves."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Takes in the numbers of an epoch."""
        ...

    def close(self) -> None:
        """Writes what is still held back."""
        ...


class Logs:
    """The words and numbers of one run; `silent` keeps only the numbers, and a process that is not `main` neither.

    A context: the bar is taken down, and files are closed, on the way out.
    """

    def __init__(
        self, folder: Path, *, sinks: Sequence[Sink] = (), images: int = 0, main: bool = True, silent: bool = False,
        console: Console | None = None, ledger: Ledger | None = None,
    ) -> None:  # fmt: skip
        self.file = folder / "metrics.jsonl"
        self.main, self.silent = main, silent or not main
        self.console = console or Console(stderr=True, quiet=self.silent)
        self.ledger = ledger or Ledger()
        self.images = images  # of a step
        self.compiled = False  # whether the first step compiles the model
        self.advise: Callable[[float], str] | None = None  # how to shorten a run, by the seconds of an epoch
        self.printed: Collection[str] | None = None  # the numbers that lines show; None for all
        self.writers: list[Writer] = [_WRITERS[sink](folder) for sink in sinks] if main else []
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._timer: StepTimer | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()
        for writer in self.writers:
            writer.close()

    def resume(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Makes metrics.jsonl agree with a checkpoint: later epochs are repeated, and a kill may have lost a line."""
        if self.main and (history or self.file.exists()):
            kept = "".join(map(_line, history)).encode()
            if not self._holds(kept):  # a run that is over is left as it is
                write_atomically(self.file, lambda new: new.write_bytes(kept))

    def _holds(self, text: bytes) -> bool:
        try:
            return read_bytes(self.file, TEXT_LIMIT) == text
        except OSError:  # it is missing, or no regular file
            return False

    def say(self, sentence: str) -> None:
        """One line for the person at the terminal."""
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[Callable[[int, int], None]]:
        """Shows how far images have been read, by what is called with how many and of how many."""
        self._heard = time.perf_counter()

        def show_images(done: int, total: int) -> None:
            if self._bar is None and not self._shows_bars and self._silent_for(_SILENCE):
                self.say(f"reading {name}: {done:,} of {total:,} images")
            elif self._bar is None and self._shows_bars:
                self._start(f"reading {name}", total, done, TimeRemainingColumn())
            if self._bar is not None:
                self._bar.update(self._task, completed=done, total=total)

        try:
            yield show_images
        finally:
            self._clear()

    def begin(self, epoch: int, epochs: int, steps: int, done: int, waited: float) -> None:
        """A new epoch, `done` of its steps being over already; `waited`: the seconds lost to data until now."""
        self._began = self._heard = time.perf_counter()
        self._epochs, self._epoch, self._steps, self._first, self._waited = epochs, epoch, steps, done, waited
        if self._timer is None:
            self._timer = StepTimer(left=(epochs - epoch) * steps - done, began=self._began, compiled=self.compiled)
        if self._shows_bars:
            text = TextColumn("{task.fields[text]}")
            self._start(f"epoch {epoch + 1}/{epochs}", steps, done, text, TimeRemainingColumn())

    def step(self, done: int, means: Mapping[str, float], waited: float) -> None:
        """The mean losses of the epoch so far, and the seconds that were lost to data in all."""
        seconds = time.perf_counter() - self._began
        speed = (done - self._first) * self.images / seconds
        waiting = (waited - self._waited) / seconds
        parts = self._numbers(means)
        text = ("  " if self._wide else " ").join([*parts, _speed(speed), f"waiting {show(waiting, 'share')}"])
        if self._bar is not None:
            self._bar.update(self._task, completed=done, text=text)
        elif self._silent_for(_SILENCE):
            self.say(f"epoch {self._epoch + 1}/{self._epochs}  step {done}/{self._steps}  {text}")
        if self._timer is not None:
            self._say_time(self._timer.step(done - self._first, time.perf_counter()))

    def end(self, entry: Mapping[str, Any], *, best: bool) -> None:
        """The numbers of an epoch that is over."""
        self._clear()
        if not self.main:
            return
        if self._timer is not None and entry["epoch"] < self._epochs:
            self._say_time(self._timer.epoch(self._steps - self._first, time.perf_counter()))
        try:
            with self.file.open("a") as file:
                file.write(_line(entry))
        except OSError as error:
            raise TrainingError(f"{self.file} could not be written: {error}. The checkpoints are intact") from error
        for writer in self.writers:
            writer.write(entry["step"], _flat(entry))
        checks = self._numbers({name: value for name, value in entry.get("val", {}).items() if name != _COUNT})
        parts = [f"epoch {entry['epoch']}/{self._epochs}", *self._numbers(entry["train"])]
        parts += ["val", *checks] if checks else []
        parts += [_speed(entry["images_per_second"]), f"waiting {show(entry['waiting'], 'share')}"]
        self.say("  ".join(parts) + ("  best" if best else ""))

    def _numbers(self, values: Mapping[str, float]) -> list[str]:
        """The numbers that a line shows."""
        return [f"{name} {value:.4f}" for name, value in values.items() if self.printed is None or name in self.printed]

    def _say_time(self, seconds: float | None) -> None:
        """How long the run will take, where a step takes so many seconds; and what to do if that is long."""
        if seconds is None or self._timer is None:
            return
        total, step = seconds * self._timer.left, f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
        self.say(f"this will take about {duration(total)}: {self._timer.left:,} steps of {step}")
        if total >= LONG and self.advise is not None:
            self.say(self.advise(seconds * self._steps))

    @property
    def _hint(self) -> str:
        """The text of a bar before there are numbers."""
        return "" if self._timer is None or self._timer.reported else "timing the first step"

    @property
    def _wide(self) -> bool:
        return self.console.width >= _WIDE

    @property
    def _shows_bars(self) -> bool:
        return self.console.is_terminal and not self.silent

    def _silent_for(self, seconds: float) -> bool:
        """Whether nothing was said for so long; if so, something is about to be."""
        now = time.perf_counter()
        if now - self._heard < seconds:
            return False
        self._heard = now
        return True

    def _start(self, title: str, total: int, done: int, *columns: ProgressColumn) -> None:
        drawn = [BarColumn(24)] if self._wide else []  # numbers go first where there is little room
        usual = (SpinnerColumn(), TextColumn("{task.description}"), *drawn, MofNCompleteColumn())
        self._bar = Progress(*usual, *columns, console=self.console, transient=True)
        self._task = self._bar.add_task(title, total=total, completed=done, text=self._hint)
        self._bar.start()

    def _clear(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _speed(images: float) -> str:
    return f"{images:,.0f} images/s" if images >= 10 else f"{images:.1f} images/s"


def _flat(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of an epoch by name, such as "val/accuracy"."""
    flat = {f"{part}/{name}": value for part in ("train", "val") for name, value in entry.get(part, {}).items()}
    return flat | {name: value for name, value in entry.items() if isinstance(value, int | float)}


def _line(entry: Mapping[str, Any]) -> str:
    return to_json(_flat(entry), ascii_only=True) + "\n"


class TensorBoard:
    """Curves under `folder`/tensorboard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError("TensorBoard is not installed: pip install tensorboard") from error
        self.writer = SummaryWriter(folder / "tensorboard")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Takes in the numbers of an epoch."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes what is still held back."""
        self.writer.close()


class WeightsAndBiases:
    """Curves at Weights & Biases, under the name of the folder."""

    def __init__(self, folder: Path) -> None:
        try:
            import wandb  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError("Weights & Biases is not installed: pip install wandb") from error
        self.run = wandb.init(project="vitrail", name=folder.name, id=folder.name, resume="allow", dir=folder)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Takes in the numbers of an epoch."""
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        """Writes what is still held back."""
        self.run.finish()


_WRITERS: dict[str, type[TensorBoard] | type[WeightsAndBiases]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
