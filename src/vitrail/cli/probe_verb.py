"""The verb `probe`: how well targets can be predicted from each layer of a model; with --fit, a model that does so."""

import argparse
import warnings
from pathlib import Path

from vitrail.cli.options import DEVICES, busy, layer_numbers, show_report
from vitrail.errors import ConfigError, Notice

_BATCH = 256  # images at a time, of a probe of all layers where no number is given


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
    verb.add_argument(
        "--fit", action="store_true",
        help="fit a linear head to the features of the last layer and write a run: a model that predicts, in seconds",
    )  # fmt: skip
    verb.add_argument("--val", metavar="SHARE", type=float, help="with --fit: the share of images to validate on")
    verb.add_argument("--batch-size", type=int, help=f"images at a time (default: {_BATCH}; with --fit: 16)")
    verb.add_argument("--device", help=DEVICES)
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument(
        "--out", metavar="PATH", type=Path, dest="html",
        help="also write one self-contained HTML page; with --fit, the folder of the run",
    )  # fmt: skip


def probe(options: argparse.Namespace) -> None:
    """Probes every layer of a model on data; with `--fit` it makes a run of the last one."""
    if options.fit:
        _fit(options)
        return
    if options.val is not None:
        raise ConfigError("--val needs --fit; a probe of all layers tests on its test part, or on a share")
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
            batch_size=_BATCH if options.batch_size is None else options.batch_size,
        )
    show_report(report, options)


def _fit(options: argparse.Namespace) -> None:
    from vitrail.cli.learning import report_run  # noqa: PLC0415
    from vitrail.training.ledger import Ledger  # noqa: PLC0415
    from vitrail.training.one_run import check_new_run  # noqa: PLC0415
    from vitrail.training.run import train  # noqa: PLC0415

    defaults = {"layers": None, "pool": "auto", "linear": "ridge", "k": 20, "json": False}
    if given := [f"--{name}" for name, value in defaults.items() if getattr(options, name) != value]:
        raise ConfigError(f"--fit fits the model's own head to its last layer: leave out {', '.join(given)}")
    what = {"label": options.label, "val": options.val, "device": options.device, "folder": options.html}
    check_new_run(options.html)
    ledger = Ledger.of_process()
    size = {} if options.batch_size is None else {"batch_size": options.batch_size}
    run = train(options.data, start=options.run, probe="linear", ledger=ledger, **size, **what)
    report_run(run, ledger)
