"""`vitrail advise` against reality: is the advised choice the best of those tried, and does the expected range hold?

    python benchmarks/advice.py left-out                 # every measured set, advised without its own rows; seconds
    python benchmarks/advice_sets.py PACKAGES SETS       # builds sets that the table does not have
    python benchmarks/advice.py tried SETS OUT --device cuda --jobs 6 --minutes 9    # the settings of first_try.py
    python benchmarks/advice.py held SETS OUT [--latency 5]      # advice for these sets, against what was tried
    python benchmarks/advice.py speeds ROWS.json         # rows of measured.json: the time of an answer
    python benchmarks/advice.py speeds ROWS.json --device cuda --machine h200     # and short trainings, under a minute

`left-out` compares with the settings that were tried on that set alone, which are two to five of the table. `tried`
runs several trainings at once and writes OUT/advice.json whenever one ends; what is there is not tried again, so that a
second call goes on. `--epochs 1` makes it short.
"""

import argparse
import json
import math
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from advice_speeds import speeds
from first_try import SETTINGS as SETTINGS_TRIED
from sweep import Job
from sweep import run as run_jobs

import vitrail
from vitrail.advice.choose import NEAR, Evidence, Limits, candidates, judge, ranked
from vitrail.advice.facts import DataFacts
from vitrail.advice.rows import Row, packaged_rows, rows_of_cells
from vitrail.files import write_json
from vitrail.recipes import list_recipes, read_recipe
from vitrail.training.first_model import Sampled
from vitrail.training.first_try import SETTINGS, first_try, measured

MACHINE = "epyc"  # whose speeds the advice of held rests on
CLOSE = 0.01  # of accuracy: what is within this of the best counts as the best


def left_out() -> None:
    """Every set of the table, with advice from the rows of the others."""
    rows = [*rows_of_cells(measured()), *packaged_rows()]
    recipes = {name: read_recipe(name) for name in list_recipes()}
    print(
        "| set | advised | its test accuracy | expected | best tried | its test accuracy | tried |\n" + "|---" * 7 + "|"
    )
    met, inside, judged, alone = 0, 0, 0, 0
    for name in sorted({row.set for row in rows if row.kind == "result" and row.values["task"] == "classify"}):
        own = {row.of: row for row in rows if row.set == name}
        facts = facts_of_row(next(iter(own.values())))
        rest = [row for row in rows if row.set != name]
        cells = [cell for cell in measured() if cell.name != name]
        seen = Sampled(facts.pixels, facts.pixels, grey=facts.grey)
        found = candidates(facts, rest, SETTINGS, recipes, first_try(facts.images, facts.classes, seen, cells=cells))
        evidence = Evidence(rest, {}, {}, "cpu")
        best = ranked([judge(one, facts, Limits(), evidence) for one in found])[0].candidate
        tests = [row.values["test"] for row in best.rows[:NEAR]]
        top = max(own.values(), key=lambda row: row.values["test"])
        cells = [name, best.name, "not tried", f"{100 * min(tests):.0f} to {100 * max(tests):.0f}"]
        if best.name in own:
            value = own[best.name].values["test"]
            cells[2] = f"{100 * value:.1f}"
            judged, met = judged + 1, met + (value >= top.values["test"] - CLOSE)
            alone += len(own) == 1
            inside += min(tests) <= value <= max(tests)
        cells += [top.of, f"{100 * top.values['test']:.1f}", str(len(own))]
        print(f"| {' | '.join(cells)} |")
    print(f"\nwithin {100 * CLOSE:g} point of the best tried on {met} of {judged} sets where the advised one was tried")
    print(f"(on {alone} of them nothing else was tried); the result was inside of the expected range on {inside}")


def facts_of_row(row: Row) -> DataFacts:
    """The facts of a measured set."""
    names = ("task", "images", "classes", "pixels", "grey")
    return DataFacts(source=row.set, targets="", **{name: row.values[name] for name in names})


def tried(sets: Path, out: Path, options: argparse.Namespace) -> None:
    """Every setting on every set, each in a process of its own, several at a time, within a limit of time."""
    found, file = _tried(out), out / "advice.json"
    with tempfile.TemporaryDirectory() as runs:
        todo = [
            Job(f"{folder.name}.{name}", 0, Path(runs) / f"{folder.name}_{name}", [])
            for name in options.settings or SETTINGS_TRIED
            for folder in _sets(sets)
            if name not in found.get(folder.name, {})
        ]
        todo = [job._replace(command=_training(job, sets, options)) for job in todo]
        print(f"{len(todo)} trainings", flush=True)
        out.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        for job, ended in run_jobs(todo, parallel=options.jobs, seconds=60 * options.minutes):
            name, _, setting = job.variant.partition(".")
            print(
                f"{job.variant}: {'trained' if ended else 'not trained'} after {time.monotonic() - began:.0f} s",
                flush=True,
            )
            if not ended:
                print(job.folder.with_suffix(".log").read_text(errors="replace")[-1000:], flush=True)
                continue
            metrics = json.loads((job.folder / "best.json").read_text())["metrics"]
            kept = {"accuracy": metrics["test_accuracy"], "val_accuracy": metrics["accuracy"]}
            found.setdefault(name, {})[setting] = kept
            write_json(file, found)
            shutil.rmtree(job.folder)


def _training(job: Job, sets: Path, options: argparse.Namespace) -> list[str]:
    name, _, setting = job.variant.partition(".")
    words = [*shlex.split(SETTINGS_TRIED[setting]), "--out", str(job.folder)]
    words += [] if options.device is None else ["--device", options.device]
    if options.epochs is not None and "probe=linear" not in words and setting != "default":
        words += ["--epochs", str(options.epochs)]
    return [sys.executable, "-m", "vitrail", "train", str(sets / name), *words]


def _sets(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if (path / "done").exists())


def _tried(out: Path) -> dict[str, dict[str, Any]]:
    """What was tried: OUT/advice.json, and single files of `first_try.py run`."""
    file = out / "advice.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for other in sorted(out.glob("*.*.json")):
        name, setting, _ = other.name.split(".")
        found.setdefault(name, {})[setting] = json.loads(other.read_text())
    return found


def held(sets: Path, out: Path, latency: float | None) -> None:
    """Advice for sets on disk, beside all settings that were tried there, the default included.

    With a limit on latency, beside those of them that keep it on the named machine.
    """
    every, close, equal, inside = _tried(out), list[bool](), list[bool](), list[bool]()
    for folder in _sets(sets):
        advised = vitrail.advise(folder, device=MACHINE, latency=latency)
        if advised.choice is None:
            continue
        fits = {one.candidate.name for one in advised.ranked if one.fits}
        scores = {name: one["accuracy"] for name, one in every.get(folder.name, {}).items()}
        if latency is not None:
            scores = {name: score for name, score in scores.items() if name.removeprefix("recipe-") in fits}
        choice = advised.choice.candidate
        name = next((one for one in (choice.name, choice.like, f"recipe-{choice.name}") if one in scores), None)
        if name is None:
            print(f"{folder.name}: advised {choice.name}, which was not tried")
            continue
        top = max(scores, key=scores.__getitem__)
        images = len(list((folder / "test").glob("*/*")))
        behind, half = scores[top] - scores[name], _spread(scores[top], scores[name], images)
        tests = [row.values["test"] for row in choice.rows[:NEAR]]
        close.append(behind <= CLOSE)
        equal.append(behind <= max(CLOSE, half))
        inside.append(min(tests) <= scores[name] <= max(tests))
        print(f"{folder.name}: advised {choice.name} {100 * scores[name]:.1f}, best of {len(scores)} tried {top}")
        print(
            f"  {100 * scores[top]:.1f}, behind by {100 * behind:.1f} (interval +-{100 * half:.1f}, {images} images);"
        )
        print(
            f"  expected {100 * min(tests):.0f} to {100 * max(tests):.0f}, training {advised.choice.seconds or 0:.0f} s"
        )
        print("  " + ", ".join(f"{one} {100 * score:.1f}" for one, score in sorted(scores.items())))
    print(
        f"within {100 * CLOSE:g} point of the best of all tried on {sum(close)} of {len(close)} sets; within that or\n"
        f"the 95 % interval on {sum(equal)}; inside of the expected range on {sum(inside)}. The interval takes the\n"
        "runs as independent, since their predictions are not kept: one of pairs would be narrower"
    )


def _spread(first: float, second: float, images: int) -> float:
    """Half of the 95 % interval of a difference of two shares of as many images, taken as independent."""
    return 1.96 * math.sqrt((first * (1 - first) + second * (1 - second)) / images)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("left-out", "tried", "held", "speeds"))
    parser.add_argument("paths", nargs="*", type=Path, metavar="SETS OUT")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS_TRIED, metavar="NAME", help="of first_try.py")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at once")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--device")
    parser.add_argument("--machine", help="the name of the machine in the rows of speeds (a CPU: epyc)")
    parser.add_argument("--latency", type=float, metavar="MS", help="of held: a limit on an answer")
    parser.add_argument("--epochs", type=int, help="of all that train for epochs, for a short try")
    chosen = parser.parse_args(words)
    if chosen.verb == "tried":
        tried(*chosen.paths, chosen)
        return
    if chosen.verb == "speeds":
        speeds(*chosen.paths, device=chosen.device or "cpu", name=chosen.machine)
        return
    if chosen.verb == "held":
        held(*chosen.paths, chosen.latency)
        return
    left_out()


if __name__ == "__main__":
    main()
