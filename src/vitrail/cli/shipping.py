"""The verbs that ship a model: export and bench; and `predict` with artefacts and tables."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import busy, image_size, show_report
from vitrail.config import split_names
from vitrail.errors import ConfigError, DataError

if TYPE_CHECKING:
    from vitrail.deploy.artefact.engine import Engine
    from vitrail.deploy.bulk.image_files import ImageFile
    from vitrail.deploy.bulk.table_files import Row
    from vitrail.runs.predictor import Predictor
    from vitrail.tasks.answer import Prediction


def add_export(verb: argparse.ArgumentParser) -> None:
    """The options of `export`."""
    verb.add_argument("run", help="a run's folder, any checkpoint that `vitrail info` reads, or `packaged`")
    verb.add_argument("--to", default="onnx", help="some of torch, onnx, openvino, separated by commas (default onnx)")
    verb.add_argument("--out", metavar="FOLDER", type=Path, default=Path("dist"), help="default dist/")
    verb.add_argument("--int8", metavar="IMAGES", help="also in int8, calibrated and validated on these images")
    verb.add_argument(
        "--images",
        metavar="IMAGES",
        help="images for the certificate (default: half of those of --int8, or the run's own data; the packaged "
        "model comes with some)",
    )
    verb.add_argument("--count", type=int, default=200, help="how many of them (default 200)")
    verb.add_argument("--rounds", type=int, default=5, help="rounds of timing in the certificate (default 5)")
    verb.add_argument(
        "--any-size", action="store_true",
        help="the model works at the size of its images; not all families can",
    )  # fmt: skip
    verb.add_argument("--licence", help="the licence of the weights (default: that of the run)")
    verb.add_argument("--force", action="store_true", help="write artefacts outside tolerance, too")


def add_bench(verb: argparse.ArgumentParser) -> None:
    """The options of `bench`."""
    verb.add_argument(
        "what", nargs="+",
        help="artefacts, folders of them, runs, checkpoints; compared with the last in float32. Or `train` or `infer` "
        "and names of models: the speed of a training step or a forward pass",
    )  # fmt: skip
    verb.add_argument(
        "--batches", default="", help="batch sizes, separated by commas (default 1,16; 16 for `train` and `infer`)"
    )
    verb.add_argument("--peers", action="store_true", help="with `train` and `infer`: also measure timm")
    verb.add_argument("--precision", default="auto", help="with `train` and `infer`: auto, float32, bf16, fp16 or fp8")
    verb.add_argument("--image-size", metavar="SIZE", type=image_size, help="with `train` and `infer`: 384, or 224x160")
    verb.add_argument("--device", help="with `train` and `infer`: cpu, cuda, cuda:1, mps")
    verb.add_argument(
        "--threads", default="", help="numbers of threads to try, separated by commas (default: all cores, and half)"
    )
    verb.add_argument(
        "--images",
        metavar="IMAGES",
        help="images on which answers are compared (default: the run's own data, or those of the package)",
    )
    verb.add_argument("--count", type=int, default=100, help="how many of them (default 100)")
    verb.add_argument(
        "--compile", action="store_true",
        help="also compile runs, in float32 and bf16; takes a minute for each of them and each batch size",
    )  # fmt: skip
    verb.add_argument("--rounds", type=int, default=9, help="rounds of timing, in turns (default 9)")
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--html", metavar="FILE", type=Path, help="also write one self-contained HTML page")


def add_positions(verb: argparse.ArgumentParser) -> None:
    """The options of `predict` for boxes, masks and depth."""
    verb.add_argument(
        "--draw", metavar="FILE|FOLDER", type=Path,
        help="write pictures with their boxes, masks or depth: out.png for one picture, a folder for several",
    )  # fmt: skip
    verb.add_argument(
        "--tile", metavar="PIXELS", type=int,
        help="find boxes in large pictures: in overlapping tiles of this size, at full resolution",
    )  # fmt: skip


def add_table(verb: argparse.ArgumentParser) -> None:
    """The options of `predict` for very many images."""
    verb.add_argument(
        "--out", metavar="FILE|FOLDER", type=Path, dest="table",
        help="write .parquet, .csv or .jsonl; .json (COCO) for boxes; a folder for masks or depth maps; what is there "
        "is not made again",
    )  # fmt: skip
    verb.add_argument("--ray", metavar="WORKERS", type=int, help="with --out: number of workers of a Ray cluster")


def export(options: argparse.Namespace) -> None:
    """Writes artefacts of a run with a certificate."""
    from vitrail.deploy.artefact.certificate import CertifyConfig  # noqa: PLC0415
    from vitrail.deploy.artefact.fingerprint import file_bytes  # noqa: PLC0415
    from vitrail.deploy.artefact.opening import open_weights  # noqa: PLC0415
    from vitrail.deploy.artefact.ship import ShipConfig, ship  # noqa: PLC0415
    from vitrail.deploy.real_images import images_for_export  # noqa: PLC0415

    targets: Any = tuple(dict.fromkeys(split_names(options.to)))  # checked by ShipConfig
    config = ShipConfig(targets=targets, any_size=options.any_size, force=options.force)
    trained = open_weights(options.run)
    with busy("reading images"):
        found = images_for_export(trained, images=options.images, int8=options.int8, count=options.count)
    config = replace(config, certify=CertifyConfig(images=options.count, rounds=options.rounds))
    with busy(f"exporting {options.run} to {', '.join(targets)}"):
        extra = {"calibration": found.int8, "truth": found.truth, "licence": options.licence}
        shipped = ship(trained, found.certificate, options.out, config, **extra)
    shipped.report.print()
    for file in shipped.files:
        print(f"wrote {file} ({file_bytes(file) / 1e6:.1f} MB)")  # noqa: T201
    print(f"certificate: {options.out / 'certificate.html'}")  # noqa: T201
    if calibration := trained.task.calibration():
        print(f"calibration: {calibration}")  # noqa: T201
    if shipped.refusal is not None:
        raise DataError(shipped.refusal)


def bench(options: argparse.Namespace) -> None:
    """Measures artefacts and runs side by side, and remembers the fastest of each folder."""
    from vitrail.deploy.artefact.certificate import at_size  # noqa: PLC0415
    from vitrail.deploy.bench import BenchConfig, remember  # noqa: PLC0415
    from vitrail.deploy.bench import bench as measure  # noqa: PLC0415
    from vitrail.deploy.contenders import base_of, open_contenders  # noqa: PLC0415
    from vitrail.deploy.real_images import images_for_bench  # noqa: PLC0415

    if options.what[0] in ("train", "infer"):
        _bench_models(options)
        return
    threads, batches = _numbers(options.threads, "--threads"), _numbers(options.batches or "1,16", "--batches")
    config = BenchConfig(batches=batches, rounds=options.rounds)
    engines, folders = open_contenders(options.what, threads=threads, compiled=options.compile)
    name = base_of(engines)
    base = engines[name]
    with busy(f"measuring {len(engines)} engines in turns"):
        images = images_for_bench(options.what, base.task, images=options.images, count=options.count)
        pixels = at_size(images, base.image_size, base.preprocess)
        found = measure({name: base, **engines}, pixels, config)
    show_report(found.report(), options)
    for folder in folders:
        remember(found, folder)


def _bench_models(options: argparse.Namespace) -> None:
    """The speed of named models."""
    import torch  # noqa: PLC0415

    from vitrail.profiling.model_speed import SpeedConfig, measure_speed  # noqa: PLC0415
    from vitrail.report import Group, Report  # noqa: PLC0415

    mode, *names = options.what
    if not names:
        raise ConfigError(f"bench {mode} needs the names of models, such as vit_small_patch16")
    threads = _numbers(options.threads, "--threads")
    if len(threads) > 1:
        raise ConfigError(f"bench {mode} takes one number of threads, not {options.threads}")
    if threads:
        torch.set_num_threads(threads[0])
    found = {}
    for batch in _numbers(options.batches or "16", "--batches"):
        config = SpeedConfig(
            mode=mode, batch=batch, image_size=options.image_size, precision=options.precision, compile=options.compile,
            rounds=options.rounds, peers=options.peers,
        )  # fmt: skip
        with busy(f"measuring {len(names)} models in turns"):
            found[batch] = measure_speed(names, config, device=options.device)
    groups = tuple(Group(f"{one.title}, batch {batch}", one.sections) for batch, one in found.items())
    (first, *_) = found.values()
    show_report(first if len(found) == 1 else Report(f"Speed of {', '.join(names)}", groups), options)


def answers(
    model: "Predictor", paths: Sequence[str | Path], *, top: int, tile: int | None = None, draw: Path | None = None
) -> "Iterator[Prediction]":
    """Predictions for files, for all files below folders, and for the images of tars and tables of paths."""
    from vitrail.deploy.bulk.image_files import find_images, predict_images  # noqa: PLC0415

    return predict_images(model, find_images(paths), top=top, tile=tile, draw=draw)


def into_table(engine: "Engine", options: argparse.Namespace, paths: Sequence[str | Path]) -> None:
    """Predictions for very many images, into a table or a folder; an interrupted command goes on where it stopped."""
    from rich.progress import track  # noqa: PLC0415

    from vitrail.console import Console  # noqa: PLC0415
    from vitrail.deploy.artefact.fingerprint import fingerprint  # noqa: PLC0415
    from vitrail.deploy.bulk.cluster import check_source, needs_ray, predict_on_cluster  # noqa: PLC0415
    from vitrail.deploy.bulk.destination import destination  # noqa: PLC0415
    from vitrail.deploy.bulk.image_files import find_images, predict_images  # noqa: PLC0415
    from vitrail.deploy.bulk.prediction_table import bulk  # noqa: PLC0415

    console, workers, task = Console(stderr=True), options.ray, engine.task
    form = destination(options.table, task)
    columns, out = form.columns or task.columns, form.rows or options.table
    if workers is not None:
        needs_ray()
        check_source(engine)
        if not set(columns) <= set(task.columns):
            raise ConfigError(f"--ray writes tables, not {options.table}; leave it out")

    def predict(left: "Sequence[ImageFile]") -> "Iterator[Row]":
        if workers is not None:
            rows = predict_on_cluster(engine, left, top=options.top, workers=workers)
        else:
            found = zip(left, predict_images(engine, left, top=options.top, tile=options.tile), strict=True)
            rows = (form.row(one, image, columns) for image, one in found)
        hidden = not console.is_terminal
        yield from track(rows, "predicting", total=len(left), console=console, transient=True, disable=hidden)

    done = bulk(find_images(paths), out, predict, columns=columns, model=fingerprint(engine), form=form)
    rows = "1 row" if done.rows == 1 else f"{done.rows:,} rows"
    print(f"wrote {options.table}: {rows}, {done.fresh:,} of them new")  # noqa: T201
    if done.broken:
        raise DataError(f"{done.broken} of {done.rows} images could not be read; {form.reasons}")


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        found = tuple(map(int, split_names(text)))
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is not a list of whole numbers such as 1,16") from error
    if any(number < 1 for number in found):
        raise ConfigError(f"{option} {text!r} is not allowed: each must be 1 or more")
    return found
