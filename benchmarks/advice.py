"""`vitrail advise` against reality: is the advised choice the best of those tried, and does the expected range hold?

    python benchmarks/advice.py left-out                 # every measured set, advised without its own rows; seconds
    python benchmarks/advice.py digits SETS              # builds a set that the table does not have (scikit-learn)
    python benchmarks/first_try.py run SETS OUT --sets digits8 --settings probe-packaged,probe-photos
    python benchmarks/advice.py held SETS OUT            # sets that the table does not have, against runs on them
    python benchmarks/advice.py speeds                   # the speeds of networks in measured.json, by processor time

`left-out` compares with the settings that were tried on that set alone, which are one to three of the table.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import vitrail
from vitrail.advice.choose import NEAR, candidates, merit
from vitrail.advice.facts import DataFacts
from vitrail.advice.networks import network
from vitrail.advice.rows import Row, packaged_rows, rows_of_cells
from vitrail.recipes import list_recipes, read_recipe
from vitrail.timing import Spread, interleaved, machine
from vitrail.training.first_try import SETTINGS, measured

NETWORKS = ("packaged", "packaged-photos", "demo")
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
        found = candidates(facts, rest, SETTINGS, recipes)
        best = max(found, key=lambda one: merit(one.name, facts, rest))
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


def held(sets: Path, out: Path) -> None:
    """Advice for sets on disk, beside runs of `first_try.py run`."""
    for folder in sorted(path for path in sets.iterdir() if (path / "done").exists()):
        results = {file.stem.split(".")[1]: json.loads(file.read_text()) for file in out.glob(f"{folder.name}.*.json")}
        advised = vitrail.advise(folder, device="cpu")
        if advised.choice is None or not results:
            continue
        choice = advised.choice.candidate
        scores = {name: result["accuracy"] for name, result in results.items()}
        top = max(scores, key=scores.__getitem__)
        expected = [row.values["test"] for row in choice.rows[:NEAR]]
        print(
            f"{folder.name}: advised {choice.name} ({scores.get(choice.name, float('nan')):.4f}), best of {len(scores)}"
        )
        print(f"  tried {top} ({scores[top]:.4f}); expected {min(expected):.2f} to {max(expected):.2f}")
        for name, result in sorted(results.items()):
            told = f"validation {result['val_accuracy']:.4f}, test {result['accuracy']:.4f}"
            print(f"  {name}: {told}, {result['cpu_seconds']:.0f} s of processor time")
        if advised.choice.seconds is not None and choice.name in results:
            print(f"  training: expected {advised.choice.seconds:.0f} s, took {results[choice.name]['seconds']:.0f} s")


def digits(sets: Path) -> None:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, every third one for the test."""
    from sklearn.datasets import load_digits

    data: Any = load_digits()
    for index, (image, label) in enumerate(zip(data.images, data.target, strict=True)):
        part = sets / "digits8" / ("test" if index % 3 == 2 else "train") / str(label)
        part.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15).astype("uint8")).save(part / f"{index}.png")
    (sets / "digits8" / "done").touch()


def speeds() -> None:
    """Milliseconds of a forward pass of one image, by the processor time of one thread."""
    torch.set_num_threads(1)
    passes = {name: network(name) for name in NETWORKS}
    for name, seconds in interleaved(passes, rounds=25, clock=time.process_time).items():
        print(name, Spread.of([1000 * one for one in seconds]), machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("left-out", "digits", "held", "speeds"))
    parser.add_argument("paths", nargs="*", type=Path, metavar="SETS OUT")
    chosen = parser.parse_args()
    work = {"left-out": left_out, "digits": digits, "held": held, "speeds": speeds}[chosen.verb]
    work(*chosen.paths)


if __name__ == "__main__":
    main()
