"""What the remedies for uneven classes do: recall of the rare class and balanced accuracy, each with three seeds.

    python benchmarks/imbalance.py --json imbalance.json

Two classes of Fashion-MNIST that look alike, from the images in the package: 900 of one and 90 of the other to train on
(a tenth of each validates), 200 of each to test on. A seed draws the images too. One thread, 10 s a run.
"""

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from vitrail.data.dataset import Dataset, Retargeted, Splits, Subset
from vitrail.data.sources.opening import open_data
from vitrail.data.split import carve
from vitrail.data.targets import ClassTarget
from vitrail.training.run import train

FREQUENT, RARE = "T-shirt/top", "Shirt"
MOST, LEAST = 1000, 100
CLASSES = ClassTarget(classes=(FREQUENT, RARE))
REMEDIES: dict[str, dict[str, Any]] = {
    "none": {},
    "class_weights=inverse": {"task": {"class_weights": "inverse"}},
    "class_weights=effective": {"task": {"class_weights": "effective"}},
    "sampling=balanced": {"sampling": "balanced"},
    "sampling=balanced, power 0.5": {"sampling": "balanced", "sampling_power": 0.5},
    "loss=focal": {"task": {"loss": "focal"}},
    "loss=logit_adjusted": {"task": {"loss": "logit_adjusted"}},
    "goal=balanced_accuracy": {"task": {"goal": "balanced_accuracy"}},
    "goal=f1": {"task": {"goal": "f1"}},
}


def pair(data: Dataset, most: int, least: int, seed: int) -> Dataset:
    """So many images of the two classes, drawn by a seed."""
    labels, draw = data.targets["label"], torch.Generator().manual_seed(seed)
    classes = data.schema["label"].classes
    chosen = []
    for name, count in ((FREQUENT, most), (RARE, least)):
        members = (labels == classes.index(name)).nonzero()[:, 0]
        chosen.append(members[torch.randperm(len(members), generator=draw)[:count]])
    truth = torch.cat([torch.full((len(some),), number) for number, some in enumerate(chosen)])
    return Retargeted(Subset(data, torch.cat(chosen).tolist()), {"label": truth}, {"label": CLASSES})


def measure(remedy: str, seed: int, epochs: int) -> dict[str, float]:
    """Recalls and balanced accuracy on test images."""
    data = open_data("demo")
    assert data.test is not None
    learned, held = carve(pair(data.train, MOST, LEAST, seed), 0.1, seed)
    splits = Splits(learned, held, pair(data.test, 200, 200, seed))
    with tempfile.TemporaryDirectory() as folder:
        run = train(
            splits, recipe="demo", folder=Path(folder) / "run", seed=seed, epochs=epochs, batch_size=32, silent=True,
            device="cpu", eval_every=1, **REMEDIES[remedy],
        )  # fmt: skip
        frequent, rare = run.evaluation.results["recall"].tolist()
        balanced, f1 = (run.metrics[f"test_{name}"] for name in ("balanced_accuracy", "macro_f1"))
    return {"rare": rare, "frequent": frequent, "balanced": balanced, "f1": f1}


def main() -> None:
    """Prints a table as it goes."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=20)
    options.add_argument("--only", choices=REMEDIES, action="append")
    options.add_argument("--json", type=Path)
    given = options.parse_args()
    found: dict[str, Any] = {}
    print("| remedy | recall of the rare class | of the frequent one | balanced accuracy | macro F1 |")
    print("|---|---|---|---|---|")
    for remedy in given.only or REMEDIES:
        rows = [measure(remedy, seed, given.epochs) for seed in range(given.seeds)]
        found[remedy] = rows
        cells = [_spread([row[name] for row in rows]) for name in ("rare", "frequent", "balanced", "f1")]
        print(f"| {remedy} | {' | '.join(cells)} |", flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps(found, indent=1))


def _spread(values: list[float]) -> str:
    """The mean and the range in percent."""
    low, mean, high = (100 * one for one in (min(values), statistics.mean(values), max(values)))
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
