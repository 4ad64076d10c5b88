"""The verb `probe`: how well classes can be told from each layer of a model, with or without a head."""

import argparse
from pathlib import Path

from vitrail.cli.options import busy, layer_numbers, show_report


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
    from vitrail.cli.opening import open_model  # noqa: PLC0415
    from vitrail.data.source import find  # noqa: PLC0415
    from vitrail.explain.probes import probe as learn  # noqa: PLC0415
    from vitrail.hardware import device  # noqa: PLC0415

    opened = open_model(options.run)
    model = opened.model.to(device(options.device))
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
            prepare=opened.prepare,
            batch_size=options.batch_size,
        )
    show_report(report, options)
