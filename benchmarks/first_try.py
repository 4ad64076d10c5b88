"""The first try: `vitrail train DATA` with nothing named, against scikit-learn and against other settings of vitrail.

    python benchmarks/first_try_sets.py PACKAGES SETS
    python benchmarks/first_try.py baselines SETS OUT            # needs scikit-learn and scikit-image
    python benchmarks/first_try.py run SETS OUT [--settings probe-photos,tune-late] [--sets roads,hands] [--jobs 2]
    python benchmarks/first_try.py table OUT                     # Markdown, and whether the targets are met
    python benchmarks/first_try.py cells SETS OUT                # writes the table that the default is chosen by

Every result is kept as OUT/SET.NAME.json and not measured again. Settings are commands as a person types them; all use
the same training images, and test images that none of them sees before the end.
"""

import argparse
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.training import first_try
from vitrail.training.first_model import Sampled
from vitrail.training.first_try import SETTINGS as FIRST_TRIES

Array = np.ndarray[Any, Any]
PHOTOS = "--from packaged-photos"
MEANS = f"{PHOTOS} --set probe=linear --set options.pool_cells=1"  # a head that reads no cells of the image
SETTINGS = {  # the default first, and eight that it is held against, with variants of a linear head
    "default": "",
    "probe-packaged": "--from packaged --set probe=linear",
    "probe-photos": f"{PHOTOS} --set probe=linear",
    "probe-means": MEANS,
    "probe-means-256": f"{MEANS} --image-size 256",
    "probe-means-flips": f"{MEANS} --set augment.flip=true",
    "probe-photos-96": f"{PHOTOS} --set probe=linear --image-size 96",
    "probe-photos-64": f"{PHOTOS} --set probe=linear --image-size 64",
    "lora-packaged": "--from packaged --lora 8",
    "tune-packaged": "--from packaged",
    "tune-photos": f"{PHOTOS} --set fit_head=true",
    "tune-late": f"{PHOTOS} --set fit_head=true --freeze-until stages.3 --epochs 8",
    "scratch-conv": "--model vit32_conv",
    "scratch-tiny": "--model vit_tiny_patch16 --image-size 128",
    "recipe-demo": "--recipe demo",
}
# Of probe-photos, and a recipe for one set; the others are eight.
VARIANTS = ("probe-means", "probe-means-256", "probe-means-flips", "probe-photos-96", "probe-photos-64", "recipe-demo")
LIMIT = 3600  # seconds of processor time for one run: an hour of one core
MARGIN = 0.02  # within this of the best setting


def listed(folder: Path) -> tuple[list[Path], Array]:
    """All images of a part, and their classes."""
    classes = sorted(path.name for path in (folder.parent / "train").iterdir())
    paths = [path for name in classes for path in sorted((folder / name).glob("*"))]
    return paths, np.array([classes.index(path.parent.name) for path in paths])


def logistic() -> Any:
    """Logistic regression; three folds choose the penalty."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipe = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300, tol=1e-3))
    return GridSearchCV(pipe, {"logisticregression__C": [1e-4, 1e-3, 1e-2, 1e-1]}, cv=3)


def forest() -> Any:
    """A random forest of 300 trees."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(300, random_state=0)


def svm() -> Any:
    """A support vector machine with a Gaussian kernel; three folds choose its penalty."""
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    return GridSearchCV(make_pipeline(StandardScaler(), SVC()), {"svc__C": [1.0, 10.0]}, cv=3)


BASELINES: dict[str, tuple[str, Callable[[], Any]]] = {
    "logistic": ("pixels", logistic),
    "forest": ("pixels", forest),
    "hog-svm": ("hog", svm),
}


def baselines(sets: Path, out: Path, chosen: list[str]) -> None:
    """Fits what is not measured yet."""
    from backbone import raw  # the script beside this one

    for folder in found_sets(sets, chosen):
        inputs = dict[str, tuple[Array, Array, Array, Array]]()
        for name, (kind, build) in BASELINES.items():
            if (file := out / f"{folder.name}.{name}.json").exists():
                continue
            began = time.perf_counter()
            if kind not in inputs:
                (paths, labels), (tests, truth) = listed(folder / "train"), listed(folder / "test")
                inputs[kind] = raw(kind, paths), labels, raw(kind, tests), truth
            train, labels, test, truth = inputs[kind]
            score = build().fit(train, labels).score(test, truth)
            write(file, {"accuracy": float(score), "seconds": time.perf_counter() - began})


def found_sets(sets: Path, chosen: list[str]) -> list[Path]:
    """The sets that are built, or those of them that were asked for."""
    return [
        path for path in sorted(sets.iterdir()) if (path / "done").exists() and path.name in (chosen or [path.name])
    ]


def write(file: Path, result: dict[str, Any]) -> None:
    """Keeps a result."""
    file.write_text(json.dumps(result))
    print(f"{file.stem}: {100 * result['accuracy']:.1f} % in {result['seconds']:.0f} s", flush=True)


def run(folder: Path, out: Path, name: str, device: str | None) -> None:
    """One run of vitrail in a process of its own."""
    file, into = out / f"{folder.name}.{name}.json", out / "runs" / f"{folder.name}.{name}"
    if file.exists():
        return
    words = ["train", str(folder), "--out", str(into), *shlex.split(SETTINGS[name])]
    command = [sys.executable, "-m", "vitrail", *words, *(["--device", device] if device else [])]
    shutil.rmtree(into, ignore_errors=True)  # of a run that did not end
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    status, errors = limited(command)
    if status == -signal.SIGXCPU:
        print(f"{file.stem}: did not end within {LIMIT} seconds of processor time", flush=True)
        return
    if status:
        last = errors.strip().splitlines()[-1:] or [f"exit status {status}"]
        print(f"{file.stem}: failed: {last[0]}", flush=True)
        return
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime  # of this run alone with --jobs 1
    metrics = json.loads((into / "best.json").read_text())["metrics"]
    kept = {key: metrics.get(key) for key in ("test_balanced_accuracy", "test_nll")}
    seconds = {"seconds": time.perf_counter() - began, "cpu_seconds": cpu}
    write(file, {"accuracy": metrics["test_accuracy"], "val_accuracy": metrics["accuracy"]} | kept | seconds)


def limited(command: list[str]) -> tuple[int, str]:
    """Runs a command that ends with the signal SIGXCPU after LIMIT; its exit status and standard error."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (LIMIT, LIMIT + 60))
        errors = process.communicate()[1]
    return process.returncode, errors


def read_results(out: Path) -> dict[str, dict[str, dict[str, float]]]:
    """All results, by set and name."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for file in sorted(out.glob("*.json")):
        folder, name = file.stem.split(".")
        found.setdefault(folder, {})[name] = json.loads(file.read_text())
    return found


def table(out: Path) -> None:
    """The table in Markdown, and whether the default beats the baselines and is near the best setting.

    The default of a set is what the package would choose for it if this set had not been measured.
    """
    found = read_results(out)
    for cell in first_try.measured():
        choice, each = left_out(cell), found.get(cell.name, {})
        if choice in each and "default" not in each:
            each["default"] = each[choice]
    columns = [name for name in (*BASELINES, *SETTINGS) if any(name in each for each in found.values())]
    print("| set | " + " | ".join(columns) + " | settings | seconds |\n" + "|---" * (len(columns) + 3) + "|")
    wins, ties, rivals, judged, slowest, far = 0, 0, 0, 0, 0.0, list[str]()
    for folder, each in found.items():
        scores = {name: each[name]["accuracy"] for name in columns if name in each}
        best = max(scores.values())
        cells = [f"{100 * scores[name]:.1f}" if name in scores else "" for name in columns]
        bold = [f"**{cell}**" if scores.get(name) == best else cell for name, cell in zip(columns, cells, strict=True)]
        seconds = two_cores(each["default"]) if "default" in each else 0.0
        named = [name for name in SETTINGS if name != "default" and name in scores]
        counted = len({"probe-photos" if name in VARIANTS else name for name in named})
        print(f"| {folder} | " + " | ".join(bold) + f" | {counted} | {seconds:.0f} |")
        if "default" in scores:
            if theirs := [scores[name] for name in BASELINES if name in scores]:
                wins, ties = wins + (scores["default"] > max(theirs)), ties + (scores["default"] == max(theirs))
                rivals += 1
            behind = max(scores[name] for name in named) - scores["default"] if named else 0.0
            far += [f"{folder} ({100 * behind:.1f} points, of {len(named)})"] if behind > MARGIN else []
            judged, slowest = judged + 1, max(slowest, seconds)
    print(f"\nthe default beats all baselines on {wins} of {rivals} sets, equals the best of them on {ties}, and is")
    print(f"within two points of the best setting measured on {judged - len(far)} of {judged}; the slowest took")
    print(f"{slowest / 60:.1f} minutes on two cores; further behind the best setting on: {', '.join(far) or 'none'}")


def left_out(cell: first_try.Cell) -> str:
    """The setting that the package would choose for a set, on a CPU, if the set had not been measured."""
    rest, like = [one for one in first_try.measured() if one is not cell], cell.pixels
    return first_try.first_try(cell.images, cell.classes, Sampled(like, like, grey=cell.grey), cells=rest).name


def two_cores(result: dict[str, float]) -> float:
    """The seconds of a run on two cores: half of the seconds of all cores."""
    return result.get("cpu_seconds", 2 * result["seconds"]) / 2


def cells(sets: Path, out: Path) -> None:
    """Writes what was measured to the package: `vitrail train` decides by it where nothing is named."""
    found, every = [], read_results(out)
    for folder in found_sets(sets, []):
        each = {name: result for name, result in every.get(folder.name, {}).items() if name in FIRST_TRIES}
        results = {
            name: [round(result["val_accuracy"], 4), round(result["accuracy"], 4), round(two_cores(result), 1)]
            for name, result in each.items()
        }
        paths, labels = listed(folder / "train")
        images = [Image.open(path) for path in paths[:: max(len(paths) // 16, 1)]]
        pixels = int(np.median([max(image.size) for image in images]))
        grey = all(image.mode == "L" for image in images)
        about = {"images": len(paths), "classes": len(set(labels.tolist())), "pixels": pixels, "grey": grey}
        found += [{"name": folder.name} | about | {"results": results}] if results else []
    file = Path(first_try.__file__).with_suffix(".json")
    lines = ",\n  ".join(json.dumps(cell) for cell in found)
    file.write_text(f'{{"made_by": "benchmarks/first_try.py cells", "cells": [\n  {lines}\n]}}\n')
    print(f"wrote {file}: {len(found)} sets")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("baselines", "run", "table", "cells"))
    parser.add_argument("paths", nargs="+", type=Path, metavar="SETS OUT")
    parser.add_argument("--sets", default="", help="names, separated by commas (default: all that are built)")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--device")
    chosen = parser.parse_args()
    *sets, out = chosen.paths
    out.mkdir(parents=True, exist_ok=True)
    names = [name for name in chosen.sets.split(",") if name]
    if chosen.verb == "baselines":
        baselines(sets[0], out, names)
    elif chosen.verb == "run":
        with ThreadPoolExecutor(chosen.jobs) as pool:
            todo = [(folder, name) for name in chosen.settings.split(",") for folder in found_sets(sets[0], names)]
            list(pool.map(lambda each: run(each[0], out, each[1], chosen.device), todo))
    elif chosen.verb == "cells":
        cells(sets[0], out)
    else:
        table(out)


if __name__ == "__main__":
    main()
