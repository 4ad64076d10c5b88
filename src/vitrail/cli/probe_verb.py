"""The verb `probe`: how well classes or numbers can be predicted from each layer of a model."""

import argparse
import warnings
from pathlib import Path

from vitrail.cli.options import busy, layer_numbers, show_report
from vitrail.errors import Notice


def add_options(verb: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    verb.add_argument("run", help="a run folder, a checkpoint, `packaged`, or the name of a model")
    verb.add_argument("data", help="images with labels, as for train; labels need not be those of the model")
    verb.add_argument("--label", metavar="COLUMN", help="the column of a table with the target")
    verb.add_argument(
        "--layers", metavar="NUMBERS", type=layer_numbers, help="blocks to read, e.g. 0,5,-1 (default: all)"
    )
    verb.add_argument(
        "--pool", choices=("auto", "class", "mean"), default="auto",
        help="read the class token, the mean of the patches, or (auto) the class token if there is one",
    )  # fmt: skip
    verb.add_argument("--linear", choices=("ridge", "logistic"), default="ridge", help="the kind of linear probe")
    verb.add_argument("--k", type=int, default=20, help="the number of nearest neighbours (default: 20)")
    verb.add_argument("--batch-size", type=int, default=256)
    verb.add_argument("--device")
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--out", metavar="FILE", type=Path, dest="html", help="also write one self-contained HTML page")


def probe(options: argparse.Namespace) -> None:
    """Probes every layer of a model on data."""
    from vitrail.api import open_weights  # noqa: PLC0415
    from vitrail.data.sources.opening import find  # noqa: PLC0415
    from vitrail.explain.probes.probe import probe as probe_layers  # noqa: PLC0415
    from vitrail.runs.leakage import trained_on  # noqa: PLC0415
    from vitrail.runs.record import wanted_columns  # noqa: PLC0415

    trained = open_weights(options.run, device=options.device)
    with busy(f"reading {options.data}"):
        data = find(options.data, wanted=wanted_columns(trained.record, options.data, options.label))
    images = next(part for part in (data.test, data.val, data.train) if part is not None)
    if trained.record is not None and (note := trained_on(options.run, options.data, images)) is not None:
        warnings.warn(note, Notice, stacklevel=1)
    with busy("probing"):
        report = probe_layers(
            trained.backbone,
            data,
            layers=options.layers,
            pool=options.pool,
            linear=options.linear,
            k=options.k,
            preprocess=trained.preprocess,
            batch_size=options.batch_size,
        )
    show_report(report, options)
