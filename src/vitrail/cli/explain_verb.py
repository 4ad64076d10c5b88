"""The verb `explain`: explanations of pictures as a page or a table, and statistics of attention over many images."""

import argparse
import contextlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.options import DEVICES, busy, image_size, layer_numbers, model_and_pictures, show_report
from vitrail.config import split_names
from vitrail.errors import BrokenImage, ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from vitrail.explain.page.gallery import View
    from vitrail.explain.progress import Progress
    from vitrail.runs.trained import TrainedModel

MAX_PICTURES = 16  # on a page
BATCH = 32  # images at a time for statistics


def add_options(verb: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    verb.add_argument(
        "paths", nargs="+", metavar="PATH",
        help="image files, and folders of them; before them a run's folder, a checkpoint, or the name of a model, "
        "which gets random weights; by default the packaged model",
    )  # fmt: skip
    verb.add_argument(
        "--method", metavar="NAMES", type=_words, help="saliency methods, e.g. relevance,rollout (default: quick ones)"
    )
    verb.add_argument(
        "--target", metavar="NAME", help="the output to explain: a class, or a number (default: the model's answer)"
    )
    verb.add_argument("--box", metavar="N", type=int, help="for detectors: the box to explain, 0 is the first answer")
    verb.add_argument(
        "--layers", metavar="NUMBERS", type=layer_numbers, help="attention layers to show, e.g. 0,5,-1 (default: all)"
    )
    verb.add_argument(
        "--scores", choices=("none", "quick", "full"), default="quick",
        help="how exactly maps are scored: full takes 32 steps of insertion and deletion and compares with shuffled "
        "weights; quick takes fewer steps for large models (default: quick)",
    )  # fmt: skip
    verb.add_argument("--steps", metavar="N", type=int, help="steps of insertion and deletion, instead of --scores'")
    verb.add_argument(
        "--masks", metavar="FOLDER", type=Path,
        help="images of the same names, not black on the object: is the maximum of each map on it?",
    )  # fmt: skip
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="another image size: 384, or 224x160")
    verb.add_argument("--against", metavar="RUN", help="a second model, shown side by side")
    verb.add_argument("--statistics", action="store_true", help="instead: attention by layer and head over all images")
    verb.add_argument(
        "--out", metavar="FILE", type=Path, dest="html", help="write an interactive page that needs no network"
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--device", help=DEVICES)


def _words(text: str) -> list[str]:
    if not (words := split_names(text)):
        raise argparse.ArgumentTypeError("no method is given; write one or more: relevance,rollout")
    return list(dict.fromkeys(words))


def explain(options: argparse.Namespace) -> None:
    """Explains pictures, or computes statistics of attention over many images."""
    options.run, options.images = model_and_pictures("explain", options.paths)
    if options.statistics:
        _statistics(options)
        return
    from vitrail.explain.page.gallery import Gallery  # noqa: PLC0415
    from vitrail.explain.page.render import write_page  # noqa: PLC0415
    from vitrail.explain.page.tables import summary  # noqa: PLC0415

    if options.layers is not None and options.html is None:
        raise ConfigError("--layers chooses the layers of a page; add --out page.html")
    views, about, broken = list["View"](), dict[str, str](), dict[str, str]()
    sources = dict.fromkeys(name for name in (options.run, options.against) if name is not None)
    for source, trained in {source: _opened(source, options) for source in sources}.items():
        of_model, broken = _views(source, trained, options)
        views += of_model
        about[source] = trained.about.removeprefix(f"{source}: ")
    gallery = Gallery(title=_title(views), views=views, about=about, command=_command())
    if options.html is not None:
        with busy(f"writing {options.html}"):
            page = write_page(gallery, options.html)
    if options.json:
        print(summary(gallery, narrow=False).to_json())  # noqa: T201
    else:
        summary(gallery, narrow=True).print()
        if options.html is not None:
            print(f"\npage: {page} ({page.stat().st_size / 1e3:,.0f} kB)")  # noqa: T201
    _report_broken(broken, len(broken) + len(gallery.pictures))


def _opened(source: str, options: argparse.Namespace) -> "TrainedModel":
    from vitrail.api import open_weights  # noqa: PLC0415

    return open_weights(source, device=options.device, image_size=options.image_size)


def _views(source: str, trained: "TrainedModel", options: argparse.Namespace) -> tuple[list["View"], dict[str, str]]:
    """All pictures explained with one model, and the files that could not be read with the reason."""
    from vitrail.explain.methods.target import target_name  # noqa: PLC0415
    from vitrail.explain.pictures import read_pictures  # noqa: PLC0415
    from vitrail.explain.views import picture_views  # noqa: PLC0415
    from vitrail.runs.predict import image_files  # noqa: PLC0415

    target = target_name(trained.task, options.target, box=options.box)
    files = list(dict.fromkeys(image_files(options.images)))
    if options.html is not None and len(files) > MAX_PICTURES:
        raise ConfigError(
            f"a page shows at most {MAX_PICTURES} pictures, but there are {len(files)}; name some of them, or leave "
            "out --out for a table of all"
        )
    if options.masks is not None and not options.masks.exists():
        raise DataError(f"--masks {options.masks} does not exist; it must be a folder of masks, or one mask")
    pictures, broken = read_pictures(files, trained.preprocess, masks=options.masks)
    if not pictures:
        raise BrokenImage(next(iter(broken.values())))
    with _progress_bar() as progress:
        views = picture_views(
            trained.task,
            trained.preprocess,
            pictures,
            model=source,
            methods=options.method,
            target=target,
            layers=options.layers,
            attention=options.html is not None,
            scores=options.scores,
            steps=options.steps,
            progress=progress,
        )
        return list(views), broken


@contextlib.contextmanager
def _progress_bar() -> "Iterator[Progress]":
    """A bar on a terminal that says what is being done."""
    from rich.progress import Progress as Bars  # noqa: PLC0415

    from vitrail.console import Console  # noqa: PLC0415

    console = Console(stderr=True)
    with Bars(console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task("explaining", total=None)
        yield lambda text, done, total: bars.update(bar, description=text, completed=done, total=total)


def _statistics(options: argparse.Namespace) -> None:
    """Attention by layer and head over all images."""
    import torch  # noqa: PLC0415

    from vitrail.explain.attention.head_statistics import statistics  # noqa: PLC0415
    from vitrail.explain.pictures import read_pictures  # noqa: PLC0415
    from vitrail.runs.predict import image_files  # noqa: PLC0415

    others = {
        "--method": options.method,
        "--target": options.target,
        "--box": options.box,
        "--against": options.against,
        "--masks": options.masks,
    }
    if given := [name for name, value in others.items() if value is not None]:
        raise ConfigError(f"--statistics shows the attention of one model: leave out {', '.join(given)}")
    trained = _opened(options.run, options)
    files, broken = list(dict.fromkeys(image_files(options.images))), dict[str, str]()

    def batches() -> "Iterator[Tensor]":
        for start in range(0, len(files), BATCH):
            read = read_pictures(files[start : start + BATCH], trained.preprocess)
            broken.update(read.broken)
            if read.pictures:
                pixels = torch.stack([picture.pixels for picture in read.pictures])
                yield trained.preprocess.normalise(pixels.to(trained.device))
        if len(broken) == len(files):
            raise BrokenImage(next(iter(broken.values())))

    with busy(f"reading {len(files):,} images"):
        report = statistics(trained.backbone, batches(), layers=options.layers)
    show_report(report, options)
    _report_broken(broken, len(files))


def _report_broken(broken: dict[str, str], count: int) -> None:
    """Ends with an error if some files could not be read, after all others are done."""
    if broken:
        raise DataError(f"{len(broken)} of {count} pictures could not be read: {next(iter(broken.values()))}")


def _title(views: list["View"]) -> str:
    pictures, models = (dict.fromkeys(getattr(view, name) for view in views) for name in ("picture", "model"))
    what = Path(views[0].picture).name if len(pictures) == 1 else f"{len(pictures)} pictures"
    return f"{what} explained with {' and '.join(models)}"


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
