"""The verb `explain`: what a model sees in pictures, as a page or a table; and what its attention does over many."""

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.options import busy, image_size, layer_numbers, show_report
from vitrail.errors import BrokenImage, ConfigError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from vitrail.cli.opening import OpenedTask
    from vitrail.explain.page import Gallery, View
    from vitrail.report import Report

MOST_PICTURES = 16  # on a page
BATCH = 32  # pictures at a time for statistics


def add_options(verb: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    verb.add_argument(
        "run",
        help="a run's folder, any checkpoint that `vitrail info` reads, `packaged`, or a name, for random weights",
    )
    verb.add_argument("images", nargs="+", metavar="IMAGE", help="image files and folders of them")
    verb.add_argument(
        "--method", metavar="NAMES", type=_words, help="saliency methods, e.g. relevance,rollout (default: quick ones)"
    )
    verb.add_argument("--target", metavar="CLASS", help="the class to explain (default: the one that is predicted)")
    verb.add_argument(
        "--layers",
        metavar="NUMBERS",
        type=layer_numbers,
        help="attention layers that are kept, e.g. 0,5,-1 (default: all)",
    )
    verb.add_argument(
        "--steps", metavar="N", type=int, default=32, help="of insertion and deletion; fewer are faster (default 32)"
    )
    verb.add_argument(
        "--masks", metavar="FOLDER", type=Path,
        help="images of the same names, not black where the object is: does the highest point of a map lie on it?",
    )  # fmt: skip
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="other than its own: 384, or 224x160")
    verb.add_argument("--against", metavar="RUN", help="another model, to be seen side by side")
    verb.add_argument("--statistics", action="store_true", help="instead: attention by layer and head, over all images")
    verb.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        dest="html",
        help="write a page that needs no network: hover, choose, compare",
    )
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--device")


def _words(text: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise argparse.ArgumentTypeError("it names no method; write one or more: relevance,rollout")
    return list(dict.fromkeys(words))


def explain(options: argparse.Namespace) -> None:
    """Explains pictures, or sums up attention over a folder of them."""
    if options.statistics:
        _statistics(options)
        return
    from vitrail.explain.page import Gallery, write_page  # noqa: PLC0415

    if options.layers is not None and options.html is None:
        raise ConfigError("--layers chooses what a page keeps: name it too, as in --out page.html")
    views, about, broken = list["View"](), dict[str, str](), dict[str, str]()
    sources = dict.fromkeys(name for name in (options.run, options.against) if name is not None)
    for source, opened in {source: _opened(source, options) for source in sources}.items():
        some, broken = _views(source, opened, options)
        views += some
        about[source] = opened.about.removeprefix(f"{source}: ")
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
    _complain(broken, len(broken) + len(gallery.pictures))


def _opened(source: str, options: argparse.Namespace) -> "OpenedTask":
    from vitrail.cli.opening import open_task  # noqa: PLC0415
    from vitrail.hardware import device  # noqa: PLC0415

    opened = open_task(source, image_size=options.image_size)
    opened.task.to(device(options.device))
    return opened


def _views(source: str, opened: "OpenedTask", options: argparse.Namespace) -> tuple[list["View"], dict[str, str]]:
    """All pictures through one model, and the files that are none with the reason."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import track  # noqa: PLC0415

    from vitrail.explain.look import look  # noqa: PLC0415
    from vitrail.explain.pictures import read_pictures  # noqa: PLC0415
    from vitrail.tasks.predict import image_files  # noqa: PLC0415

    files = list(dict.fromkeys(image_files(options.images)))
    if options.html is not None and len(files) > MOST_PICTURES:
        raise ConfigError(
            f"a page shows at most {MOST_PICTURES} pictures, and {len(files)} were named; name some of them, or leave "
            "out --out for a table of all"
        )
    if options.masks is not None and not options.masks.exists():
        raise DataError(f"there is no {options.masks}; --masks names a folder of masks, or the mask of one picture")
    pictures, broken = read_pictures(files, opened.task.backbone.config, masks=options.masks)
    if not pictures:
        raise BrokenImage(next(iter(broken.values())))
    found = look(
        opened.task,
        opened.prepare,
        pictures,
        model=source,
        methods=options.method,
        target=options.target,
        layers=options.layers,
        attention=options.html is not None,
        steps=options.steps,
    )
    console = Console(stderr=True)
    shown = track(
        found, "explaining", total=len(pictures), console=console, transient=True, disable=not console.is_terminal
    )
    return list(shown), broken


def summary(gallery: "Gallery", *, narrow: bool) -> "Report":
    """What a page shows, without pictures: predictions, and how true each method's map is."""
    from vitrail.explain.page import mean_table, narrow_table, score_table  # noqa: PLC0415
    from vitrail.report import Report, Text  # noqa: PLC0415

    tables = [narrow_table(gallery) if narrow else score_table(gallery)]
    if len(gallery.pictures) > 1:
        tables.append(mean_table(gallery))
    whys = dict.fromkeys(f"{view.model}: {view.why}" for view in gallery.views if view.why)
    return Report(gallery.title, (*tables, *([Text("Attention", "\n".join(whys))] if whys else [])))


def _statistics(options: argparse.Namespace) -> None:
    """Attention by layer and head over all images."""
    import torch  # noqa: PLC0415

    from vitrail.cli.opening import open_model  # noqa: PLC0415
    from vitrail.explain.attention_statistics import statistics  # noqa: PLC0415
    from vitrail.explain.pictures import read_pictures  # noqa: PLC0415
    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.tasks.predict import image_files  # noqa: PLC0415

    others = {
        "--method": options.method,
        "--target": options.target,
        "--against": options.against,
        "--masks": options.masks,
    }
    if given := [name for name, value in others.items() if value is not None]:
        raise ConfigError(f"--statistics sums up the attention of one model: leave out {', '.join(given)}")
    opened = open_model(options.run, image_size=options.image_size)
    model = opened.model.to(device(options.device))
    files, broken = list(dict.fromkeys(image_files(options.images))), dict[str, str]()

    def batches() -> "Iterator[Tensor]":
        for start in range(0, len(files), BATCH):
            read = read_pictures(files[start : start + BATCH], model.config)
            broken.update(read.broken)
            if read.pictures:
                yield opened.prepare(torch.stack([one.pixels for one in read.pictures]))
        if len(broken) == len(files):
            raise BrokenImage(next(iter(broken.values())))

    with busy(f"looking at {len(files):,} pictures"):
        report = statistics(model, batches(), layers=options.layers)
    show_report(report, options)
    _complain(broken, len(files))


def _complain(broken: dict[str, str], count: int) -> None:
    """Ends with an error where some files were no images, after all others have had their turn."""
    if broken:
        raise DataError(f"{len(broken)} of {count} pictures could not be read: {next(iter(broken.values()))}")


def _title(views: list["View"]) -> str:
    pictures, models = (dict.fromkeys(getattr(view, name) for view in views) for name in ("picture", "model"))
    what = Path(views[0].picture).name if len(pictures) == 1 else f"{len(pictures)} pictures"
    return f"{what} through {' and '.join(models)}"


def _command() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
