"""The verbs that take a model out of the house: export, bench; and predictions by what was exported."""

import argparse
import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import busy, show_report
from vitrail.errors import ConfigError, DataError, Notice

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.deploy.calibration import Calibration
    from vitrail.deploy.card import Opened
    from vitrail.deploy.engine import Engine
    from vitrail.tasks.predict import Prediction


def add_export(verb: argparse.ArgumentParser) -> None:
    """The options of `export`."""
    verb.add_argument("run", help="a run's folder, any checkpoint that `vitrail info` reads, or `packaged`")
    verb.add_argument("--to", default="onnx", help="some of torch, onnx, openvino, separated by commas (default onnx)")
    verb.add_argument("--out", metavar="FOLDER", type=Path, default=Path("dist"), help="default dist/")
    verb.add_argument("--int8", metavar="IMAGES", help="also in int8, calibrated and judged on these pictures")
    verb.add_argument(
        "--images",
        metavar="IMAGES",
        help="pictures for the certificate (default: half of those of --int8, or the run's own data; the packaged "
        "model has some with it)",
    )
    verb.add_argument("--count", type=int, default=200, help="how many of them (default 200)")
    verb.add_argument("--rounds", type=int, default=5, help="rounds of timing in the certificate (default 5)")
    verb.add_argument(
        "--any-size", action="store_true",
        help="the model works at the size its pictures come in, not at its own; where its family allows it",
    )  # fmt: skip
    verb.add_argument("--licence", help="the licence of the weights, which the artefacts state")
    verb.add_argument("--force", action="store_true", help="write what is outside tolerance, too")


def add_bench(verb: argparse.ArgumentParser) -> None:
    """The options of `bench`."""
    verb.add_argument(
        "what", nargs="+", help="artefacts, folders of them, runs, checkpoints; ratios are to the last in float32"
    )
    verb.add_argument("--batches", default="1,16", help="sizes of batches, separated by commas (default 1,16)")
    verb.add_argument(
        "--threads", default="", help="numbers of threads to try, separated by commas (default: all cores, and half)"
    )
    verb.add_argument(
        "--images",
        metavar="IMAGES",
        help="pictures on which answers are compared (default: the run's own data, or what the package has for it)",
    )
    verb.add_argument("--count", type=int, default=100, help="how many of them (default 100)")
    verb.add_argument(
        "--compile", action="store_true",
        help="runs also compiled, in float32 and bf16; takes a minute for each of them and each batch",
    )  # fmt: skip
    verb.add_argument("--rounds", type=int, default=9, help="rounds in which all take turns (default 9)")
    verb.add_argument("--json", action="store_true", help="print JSON instead of tables")
    verb.add_argument("--html", metavar="FILE", type=Path, help="also write one self-contained HTML page")


def add_table(verb: argparse.ArgumentParser) -> None:
    """The options of `predict` for very many pictures."""
    verb.add_argument(
        "--out", metavar="TABLE", type=Path, dest="table",
        help="write .parquet, .csv or .jsonl; what is in it is not done again",
    )  # fmt: skip
    verb.add_argument(
        "--ray", metavar="WORKERS", type=int, help="with --out: share the work among so many workers of a Ray cluster"
    )


def export(options: argparse.Namespace) -> None:
    """Writes artefacts of a run with a certificate."""
    from vitrail.deploy.certificate import CertifyConfig, file_bytes  # noqa: PLC0415
    from vitrail.deploy.engine import is_artefact  # noqa: PLC0415
    from vitrail.deploy.ship import TARGETS, ShipConfig, ship  # noqa: PLC0415
    from vitrail.errors import nearest  # noqa: PLC0415
    from vitrail.training.trained import open_trained  # noqa: PLC0415

    targets = tuple(dict.fromkeys(word.strip() for word in options.to.split(",") if word.strip()))
    if wrong := [word for word in targets if word not in TARGETS]:
        raise ConfigError(f"there is nothing to export to that is called {wrong[0]!r}; {nearest(wrong[0], TARGETS)}")
    if is_artefact(options.run):
        raise ConfigError(f"{options.run} is exported already; name the run or the checkpoint that it was made from")
    opened = open_trained(options.run)
    run = _run_file(options.run)
    images, calibration = pictures_to_prove(options, run)
    certify = CertifyConfig(images=options.count, rounds=options.rounds)
    config = ShipConfig(targets=targets, any_size=options.any_size, force=options.force, certify=certify)
    confidence, sentence = _confidence(opened, options.run)
    with busy(f"exporting {options.run} to {', '.join(targets)}"):
        told = {"licence": options.licence, "recipe": run.get("recipe")}
        shipped = ship(opened, images, options.out, config, calibration=calibration, confidence=confidence, **told)
    shipped.report.print()
    for file in shipped.files:
        print(f"wrote {file} ({file_bytes(file) / 1e6:.1f} MB)")  # noqa: T201
    print(f"certificate: {options.out / 'certificate.html'}\nconfidence: {sentence}")  # noqa: T201
    if shipped.refused:
        raise DataError(_refusal(shipped.refused))


def _refusal(refused: Mapping[str, str]) -> str:
    """What was not written and why, in one sentence: those with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, why in refused.items():
        by_reason.setdefault(why, []).append(name)
    return f"{len(refused)} not written; " + "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())


def _confidence(opened: "Opened", run: str) -> "tuple[Calibration, str]":
    """How sure the artefacts may sound, by what the run was validated on; and that in words, with what went wrong."""
    from vitrail.cli.serving_calibration import validated  # noqa: PLC0415
    from vitrail.deploy.engine import TorchEngine  # noqa: PLC0415

    wrong: list[str] = []
    with busy(f"fitting the confidence of {run} to its validation"):
        found = validated(TorchEngine(run, opened), run, tell=lambda event, why: wrong.append(why))
    return found, "; ".join((str(found), *wrong))


def pictures_to_prove(options: argparse.Namespace, run: dict[str, Any]) -> "tuple[list[Tensor], list[Tensor] | None]":
    """Pictures that prove artefacts, and others that calibrate int8: never the same."""
    from vitrail.packaged import NAME, packaged_folder  # noqa: PLC0415

    own = str(packaged_folder() / "samples") if options.run == NAME else run.get("source")
    proving = options.images or (None if options.int8 else own)
    if proving is None and options.int8 is None:
        raise ConfigError(f"{options.run} does not say what it was trained on; name pictures: --images photos/")
    with busy(f"reading {options.int8 or proving}"):
        if options.int8 is None:
            return read_pictures(str(proving), options.count), None
        if proving is not None:
            return read_pictures(str(proving), options.count), read_pictures(options.int8, options.count)
        both = read_pictures(options.int8, 2 * options.count)
    return both[1::2], both[::2]


def bench(options: argparse.Namespace) -> None:
    """Measures artefacts and runs side by side, and remembers which of a folder's is the fastest."""
    from vitrail.deploy.bench import BenchConfig, base_of, remember  # noqa: PLC0415
    from vitrail.deploy.bench import bench as measure  # noqa: PLC0415
    from vitrail.deploy.certificate import at_size  # noqa: PLC0415

    threads, batches = _numbers(options.threads, "--threads"), _numbers(options.batches, "--batches")
    config = BenchConfig(batches=batches, rounds=options.rounds)
    engines, folders = _contenders(options, threads)
    name = base_of(engines)
    base = engines[name]
    with busy(f"measuring {len(engines)} in turns"):
        pictures = pictures_to_compare(options, base.labels)
        pixels = at_size(pictures, base.image_size, base)
        found = measure({name: base, **engines}, pixels, config)
    show_report(found.report(), options)
    for folder in folders:
        remember(found, folder)


def pictures_to_compare(options: argparse.Namespace, labels: Sequence[str]) -> "list[Tensor]":
    """Pictures that say something of a model: those named, else those of a run, else what the package has for it.

    Nothing is fetched from elsewhere for it.
    """
    from vitrail.data.known import KNOWN  # noqa: PLC0415
    from vitrail.packaged import packaged_folder, samples  # noqa: PLC0415

    if options.images is not None:
        return read_pictures(options.images, options.count)
    for source in filter(None, (_run_file(what).get("source") for what in options.what)):
        with contextlib.suppress(DataError):  # they may have gone elsewhere since
            if source not in KNOWN:
                return read_pictures(source, options.count)
    if samples() and samples().keys() <= set(labels):
        return read_pictures(str(packaged_folder() / "samples"), options.count)
    if not set(labels).issuperset(KNOWN["fashion-mnist"].classes):
        told = "no pictures are known that this model was made for, so answers are compared on grey ones of clothes"
        warnings.warn(f"{told}; name better ones: --images photos/", Notice, stacklevel=1)
    return read_pictures("demo", options.count)


def _contenders(options: argparse.Namespace, threads: tuple[int, ...]) -> "tuple[dict[str, Engine], list[Path]]":
    """What was named, opened in all ways that are tried; and the folders among it."""
    from vitrail.deploy.bench import open_artefacts, open_compiled  # noqa: PLC0415
    from vitrail.deploy.engine import ARTEFACTS, TorchEngine, artefacts_in  # noqa: PLC0415
    from vitrail.training.trained import names_model, open_trained  # noqa: PLC0415

    engines: dict[str, Engine] = {}
    folders = []
    for what in options.what:
        path = Path(what)
        inside = artefacts_in(path) if path.is_dir() else [path] if path.suffix in ARTEFACTS else []
        if inside:
            engines |= open_artefacts(inside, threads)
            folders += [path] if path.is_dir() else []
        elif names_model(what):
            opened = open_trained(what)
            engines |= open_compiled(what, opened) if options.compile else {}
            engines[what] = TorchEngine(what, opened)
        else:
            raise ConfigError(f"{what} is no artefact, no folder of artefacts, and no run")
    return engines, folders


def answers(engine: "Engine", paths: Sequence[str | Path], *, top: int) -> "Iterator[Prediction]":
    """What an engine says of files, of all below folders, and of what tars and tables of paths hold."""
    from vitrail.deploy.pictures import answer_pictures, find_pictures  # noqa: PLC0415

    return answer_pictures(engine, find_pictures(paths), top=top)


def into_table(engine: "Engine", options: argparse.Namespace, paths: Sequence[str | Path]) -> None:
    """Predictions for very many files, into a table that an interrupted command takes up again."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import track  # noqa: PLC0415

    from vitrail.deploy.bulk import bulk  # noqa: PLC0415
    from vitrail.deploy.cluster import answer_by_cluster, needs_ray  # noqa: PLC0415
    from vitrail.deploy.engine import is_artefact  # noqa: PLC0415
    from vitrail.deploy.identity import identify  # noqa: PLC0415
    from vitrail.deploy.pictures import Picture, answer_pictures, find_pictures  # noqa: PLC0415

    console, workers = Console(stderr=True), options.ray
    if workers is not None:
        needs_ray()
        if not is_artefact(engine.source):
            raise ConfigError(f"--ray takes artefacts, not {engine.source}; write one: vitrail export {engine.source}")

    def answer(left: Sequence[Picture]) -> "Iterator[Prediction]":
        if workers is not None:
            found = answer_by_cluster(engine, left, top=options.top, workers=workers)
        else:
            found = answer_pictures(engine, left, top=options.top)
        hidden = not console.is_terminal
        yield from track(found, "predicting", total=len(left), console=console, transient=True, disable=hidden)

    done = bulk(find_pictures(paths), options.table, answer, model=identify(engine))
    rows = "1 row" if done.rows == 1 else f"{done.rows:,} rows"
    print(f"wrote {options.table}: {rows}, {done.fresh:,} of them new")  # noqa: T201
    if done.broken:
        raise DataError(f"{done.broken} of {done.rows} pictures could not be read; the column `error` says why")


def read_pictures(source: str, count: int) -> "list[Tensor]":
    """Up to `count` pictures uint8 C H W, spread evenly over a folder, files, or data that `train` takes."""
    from vitrail.data.decode import decode  # noqa: PLC0415
    from vitrail.data.source import open_whole  # noqa: PLC0415
    from vitrail.errors import BrokenImage  # noqa: PLC0415
    from vitrail.tasks.predict import image_files  # noqa: PLC0415

    if count < 1:
        raise ConfigError(f"--count is {count}; it must be 1 or more")
    if not Path(source).is_dir() or _is_packed(Path(source)):
        data = open_whole(source)
        return [data.read(index) for index in _spread(len(data), count)]
    files = [path for path in image_files(source) if path.is_file()]
    found = []
    for index in _spread(len(files), count):
        try:
            found.append(decode(files[index].read_bytes(), name=str(files[index])))
        except BrokenImage:
            continue  # a folder of photographs may hold some; what is left decides
    if not found:
        raise DataError(f"{source} has no pictures that can be read")
    return found


def _is_packed(folder: Path) -> bool:
    """Whether the pictures of a folder are in arrays or shards, so that image files in it are something else."""
    from vitrail.data.arrays import looks_like_arrays  # noqa: PLC0415
    from vitrail.data.cifar import looks_like_cifar  # noqa: PLC0415
    from vitrail.data.shards import find_shards  # noqa: PLC0415

    return looks_like_cifar(folder) or looks_like_arrays(folder) or bool(find_shards(folder))


def _spread(total: int, count: int) -> list[int]:
    """So many numbers below a total, at even distances."""
    return [index * total // min(count, total) for index in range(min(count, total))]


def _run_file(source: str) -> dict[str, Any]:
    """What a run says of itself; nothing where the source is a checkpoint alone."""
    from vitrail.packaged import NAME, find_packaged  # noqa: PLC0415

    file = (find_packaged() if source == NAME else Path(source)) / "run.json"
    if not file.is_file():
        return {}
    told: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return told


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        found = tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError as error:
        raise ConfigError(f"{option} {text!r} is no list of whole numbers such as 1,16") from error
    if any(number < 1 for number in found):
        raise ConfigError(f"{option} {text!r}: each must be 1 or more")
    return found
