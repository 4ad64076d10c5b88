"""What verbs share: how options are read, and how a long operation and a notice look."""

import argparse
import codecs
import contextlib
import io
import itertools
import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vitrail.errors import ConfigError, Notice, nearest
from vitrail.strict_json import to_json

if TYPE_CHECKING:
    from vitrail.report import Report


DEVICES = "cpu, cuda, cuda:1, mps (default: a GPU where there is one)"
_NUMBERS = {int: "a whole number", float: "a number"}


class Words(argparse.ArgumentParser):
    """A parser whose errors are one sentence, with the nearest verb, option or choice to a misspelt one."""

    sets_recipe = False  # whether `--set` reaches the keys of a recipe
    _mixing = False  # whether options and positional arguments are being separated

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, but nothing is left over: a verb knows best what its own options are."""
        if self._mixing:
            return super().parse_known_args(args, namespace)
        for word in itertools.takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args):
            if word.startswith("-") and Path(word).exists():
                raise ConfigError(f"{word} looks like an option; for the file of that name write ./{word}")
        found, left = self._mixed(args, namespace)
        if left:
            name = self.prog.split()[-1]
            wrong = next((word.partition("=")[0] for word in left if word.startswith("-")), None)
            if wrong is None:
                raise ConfigError(f"{name}: unexpected arguments: {' '.join(left)}; see {self.prog} --help")
            raise ConfigError(f"{name} has no option {wrong}; {self._meant(wrong)}")
        return found, left

    def _mixed(self, args: Any, namespace: Any) -> tuple[Any, list[str]]:
        """Options may stand between positional arguments; the parser of verbs cannot mix them, and need not."""
        if "--" in (args or ()) or any(action.nargs == argparse.PARSER for action in self._actions):
            return super().parse_known_args(args, namespace)
        self._mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._mixing = False

    def _meant(self, wrong: str) -> str:
        """A hint at the option that was meant, or at the key of a recipe that is called so, here or by others."""
        key = _key(wrong.lstrip("-").replace("-", "_")) if self.sets_recipe else None
        known = {option.removeprefix("--") for option in self._option_string_actions if option.startswith("--")}
        if key is None or key.replace("_", "-") in known:
            # Dashes, which all options have, make none alike.
            return nearest((key or wrong.lstrip("-")).replace("_", "-"), known).replace("mean '", "mean '--")
        return f"write --set {key}=…"

    def error(self, message: str) -> NoReturn:
        """What argparse has to say, without its usage before it."""
        raise ConfigError(f"{message}; see {self.prog} --help")

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        name = action.option_strings[-1] if action.option_strings else action.metavar or action.dest
        if not arg_string and action.nargs != argparse.PARSER and action.default != "":
            raise ConfigError(f"{name} is empty; see {self.prog} --help")
        number = next((text for kind, text in _NUMBERS.items() if action.type is kind), None)
        try:
            value = super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            problem = f" is {arg_string!r}; it must be {number}" if number else f": {error.message}"
            raise ConfigError(f"{name}{problem}") from error
        if number and not math.isfinite(value):
            raise ConfigError(f"{name} is {arg_string!r}; it must be {number}")
        return value

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        what = f"{action.option_strings[-1]} is {value!r}" if action.option_strings else f"unknown verb {value!r}"
        raise ConfigError(f"{what}; {nearest(str(value), map(str, action.choices))}")


def model_and_pictures(verb: str, paths: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The model that is named before pictures, or the packaged one; and the pictures."""
    from vitrail.deploy.artefact.opening import is_artefact  # noqa: PLC0415
    from vitrail.packaged import NAME as PACKAGED  # noqa: PLC0415
    from vitrail.runs.paths import names_model  # noqa: PLC0415

    named = is_artefact(paths[0]) or names_model(paths[0])
    source, pictures = (paths[0], paths[1:]) if named else (PACKAGED, paths)
    if not pictures:
        raise ConfigError(f"{source} is a model; name pictures too: vitrail {verb} {source} picture.jpg")
    return source, pictures


def _key(name: str) -> str | None:
    """The key of a recipe that goes by a name."""
    from vitrail.training.config import TrainConfig, usual_name  # noqa: PLC0415

    return name if name in {field.name for field in fields(TrainConfig)} else usual_name(name)


def image_size(text: str) -> int | tuple[int, int]:
    """`384` or `224x160`, height first."""
    try:
        numbers = [int(part) for part in text.lower().split("x")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    raise argparse.ArgumentTypeError(f"{text!r} is not a valid image size; write 384, or height x width: 224x160")


def layer_numbers(text: str) -> list[int]:
    """`0,5,-1`, where negative numbers count from the end."""
    try:
        return [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layers; write numbers: 0,5,-1") from None


def read_changes(pairs: Sequence[str]) -> dict[str, Any]:
    """`["attention.qk_norm=true"]` -> `{"attention": {"qk_norm": True}}`; what is not JSON is a string."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        *parents, last = path.split(".")
        if not equals or not all((*parents, last)):
            raise ConfigError(f"--set {pair!r} must be KEY=VALUE")
        inner = changes
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {pair!r}: {parent} was set to {inner!r} before; write {parent}.kind={inner}")
        try:
            inner[last] = json.loads(text)
        except json.JSONDecodeError:
            inner[last] = text
    return changes


def check_paths(options: argparse.Namespace) -> None:
    """Refuses output paths that cannot be written, before any work is done for them; a run checks its own folder."""
    from vitrail.training.writable import check_file, check_folder  # noqa: PLC0415

    if (drawn := getattr(options, "draw", None)) is not None:
        from vitrail.runs.drawings import is_picture  # noqa: PLC0415

        (check_file if is_picture(drawn) else check_folder)(drawn)
    page = check_folder if getattr(options, "fit", False) else check_file  # `probe --fit` writes a run
    for name, check in {"html": page, "table": check_file, "out": check_folder, "page": check_folder}.items():
        if (path := getattr(options, name, None)) is not None:
            check(path)


def escape_letters() -> None:
    """Lets standard output take every letter: one that its encoding lacks is written as an escape of JSON."""
    codecs.register_error("vitrail.escapes", _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="vitrail.escapes")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """What stands for letters that cannot be encoded, and where the text goes on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return to_json(error.object[error.start : error.end], ascii_only=True)[1:-1], error.end


def show_report(report: "Report", options: argparse.Namespace, *, page: "Report | None" = None) -> None:
    """A report as `--json` and `--html` ask for it; else tables in the terminal. `page` is another one for HTML."""
    if options.html:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        (page or report).to_html(options.html)
    if options.json:
        print(report.to_json())  # noqa: T201
    else:
        report.print()


def show_found(found: Any, options: argparse.Namespace) -> None:
    """What a tool found, with its own plain data for `--json`, else as a report."""
    if not options.json:
        show_report(found.report(), options)
        return
    if options.html:
        options.html.parent.mkdir(parents=True, exist_ok=True)
        found.to_html(options.html)
    print(found.to_json())  # noqa: T201


@contextlib.contextmanager
def busy(text: str) -> Iterator[None]:
    """A moving bar while something of unknown length runs."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    from vitrail.console import Console  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(text, total=None)
        yield


@contextlib.contextmanager
def notices() -> Iterator[None]:
    """Prints vitrail's notices as plain sentences instead of Python warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", Notice)
        show = warnings.showwarning

        def plain(message: Any, category: type[Warning], *rest: Any) -> None:
            if issubclass(category, Notice):
                print(f"vitrail: note: {message}", file=sys.stderr)  # noqa: T201
            else:
                show(message, category, *rest)

        warnings.showwarning = plain  # type: ignore[assignment]  # *rest stands for the rest
        yield
