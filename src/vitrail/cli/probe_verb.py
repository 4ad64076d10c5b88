"""The verb `probe`: how well classes can be told from each layer of a model, with or without a head."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail.cli.options import busy, layer_numbers, show_report
from vitrail.errors import CheckpointError

if TYPE_CHECKING:
    from vitrail.data.augment import AugmentConfig


def add_options(verb: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    verb.add_argument("run", help="a run's folder, any checkpoint that `vitrail info` reads, or `packaged`")
    verb.add_argument("data", help="images with labels, as for train; their classes need not be those of the model")
    verb.add_argument(
        "--layers", metavar="NUMBERS", type=layer_numbers, help="blocks to read, e.g. 0,5,-1 (default: all)"
    )
    verb.add_argument(
        "--pool", choices=("auto", "class", "mean"), default="auto",
        help="read the class token, the mean of the patches, or (auto) the class token where there is one",
    )  # fmt: skip
    verb.add_argument("--linear", choices=("ridge", "logistic"), default="ridge", help="how the linear map is found")
    verb.add_argument("--k", type=int, default=20, help="how many neighbours vote (default 20)")
    verb.add_argument("--batch-size", type=int, default=256)
    verb.add_argument("--device")
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--out", metavar="FILE", type=Path, dest="html", help="also write one self-contained HTML page")


def probe(options: argparse.Namespace) -> None:
    """Probes every layer of a model on data."""
    from vitrail.data.augment import Prepare  # noqa: PLC0415
    from vitrail.data.source import find  # noqa: PLC0415
    from vitrail.explain.probes import probe as learn  # noqa: PLC0415
    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.models.checkpoint import load  # noqa: PLC0415
    from vitrail.packaged import NAME as PACKAGED  # noqa: PLC0415
    from vitrail.packaged import find_packaged  # noqa: PLC0415

    place = find_packaged() if options.run == PACKAGED else options.run
    model = load(place).to(device(options.device))
    config = model.config
    prepare = Prepare(_treatment(Path(place)), image_size=config.image_size, channels=config.channels)
    with busy(f"reading {options.data}"):
        data = find(options.data)
    with busy("probing"):
        report = learn(
            model,
            data,
            layers=options.layers,
            pool=options.pool,
            linear=options.linear,
            k=options.k,
            prepare=prepare,
            batch_size=options.batch_size,
        )
    show_report(report, options)


def _treatment(place: Path) -> "AugmentConfig":
    """How a run's training normalised images, also where it learned without labels; else as we do."""
    from vitrail.config import from_dict  # noqa: PLC0415
    from vitrail.data.augment import AugmentConfig  # noqa: PLC0415

    file = place / "run.json"
    if not file.is_file():
        return AugmentConfig()
    try:
        return from_dict(AugmentConfig, json.loads(file.read_text(encoding="utf-8"))["recipe"]["augment"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{place} is no whole run, its run.json is damaged: {error!r}") from error
