"""All settings of the first try on all sets on one GPU, the most valuable first, until a limit of time.

    python benchmarks/first_try_sets.py PACKAGES SETS --compact 800 500    # SETS.compact can be carried
    python benchmarks/first_try_round.py run SETS.compact RESULT.json --seconds 280 --jobs 12 --device cuda
    python benchmarks/first_try_round.py table RESULT.json                      # Markdown
    python benchmarks/first_try_round.py split RESULT.json OUT                  # for `first_try.py table OUT`

First every setting on every set, then, on some sets, settings with few images of a class. Processes that have imported
everything make one run after the other; RESULT.json is written anew after each. `--sets` and `--settings` choose some;
`--compile cudagraphs` records steps on a GPU: the same arithmetic with less waiting. The default is not run: it is the
setting that the package would choose on a CPU if the set were not in its table.
"""

import argparse
import json
import multiprocessing
import os
import queue
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from first_try import SETTINGS, found_sets

from vitrail.packaged import PHOTOS
from vitrail.training.first_try import SETTINGS as FIRST_TRIES
from vitrail.training.run import train

MEANS: dict[str, Any] = {"start": PHOTOS, "probe": "linear", "options": {"pool_cells": 1}}
OTHERS: dict[str, dict[str, Any]] = {
    "probe-means": MEANS,
    "probe-means-256": {**MEANS, "image_size": 256},
    "probe-means-flips": {**MEANS, "augment": {"flip": True}},
    "probe-photos-96": {"start": PHOTOS, "probe": "linear", "image_size": 96},
    "probe-photos-64": {"start": PHOTOS, "probe": "linear", "image_size": 64},
    "scratch-conv": {"model": "vit32_conv"},
    "recipe-demo": {"recipe": "demo"},
    "scratch-tiny": {"model": "vit_tiny_patch16", "image_size": 128},
}
ORDER = (
    "probe-means",
    "probe-means-flips",
    "probe-means-256",
    "probe-photos",
    "probe-photos-96",
    "probe-photos-64",
    "probe-packaged",
    "tune-photos",
    "lora-packaged",
    "tune-packaged",
    "tune-late",
)
SHOTS = (10, 50)  # images of a class; all of them are measured in any case
FEW_SETS = ("clothing", "clipart", "xrays", "solar", "textiles", "cells")
FEW_SETTINGS = (
    "probe-means", "probe-packaged", "tune-photos", "lora-packaged", "tune-packaged", "tune-late", "scratch-conv",
)  # fmt: skip


class Job(NamedTuple):
    """One run: a set, a setting, and how many images of a class it learns from (0: all)."""

    folder: Path
    setting: str
    shots: int = 0


class Place(NamedTuple):
    """Where runs go and what they run on."""

    scratch: Path
    device: str | None
    compile: str | None


def jobs(sets: list[Path], settings: list[str], shots: tuple[int, ...] = SHOTS) -> Iterator[Job]:
    """All runs, the most valuable first."""
    known = [*(name for name in ORDER if name in settings), *(name for name in settings if name not in ORDER)]
    yield from (Job(folder, name) for name in known for folder in sets)
    few = [folder for folder in sets if folder.name in FEW_SETS]
    yield from (Job(folder, name, n) for name in FEW_SETTINGS if name in known for n in shots for folder in few)


def keywords(setting: str) -> dict[str, Any]:
    """A setting as keywords of `train`."""
    if setting in OTHERS:
        return OTHERS[setting]
    return {"start": FIRST_TRIES[setting].start, **FIRST_TRIES[setting].changes}


def few(folder: Path, shots: int, out: Path) -> Path:
    """A set with a seeded choice of so many training images of a class, and all test images."""
    draw = random.Random(0)
    for label in sorted(path for path in (folder / "train").iterdir()):
        paths = sorted(label.iterdir())
        (out / "train" / label.name).mkdir(parents=True)
        for path in draw.sample(paths, min(shots, len(paths))):
            os.link(path, out / "train" / label.name / path.name)
    (out / "test").symlink_to((folder / "test").resolve())
    return out


def measure(job: Job, place: Place) -> dict[str, Any]:
    """One run, without its report; an error is a result, too."""
    found = {"set": job.folder.name, "setting": job.setting, "shots": job.shots}
    began = time.perf_counter()
    scratch = Path(tempfile.mkdtemp(dir=place.scratch))
    options = keywords(job.setting)
    if place.compile is not None and "probe" not in options:
        options = {**options, "compile": place.compile}
    try:
        data = few(job.folder, job.shots, scratch / job.folder.name) if job.shots else job.folder
        run = train(str(data), folder=scratch / "run", device=place.device, silent=True, **options)
    except Exception as error:  # the others go on
        return found | {"error": f"{type(error).__name__}: {error}"[:300], "seconds": time.perf_counter() - began}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    kept = {"accuracy": "test_accuracy", "val_accuracy": "accuracy", "test_balanced_accuracy": "test_balanced_accuracy"}
    scores = {name: run.metrics.get(key) for name, key in kept.items()}
    about = {"images": len(run.packs.train) + len(run.packs.val), "epochs": len(run.history)}
    return found | scores | about | {"seconds": time.perf_counter() - began}


def work(number: int, todo: Any, done: Any, place: Place) -> None:
    """One process: makes runs until nothing is left to do; on two cores, where no further processes decode images."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(number + step) % len(cores)] for step in range(2)})
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    while (job := todo.get()) is not None:
        done.put(measure(job, place))


def run(
    todo: list[Job], known: list[dict[str, Any]], out: Path, place: Place, *, processes: int, seconds: float,
    began: float,
) -> None:  # fmt: skip
    """Makes all runs that are not known, or as many as end in time; those under way then are stopped."""
    ended = {(one["set"], one["setting"], one["shots"]) for one in known}
    todo = [job for job in todo if (job.folder.name, job.setting, job.shots) not in ended]
    context = multiprocessing.get_context("fork")  # nothing is imported again; the GPU is not in use yet
    waiting, done = context.Queue(), context.Queue()
    for job in [*todo, *[None] * processes]:
        waiting.put(job)
    workers = [context.Process(target=work, args=(number, waiting, done, place)) for number in range(processes)]
    for worker in workers:
        worker.start()
    results = [*known]
    about = {"torch": torch.__version__, "compile": place.compile, "processes": processes, "runs": len(todo)}
    while len(results) < len(known) + len(todo) and (left := began + seconds - time.time()) > 0:
        if done.empty() and not any(worker.is_alive() for worker in workers):
            break
        try:
            results.append(done.get(timeout=min(left, 5.0)))
        except queue.Empty:
            continue
        write(out, {**about, "seconds": time.time() - began, "results": results})
        one = results[-1]
        said = one.get("error") or f"{100 * one['accuracy']:.1f} %"
        print(f"{one['set']}.{one['setting']} {one['shots'] or 'all'}: {said} in {one['seconds']:.0f} s", flush=True)
    for worker in workers:
        worker.kill()  # a run that is told to end would write a checkpoint first
    print(f"{len(results) - len(known)} of {len(todo)} runs in {time.time() - began:.0f} s", flush=True)


def write(out: Path, found: dict[str, Any]) -> None:
    """Writes the results so that the file is whole at any time."""
    new = out.with_suffix(".new")
    new.write_text(json.dumps(found))
    new.replace(out)


def table(file: Path) -> None:
    """Test accuracy of settings by set, and with few images of a class; in Markdown."""
    results = [one for one in json.loads(file.read_text())["results"] if "error" not in one]
    for shots in sorted({one["shots"] for one in results}):
        found = dict[str, dict[str, float]]()
        for one in results:
            if one["shots"] == shots:
                found.setdefault(one["set"], {})[one["setting"]] = one["accuracy"]
        columns = [name for name in SETTINGS if any(name in each for each in found.values())]
        print(f"\n{f'{shots} images a class' if shots else 'all images'}\n")
        print("| set | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
        for folder, each in sorted(found.items()):
            best = max(each.values())
            cells = [f"{100 * each[name]:.1f}" if name in each else "" for name in columns]
            bold = [
                f"**{cell}**" if each.get(name) == best else cell for name, cell in zip(columns, cells, strict=True)
            ]
            print(f"| {folder} | {' | '.join(bold)} |")


def split(file: Path, out: Path) -> None:
    """Every result with all images as OUT/SET.NAME.json, which `first_try.py table OUT` reads."""
    out.mkdir(parents=True, exist_ok=True)
    for one in json.loads(file.read_text())["results"]:
        if "error" not in one and not one["shots"]:
            (out / f"{one['set']}.{one['setting']}.json").write_text(json.dumps(one))


def main() -> None:
    began = time.time()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "table", "split"))
    parser.add_argument("paths", nargs="+", type=Path, metavar="SETS RESULT OUT")
    parser.add_argument("--sets", default="", help="names, separated by commas (default: all that are built)")
    parser.add_argument("--settings", default=",".join(name for name in SETTINGS if name != "default"))
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--before", type=Path, help="RESULT.json of an earlier call, whose runs are not made again")
    parser.add_argument("--began", type=float, default=began, help="when the seconds began, in those since 1970")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--device")
    parser.add_argument("--compile", choices=("cudagraphs",))
    chosen = parser.parse_args()
    *sets, out = chosen.paths
    if chosen.verb == "table":
        table(out)
        return
    if chosen.verb == "split":
        split(sets[0], out)
        return
    wanted, names = [name for name in chosen.sets.split(",") if name], chosen.settings.split(",")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        place = Place(Path(scratch), chosen.device, chosen.compile)
        todo = list(jobs(found_sets(sets[0], wanted), names))
        earlier = json.loads(chosen.before.read_text())["results"] if chosen.before else []
        known = [one for one in earlier if "error" not in one]
        run(todo, known, out, place, processes=chosen.jobs, seconds=chosen.seconds, began=chosen.began)


if __name__ == "__main__":
    main()
