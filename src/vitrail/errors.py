"""The errors and notices of vitrail, and hints for error messages.

VitrailError
├── ConfigError       an unknown name or key, or a value that is not allowed
├── InputError        images or tokens that a model cannot take
├── CheckpointError   a weight file that is damaged, incomplete or for another model
├── DataError         data that cannot be read or cannot be used for training
│   └── BrokenImage   one image that cannot be decoded
├── TrainingError     a run that cannot start, continue or be resumed
├── WriteError        a file that cannot be written, such as on a full disk
├── BusyError         a run or table that another process is writing; the message names the process
└── Unsupported       a combination of options that is not supported; the message says why

Notice                a warning about something that was done automatically
├── ResampledNotice   weights were resampled to another image size
├── ChosenNotice      one of several sets of weights in a file was used
└── HeadNotice        the head was replaced by a new one
"""

import difflib
from collections.abc import Iterable

_LONGEST = 6_000  # characters of an error


class VitrailError(Exception):
    """Base of all errors that vitrail raises for users; what a file says is cut in the middle where it is endless."""

    def __str__(self) -> str:
        text, half = super().__str__(), _LONGEST // 2
        return text if len(text) <= _LONGEST else f"{text[:half]} ... {text[-half:]}"


class ConfigError(VitrailError, ValueError):
    """An unknown name or key, or a value that is not allowed, in a config, recipe or command."""


class InputError(VitrailError, ValueError):
    """Images or tokens with a shape or type that the model cannot take."""


class CheckpointError(VitrailError):
    """A weight file that is damaged, incomplete or for another model."""


class DataError(VitrailError):
    """Data that cannot be read or cannot be used for training."""


class BrokenImage(DataError):
    """One image that cannot be decoded; the message names it and says why."""


class TrainingError(VitrailError):
    """A run that cannot start, continue or be resumed."""


class WriteError(VitrailError, OSError):
    """A file that cannot be written, such as on a full disk; the message names it and says why."""


class BusyError(VitrailError):
    """A run or table that another process is writing; the message names the process and its host."""


class Unsupported(VitrailError):
    """A combination of options that is not supported; the message says why."""


class Notice(UserWarning):
    """A warning about something that was done automatically."""


class ResampledNotice(Notice):
    """Weights that depend on the image size were resampled to another size."""


class ChosenNotice(Notice):
    """One of several sets of weights in a file was used."""


class HeadNotice(Notice):
    """The head was replaced by a new, untrained one."""


_FEW = 20  # up to this number, all options are listed


def nearest(name: str, options: Iterable[str], *, see: str = "") -> str:
    """A hint for the end of an error message: the nearest option, or all options if none is near.

    An option that starts with the name is preferred to one with a similar spelling. If there are many options and `see`
    says how to list them, only the closest are given.
    """
    known = sorted(given := list(options))
    if not known:
        return "there are none"
    longer = [option for option in given if len(name) > 2 and option.startswith(name)]
    if longer:
        return f"did you mean {longer[0]!r}?"
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean {close[0]!r}?"
    if not see or len(known) <= _FEW:
        return "known: " + ", ".join(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
    return f"the closest of {len(known)} are {', '.join(close)}; all are listed by {see}"


def reason(error: BaseException) -> str:
    """What an error says, in one line: the system's words, the first line of its text, or the name of its type."""
    lines = (line.strip() for line in str(error).splitlines())
    return getattr(error, "strerror", None) or next(filter(None, lines), type(error).__name__)


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most:,} more" if len(every) > most else "")
