"""The full runs of the lab on one GPU: each seed is a process, several run at a time, and a second call goes on.

    python benchmarks/lab_round.py pack DATA cifar10=FOLDER fashion-mnist=FOLDER     # for a machine without a network
    python benchmarks/lab_round.py run --data DATA --out OUT --minutes 9
    python benchmarks/lab_round.py run --data DATA --out OUT --minutes 9 --before lab.json
    python benchmarks/lab_round.py keep lab.json                                     # into src/vitrail/lab/results
    python benchmarks/lab_round.py run --tiny --out OUT                              # seconds on a CPU

`pack` takes folders as `cifar10:FOLDER` does, and writes sheets of WebP at quality 70: 28 MB, with losses.
`run` measures what the package does not have, and begins with all seeds of the longest experiment, so that nothing long
is left for the end. OUT/lab.json is written again whenever a seed ends: only what runs when the time is up is lost.
`--before` takes what an earlier call wrote.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from sweep import Job
from sweep import run as run_jobs

from vitrail.data.sources.catalogue import read_known
from vitrail.files import write_json
from vitrail.hardware import device
from vitrail.lab import EXPERIMENTS, Experiment, chosen
from vitrail.lab.fingerprints import fingerprint
from vitrail.lab.fitting import whole
from vitrail.lab.records import Record, published, read_record, run_file, write_record
from vitrail.lab.running import joined, measure_seed
from vitrail.strict_json import read_json

NAMES = (  # those that need a GPU, the longest first
    "data-size", "scaling", "long-range", "robustness", "approximation", "attention-entropy", "pac-bayes", "shape-bias",
    "low-pass",
)  # fmt: skip
TINY = ("temperature", "diagonal-query")
RESULTS = Path(__file__).parents[1] / "src" / "vitrail" / "lab" / "results"
COLUMNS, SHEET = 50, 2500  # images
QUALITY = 70

Array = np.ndarray[Any, Any]


def pack(folder: Path, sources: Sequence[str]) -> None:
    """Sheets NAME/PART-NUMBER.webp and labels NAME/PART.npz of datasets, given as NAME=FOLDER."""
    for source in sources:
        name, _, path = source.partition("=")
        found = read_known(name, folder=Path(path))
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, data in (("train", found.train), ("test", found.test)):
            assert data is not None
            images = whole(data, torch.arange(len(data))).permute(0, 2, 3, 1).numpy()  # N H W C
            labels = data.targets["label"].numpy().astype(np.uint8)
            np.savez(folder / name / f"{part}.npz", labels=labels, channels=images.shape[3])
            for number, start in enumerate(range(0, len(images), SHEET)):
                sheet = _sheet(images[start : start + SHEET])
                file = folder / name / f"{part}-{number:03}.webp"
                sheet.save(file, quality=QUALITY, method=4)
        size = sum(file.stat().st_size for file in (folder / name).iterdir())
        print(f"{name}: {size / 1e6:.1f} MB", flush=True)


def _sheet(images: Array) -> Image.Image:
    """Images N H W C in rows of COLUMNS; what is left of the last row is black."""
    count, height, width, channels = images.shape
    rows = -(-count // COLUMNS)
    cells = np.zeros((rows * COLUMNS, height, width, channels), np.uint8)
    cells[:count] = images
    sheet = cells.reshape(rows, COLUMNS, height, width, channels).swapaxes(1, 2)
    pixels = sheet.reshape(rows * height, COLUMNS * width, channels)
    return Image.fromarray(np.repeat(pixels, 3, axis=2) if channels == 1 else pixels)


def unpack(folder: Path, cache: Path) -> None:
    """The arrays that experiments find in the cache."""
    for source in sorted(path for path in folder.iterdir() if path.is_dir()):
        to = cache / "data" / source.name
        to.mkdir(parents=True, exist_ok=True)
        for part in ("train", "test"):
            facts = np.load(source / f"{part}.npz")
            labels = facts["labels"]
            sheets = [np.asarray(Image.open(path).convert("RGB")) for path in sorted(source.glob(f"{part}-*.webp"))]
            images = np.concatenate([_cut(sheet) for sheet in sheets])[: len(labels)]
            np.save(to / f"{part}_images.npy", images[..., 0] if facts["channels"] == 1 else images)
            np.save(to / f"{part}_labels.npy", labels.astype(np.int64))


def _cut(sheet: Array) -> Array:
    """The images N H W C of a sheet."""
    side = sheet.shape[1] // COLUMNS
    cells = sheet.reshape(-1, side, COLUMNS, side, sheet.shape[2]).swapaxes(1, 2)
    return cells.reshape(-1, side, side, sheet.shape[2])


def measure(name: str, seed: int, *, quick: bool, where: torch.device, folder: Path) -> None:
    """One seed of one experiment, in this process."""
    (experiment,) = chosen(name)
    measure_seed(experiment, seed, quick=quick, device=where, folder=folder, say=print)


def collect(
    experiments: Sequence[Experiment], folder: Path, *, quick: bool, where: torch.device, packed: bool
) -> dict[str, Any]:
    """The records of what has been measured with this code, by experiment, with the command that measured it."""
    found = {}
    for experiment in experiments:
        settings = experiment.quick if quick else experiment.full
        files = [run_file(folder, experiment, settings, device=where.type, seed=seed) for seed in range(100)]
        records = [read_record(file) for file in files if file.exists()]
        if records := [record for record in records if record.fingerprint == fingerprint(experiment)]:
            record = joined(experiment, records, quick=quick)
            found[experiment.name] = replace(record, command=told(record, packed=packed)).to_data()
    return found


def missing() -> list[str]:
    """The experiments that need a GPU and whose full size the package lacks, the longest first."""

    def known(name: str) -> bool:
        (experiment,) = chosen(name)
        record = published(experiment)
        return record is not None and record.fingerprint == fingerprint(experiment)

    return [name for name in NAMES if not known(name)]


def told(record: Record, *, packed: bool) -> str:
    """The command line that gives these results: that of `run` where the images are those of `pack`."""
    if not packed or not record.settings.get("data"):
        return record.command
    words = f"python benchmarks/lab_round.py run --names {record.experiment} --seeds {len(record.runs)} --out OUT"
    return f"{words} --data DATA, images stored as WebP with losses: lab_round.py pack DATA NAME=FOLDER"


def spread(data: Mapping[str, Any], folder: Path, *, quick: bool) -> None:
    """Writes the seeds of an earlier call where a new one looks for them."""
    for experiment in EXPERIMENTS:
        if experiment.name not in data:
            continue
        record = Record.from_data(data[experiment.name], "--before")
        settings = experiment.quick if quick else experiment.full
        for run in record.runs:
            file = run_file(folder, experiment, settings, device=record.device, seed=run.seed)
            write_record(file, Record(**{**vars(record), "runs": (run,)}))


def work(args: argparse.Namespace) -> None:
    """All seeds of all experiments that are missing, until the time is up."""
    began, quick, where = time.monotonic(), args.tiny, device("cpu" if args.tiny else args.device)
    experiments = [chosen(name)[0] for name in args.names or (TINY if args.tiny else missing())]
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if args.data is not None:
            unpack(args.data, folder / "cache")
            environment["VITRAIL_CACHE"] = str(folder / "cache")
        os.environ |= environment  # of the processes that are started
        if args.before is not None:
            spread(read_json(args.before), folder / "results", quick=quick)
        known = collect(experiments, folder / "results", quick=quick, where=where, packed=args.data is not None)
        todo = [
            Job(
                experiment.name,
                seed,
                folder / f"{experiment.name}-{seed}",
                _command(experiment.name, seed, args, folder),
            )
            for experiment in experiments
            for seed in range(args.seeds)
            if seed not in {run["seed"] for run in known.get(experiment.name, {}).get("runs", ())}
        ]
        print(f"{len(todo)} of {args.seeds * len(experiments)} seeds to measure on {where}", flush=True)
        for job, ended in run_jobs(todo, parallel=args.jobs, seconds=60 * args.minutes - (time.monotonic() - began)):
            what = "measured" if ended else "not measured"
            print(f"{job.variant}, seed {job.seed}: {what} after {time.monotonic() - began:.0f} s", flush=True)
            if not ended:
                print(job.folder.with_suffix(".log").read_text(errors="replace")[-2000:], flush=True)
            measured = collect(experiments, folder / "results", quick=quick, where=where, packed=args.data is not None)
            write_json(args.out / "lab.json", measured)
        shutil.rmtree(folder / "cache", ignore_errors=True)
    print(f"ended after {time.monotonic() - began:.0f} s", flush=True)


def _command(name: str, seed: int, args: argparse.Namespace, folder: Path) -> list[str]:
    words = [sys.executable, __file__, "seed", name, str(seed), "--results", str(folder / "results")]
    return [*words, "--tiny"] if args.tiny else [*words, "--device", args.device]


def keep(file: Path, to: Path) -> None:
    """Stores the records of experiments with three seeds or more where the package reads them."""
    for name, data in read_json(file).items():
        record = Record.from_data(data, str(file))
        if len(record.runs) < 3:
            print(f"{name}: left out, {len(record.runs)} seeds are too few")
            continue
        write_json(to / f"{name}.json", record.to_data())
        print(f"{name}: {len(record.runs)} seeds kept")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("folder", type=Path)
    packing.add_argument("sources", nargs="+", metavar="NAME=FOLDER")
    running = verbs.add_parser("run")
    running.add_argument("--out", type=Path, required=True)
    running.add_argument("--data", type=Path, help="what `pack` wrote; without it, experiments look in the cache")
    running.add_argument("--before", type=Path, help="lab.json of an earlier call")
    running.add_argument("--names", nargs="+", help=f"of {', '.join(NAMES)} (default: what the package lacks)")
    running.add_argument("--seeds", type=int, default=3)
    running.add_argument("--jobs", type=int, default=5, help="processes at a time")
    running.add_argument("--minutes", type=float, default=9.0)
    one = verbs.add_parser("seed")
    one.add_argument("name")
    one.add_argument("seed", type=int)
    one.add_argument("--results", type=Path, required=True)
    for verb in (running, one):
        verb.add_argument("--device", default="cuda")
        verb.add_argument("--tiny", action="store_true", help="the quick form, on a CPU")
    keeping = verbs.add_parser("keep")
    keeping.add_argument("file", type=Path)
    keeping.add_argument("--to", type=Path, default=RESULTS)
    args = parser.parse_args(words)
    if args.verb == "pack":
        pack(args.folder, args.sources)
    elif args.verb == "run":
        work(args)
    elif args.verb == "keep":
        keep(args.file, args.to)
    else:
        where = device("cpu" if args.tiny else args.device)
        measure(args.name, args.seed, quick=args.tiny, where=where, folder=args.results)


if __name__ == "__main__":
    main()
