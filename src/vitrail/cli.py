"""The command line: one verb a function, each importing what it needs when it runs, so that --help is instant."""

import argparse
import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail import __version__
from vitrail.errors import ConfigError, Notice, VitrailError

if TYPE_CHECKING:
    from vitrail.models.backbone import Backbone

EXAMPLES = """examples:
  vitrail models 'vit_*_patch16'
  vitrail info vit_base_patch16 --image-size 384 --num-classes 10
  vitrail info model.safetensors --html model.html
  vitrail convert hf-hub:facebook/dinov2-small my-model
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; an error that is the user's becomes one sentence and exit code 2."""
    options = parser().parse_args(arguments)
    try:
        with _notices():
            options.run(options)
    except VitrailError as error:
        print(f"vitrail: error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()  # the reader left, e.g. `vitrail models | head`
            return 0
        print(f"vitrail: error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    top = argparse.ArgumentParser(
        prog="vitrail",
        description="Vision transformers: every family, everyone's weights.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"vitrail {__version__}")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True)

    verb = _verb(verbs, "models", models, "list the models: parameters, GMACs, image size, and which weights fit")
    verb.add_argument(
        "pattern", nargs="?", default="*", help="a name, part of one, or a pattern such as 'vit_*_patch16'"
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of a table")

    verb = _verb(verbs, "info", info, "describe a model layer by layer: parameters, MACs, activation memory")
    verb.add_argument("model", help="a model's name, a weight file or folder, or hf-hub:owner/name[@revision]")
    _size_options(verb)
    verb.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="changes",
                      help="change the config, e.g. --set position=rope --set attention.qk_norm=true")  # fmt: skip
    verb.add_argument("--batch", type=int, default=1, help="images in the batch that is counted (default 1)")
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--html", metavar="FILE", type=Path, help="also write one self-contained HTML page")

    verb = _verb(verbs, "convert", convert, "rewrite a checkpoint for vitrail, timm or Hugging Face")
    verb.add_argument(
        "source", help="a weight file or folder of vitrail, timm, Hugging Face or torchvision, or hf-hub:…"
    )
    verb.add_argument("out", type=Path, help="the folder to write")
    verb.add_argument("--to", choices=("vitrail", "timm", "hf"), default="vitrail", help="for whom (default vitrail)")
    verb.add_argument("--model", metavar="NAME", help="the model's name, where the file alone does not tell it")
    _size_options(verb)

    _verb(verbs, "demo", demo, "build the 32 px ViT, show its layers and run it once")
    return top


def _verb(verbs: Any, name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    verb.set_defaults(run=run)
    return verb


def _size_options(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--image-size", metavar="SIZE", type=_image_size, help="384, or height x width: 224x160")
    verb.add_argument("--num-classes", metavar="K", type=int, help="classes of the head; 0 for none")


def models(options: argparse.Namespace) -> None:
    """Lists the models that match a pattern."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import track  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    from vitrail.models.registry import list_models, presets  # noqa: PLC0415
    from vitrail.profiling import cost  # noqa: PLC0415

    names = list_models(options.pattern)
    if not names:
        raise ConfigError(f"no model matches {options.pattern!r}; `vitrail models` lists all")
    known = presets()
    rows: list[dict[str, Any]] = []
    console = Console(stderr=True)
    for name in track(names, "counting", console=console, transient=True, disable=not console.is_terminal):
        config, weights = known[name]
        parameters, macs = cost(name)
        size = list(config.image_size)
        rows.append({"name": name, "parameters": parameters, "macs": macs, "image_size": size, "weights": weights})
    if options.json:
        print(json.dumps(rows, indent=2))  # noqa: T201
        return
    table = Table("model", "image", "parameters", "GMACs", "weights that fit", box=None, pad_edge=False)
    table.columns[2].justify = table.columns[3].justify = "right"
    table.columns[0].no_wrap, table.columns[4].overflow = True, "fold"
    table.columns[0].min_width = max(len(row["name"]) for row in rows)
    for row in rows:
        height, width = row["image_size"]
        cells = (row["name"], f"{height}x{width}", f"{row['parameters'] / 1e6:.2f} M", f"{row['macs'] / 1e9:.2f}")
        table.add_row(*cells, row["weights"])
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=200)).print(table)


def info(options: argparse.Namespace) -> None:
    """Describes a model or a checkpoint layer by layer."""
    from vitrail.models.registry import is_known  # noqa: PLC0415
    from vitrail.profiling import describe  # noqa: PLC0415

    model = _model(options)
    report = describe(model, batch=options.batch)
    if not is_known(options.model):
        report = replace(report, title=f"{report.title}, from {options.model}")
    if options.html:
        report.to_html(options.html)
    if options.json:
        print(report.to_json())  # noqa: T201
    else:
        report.print()


def _model(options: argparse.Namespace) -> "Backbone":
    """The model that `info` was asked about: by name without weights, or from a checkpoint."""
    from vitrail.models.checkpoint import load  # noqa: PLC0415
    from vitrail.models.registry import is_known  # noqa: PLC0415
    from vitrail.profiling import sketch  # noqa: PLC0415

    is_file = options.model.startswith("hf-hub:") or "/" in options.model or Path(options.model).exists()
    if is_known(options.model) or not is_file:
        sizes = {"image_size": options.image_size, "num_classes": options.num_classes}
        changes = {key: value for key, value in sizes.items() if value is not None}
        return sketch(options.model, **(_changes(options.changes) | changes))
    if options.changes:
        raise ConfigError("--set changes a named model; a checkpoint's config is fixed")
    with _busy(f"reading {options.model}"):
        return load(options.model, image_size=options.image_size, num_classes=options.num_classes)


def convert(options: argparse.Namespace) -> None:
    """Rewrites a checkpoint and says what it was and what it became."""
    from vitrail.models.checkpoint import convert as rewrite  # noqa: PLC0415

    with _busy(f"converting {options.source}"):
        file = rewrite(
            options.source,
            options.out,
            to=options.to,
            model=options.model,
            image_size=options.image_size,
            num_classes=options.num_classes,
        )
    print(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB) for {options.to}; read back and equal")  # noqa: T201


def demo(options: argparse.Namespace) -> None:
    """Builds the 32 px ViT, shows its layers and runs it once."""
    import torch  # noqa: PLC0415

    from vitrail.models.registry import create  # noqa: PLC0415
    from vitrail.profiling import describe  # noqa: PLC0415

    torch.manual_seed(0)
    model = create("vit32_small").eval()
    describe(model).print()
    images = torch.rand(4, 3, 32, 32)
    with torch.inference_mode():
        features, logits = model.features(images), model(images)
    print(f"images   {tuple(images.shape)}")  # noqa: T201
    print(f"patches  {tuple(features.patches.shape)} on a grid of {features.grid[0]} x {features.grid[1]}")  # noqa: T201
    print(f"prefix   {tuple(features.prefix.shape)}, the class token")  # noqa: T201
    print(f"logits   {tuple(logits.shape)}, untrained")  # noqa: T201


def _image_size(text: str) -> int | tuple[int, int]:
    try:
        numbers = [int(part) for part in text.lower().split("x")]
    except ValueError:
        numbers = []
    if len(numbers) == 1:
        return numbers[0]
    if len(numbers) == 2:
        return numbers[0], numbers[1]
    raise argparse.ArgumentTypeError(f"{text!r} is no image size; write 384, or height x width: 224x160")


def _changes(pairs: Sequence[str]) -> dict[str, Any]:
    """`["attention.qk_norm=true"]` -> `{"attention": {"qk_norm": True}}`; what is no JSON is a string."""
    changes: dict[str, Any] = {}
    for pair in pairs:
        path, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair!r} is no KEY=VALUE")
        *parents, last = path.split(".")
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


@contextlib.contextmanager
def _busy(text: str) -> Iterator[None]:
    """A moving bar while something of unknown length runs."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(text, total=None)
        yield


@contextlib.contextmanager
def _notices() -> Iterator[None]:
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
