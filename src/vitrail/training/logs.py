"""What a run says while it goes: a bar in a terminal, a line an epoch elsewhere, and every number in metrics.jsonl."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitrail.errors import ConfigError, TrainingError
from vitrail.models.checkpoint.files import write_atomically
from vitrail.report import show

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
        console: Console | None = None,
    ) -> None:  # fmt: skip
        self.file = folder / "metrics.jsonl"
        self.main, self.silent = main, silent or not main
        self.console = console or Console(stderr=True, quiet=self.silent)
        self.images = images  # of a step
        self.writers: list[Writer] = [_WRITERS[sink](folder) for sink in sinks] if main else []
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()
        for writer in self.writers:
            writer.close()

    def resume(self, step: int) -> None:
        """Forgets what was logged after a step: the run is about to live through it again."""
        if self.main and self.file.is_file():
            lines = [line for line in self.file.read_text().splitlines() if _step(line) <= step]
            write_atomically(self.file, lambda new: new.write_text("".join(f"{line}\n" for line in lines)))

    def say(self, sentence: str) -> None:
        """One line for the person at the terminal."""
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)

    def begin(self, epoch: int, epochs: int, steps: int, done: int, waited: float) -> None:
        """A new epoch, `done` of its steps being over already; `waited`: the seconds lost to data until now."""
        self._epochs, self._began, self._first, self._waited = epochs, time.perf_counter(), done, waited
        if self.silent or not self.console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self._bar = Progress(*columns, TimeRemainingColumn(), console=self.console, transient=True)
        self._task = self._bar.add_task(f"epoch {epoch + 1}/{epochs}", total=steps, completed=done, text="")
        self._bar.start()

    def step(self, done: int, means: Mapping[str, float], waited: float) -> None:
        """The mean losses of the epoch so far, and the seconds that were lost to data in all."""
        if self._bar is None:
            return
        seconds = time.perf_counter() - self._began
        speed = (done - self._first) * self.images / seconds
        waiting = (waited - self._waited) / seconds
        parts = [_shown(name, value) for name, value in means.items()]
        parts += [f"{speed:,.0f} images/s", f"waiting {show(waiting, 'share')}"]
        self._bar.update(self._task, completed=done, text="  ".join(parts))

    def end(self, entry: Mapping[str, Any], *, best: bool) -> None:
        """The numbers of an epoch that is over."""
        self._clear()
        if not self.main:
            return
        flat = {f"{part}/{name}": value for part in ("train", "val") for name, value in entry.get(part, {}).items()}
        flat |= {name: value for name, value in entry.items() if isinstance(value, int | float)}
        try:
            with self.file.open("a") as file:
                file.write(json.dumps(flat) + "\n")
        except OSError as error:
            raise TrainingError(f"{self.file} could not be written, the checkpoints are whole: {error}") from error
        for writer in self.writers:
            writer.write(entry["step"], flat)
        losses = [_shown(name, value) for name, value in entry["train"].items()]
        checks = [_shown(name, value) for name, value in entry.get("val", {}).items()]
        parts = [f"epoch {entry['epoch']}/{self._epochs}", *losses]
        parts += ["val", *checks] if checks else []
        parts += [f"{entry['images_per_second']:,.0f} images/s", f"waiting {show(entry['waiting'], 'share')}"]
        self.say("  ".join(parts) + ("  best" if best else ""))

    def _clear(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _shown(name: str, value: float) -> str:
    return f"{name} {value:.4f}"


def _step(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line that a kill cut short
        return 2**63


class TensorBoard:
    """Curves under `folder`/tensorboard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError("TensorBoard is not installed: pip install 'vitrail[tensorboard]'") from error
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
            raise ConfigError("Weights & Biases is not installed: pip install 'vitrail[wandb]'") from error
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
