"""Every error and notice that vitrail raises, and how it names the nearest match.

VitrailError
├── ConfigError       a name, key or value that does not exist or does not fit
├── InputError        images or tokens that a model cannot take
├── CheckpointError   a weight file that is damaged, incomplete or of another model
├── DataError         data that cannot be read, or that no model could learn from
│   └── BrokenImage   one image that cannot be decoded
├── TrainingError     a run that cannot start, go on or be resumed
└── Unsupported       a combination that makes no sense; the message says why

Notice                a warning: something was done that a person should know
├── ResampledNotice   weights were resampled to another image size
├── ChosenNotice      of several sets of weights in a file, one was taken
└── HeadNotice        the head was replaced by a fresh one
"""

import difflib
from collections.abc import Iterable


class VitrailError(Exception):
    """Base of all errors that vitrail raises on purpose."""


class ConfigError(VitrailError, ValueError):
    """A name, key or value in a config, recipe or command that does not exist or does not fit."""


class InputError(VitrailError, ValueError):
    """Images or tokens of a shape or type that the model cannot take."""


class CheckpointError(VitrailError):
    """A weight file that is damaged, incomplete, or made for another model."""


class DataError(VitrailError):
    """Data that cannot be read, or that no model could learn from."""


class BrokenImage(DataError):
    """One image that cannot be decoded; the message names it and says why."""


class TrainingError(VitrailError):
    """A run that cannot start, go on or be resumed."""


class Unsupported(VitrailError):
    """A combination that makes no sense; the message says why."""


class Notice(UserWarning):
    """Something that was done and that a person should know."""


class ResampledNotice(Notice):
    """Says that weights tied to an image size were resampled to another one."""


class ChosenNotice(Notice):
    """Says which of several sets of weights in a file was taken."""


class HeadNotice(Notice):
    """Says that a head was replaced by a fresh, untrained one."""


def nearest(name: str, options: Iterable[str]) -> str:
    """A hint that ends an error message: the nearest of the options, or all of them where none is near."""
    known = sorted(options)
    if close := difflib.get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean {close[0]!r}?"
    shown = known if len(known) <= 20 else [*known[:20], "..."]
    return "known: " + ", ".join(shown)


def listed(names: Iterable[str], most: int = 3) -> str:
    """The first few, and how many more."""
    every = list(names)
    return ", ".join(every[:most]) + (f" and {len(every) - most:,} more" if len(every) > most else "")
