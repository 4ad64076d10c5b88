"""One model with many heads against single-task twins: accuracy of each task, parameters, time of a forward pass.

    python benchmarks/many.py --json many.json                  # small, on one CPU core
    python benchmarks/many.py --device cuda --data scenes:4000:128x128 --epochs 40 --dim 384 --depth 12 --heads 6 --wide

All have the same backbone, images, steps, rate and seeds; the twins together see each image as often as there are
tasks. `--wide` keeps the default sizes of the heads. Scores are those of the best epoch on test images, the mean over
seeds with its range. A forward pass is that of the trained models, images to decoded outputs, in turns: the median.
"""

import argparse
import multiprocessing
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch

import vitrail
from vitrail.report import Facts, Report, Table, Value
from vitrail.runs.trained import TrainedModel, open_model

TASKS = ("classify", "detect", "segment", "depth")
MANY = "many"
DETECTOR = {"dim": 64, "num_heads": 4, "hidden": 128, "encoder_depth": 1, "decoder_depth": 2, "levels": 2}
SMALL: dict[str, dict[str, Any]] = {  # heads for one CPU core
    "classify": {},
    "detect": {"head": {"kind": "deformable_detr", "queries": 30, "denoising": 20, **DETECTOR}},
    "segment": {"head": {"kind": "segformer", "dim": 64}},
    "depth": {"head": {"kind": "dpt", "dim": 32, "widths": [16, 24, 32, 48]}},
}


class Scores(NamedTuple):
    """Of a run, on test images, by task."""

    scores: dict[str, dict[str, float]]
    seconds: float


class Trained(NamedTuple):
    """A model that was trained, and its scores on test images by task."""

    model: TrainedModel
    scores: dict[str, dict[str, float]]
    seconds: float

    @property
    def parameters(self) -> int:
        """Of backbone and heads."""
        return sum(one.numel() for one in self.model.task.parameters())


def heads(tasks: Sequence[str], *, wide: bool) -> dict[str, dict[str, Any]]:
    """The options of each task."""
    return {name: {} if wide else SMALL[name] for name in tasks}


def train(options: argparse.Namespace, tasks: Sequence[str], seed: int, folder: Path) -> Scores:
    """One run, left in a folder; of one task it is a twin."""
    chosen = heads(tasks, wide=options.wide)
    task = {"kind": MANY, "tasks": chosen} if len(tasks) > 1 else {"kind": tasks[0], **chosen[tasks[0]]}
    began = time.perf_counter()
    run = vitrail.train(
        options.data, task=task, folder=folder, model=options.model, seed=seed, epochs=options.epochs, silent=True,
        batch_size=options.batch_size, device=options.device, optimiser={"lr": options.rate},
        image_size=options.image_size,
        options={
            "dim": options.dim, "depth": options.depth, "num_heads": options.heads, "patch": {"size": options.patch},
        },
    )  # fmt: skip
    parts = dict(run.task.parts()) if len(tasks) > 1 else {tasks[0]: run.task}
    results = run.evaluation.metrics
    before = {name: f"{name}." if len(tasks) > 1 else "" for name in tasks}
    scores = {
        name: {key: float(results[f"{before[name]}{key}"]) for key in _shown(name, parts[name].best_metric)}
        for name in tasks
    }
    return Scores(scores, time.perf_counter() - began)


def _shown(task: str, best: str) -> tuple[str, ...]:
    """The metrics of a task that the table has."""
    return {"classify": ("accuracy",), "detect": ("ap", "ap50"), "depth": ("delta1", "abs_rel")}.get(task, (best,))


@torch.no_grad()
def forward_times(groups: dict[str, Sequence[TrainedModel]], batch: int, rounds: int) -> dict[str, float]:
    """Milliseconds of a forward pass of all models of each group, taken in turns: medians."""
    found: dict[str, list[float]] = {name: [] for name in groups}
    for number in range(rounds + 2):
        for name, models in groups.items():
            took = sum(_timed(model, batch) for model in models)
            if number >= 2:  # the first ones warm up
                found[name].append(1000 * took)
    return {name: statistics.median(times) for name, times in found.items()}


def _timed(model: TrainedModel, batch: int) -> float:
    like = model.preprocess
    images = torch.zeros(batch, like.channels, *like.image_size, dtype=torch.uint8, device=model.device)
    cuda = model.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    began = time.perf_counter()
    model.outputs(images)
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def report(options: argparse.Namespace, runs: dict[str, list[Trained]]) -> Report:
    """Scores, parameters and times."""
    twins, many = [name for name in runs if name != MANY], runs[MANY]
    rows: list[dict[str, Value]] = []
    for name in twins:
        for metric in many[0].scores[name]:
            both = {"many": [one.scores[name][metric] for one in many]}
            both["alone"] = [one.scores[name][metric] for one in runs[name]]
            rows.append({"task": name, "metric": metric, **{key: _spread(values) for key, values in both.items()}})
    groups = {"many": [many[0].model], "alone": [runs[name][0].model for name in twins]}
    groups |= {name: [runs[name][0].model] for name in twins}
    times = {batch: forward_times(groups, batch, options.rounds) for batch in options.batches}
    sums = {"many": [many[0]], "alone": [runs[name][0] for name in twins], **{name: [runs[name][0]] for name in twins}}
    costs: list[dict[str, Value]] = [
        {
            "model": {"many": "many heads", "alone": "all twins"}.get(name, f"{name} alone"),
            "parameters": sum(one.parameters for one in some),
            "training seconds": round(sum(one.seconds for one in some), 1),
            **{f"ms, batch {batch}": round(times[batch][name], 2) for batch in options.batches},
        }
        for name, some in sums.items()
    ]
    about = {
        "data": options.data, "model": options.model, "epochs": options.epochs, "seeds": len(many),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip
    scores = Table("Scores on test images", dict.fromkeys(("task", "metric", "many", "alone"), ""), rows)
    return Report(
        "Many heads and single tasks", (Facts("Run", about), scores, Table("Cost", dict.fromkeys(costs[0], ""), costs))
    )


def _spread(values: Sequence[float]) -> str:
    """The mean, and the range of several."""
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="scenes:400:64x64")
    parser.add_argument("--tasks", default=",".join(TASKS), help="classify,detect ...")
    parser.add_argument("--model", default="vit_tiny_patch16")
    for name, value in {"dim": 96, "depth": 4, "heads": 3, "patch": 8, "epochs": 10, "batch-size": 16}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--image-size", type=int, help="of a square; by default that of the scenes")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seeds", type=lambda text: [int(one) for one in text.split(",")], default=[0])
    parser.add_argument("--wide", action="store_true", help="heads of their default sizes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parallel", type=int, default=1, help="runs at once")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batches", type=lambda text: [int(one) for one in text.split(",")], default=[1, 16])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    if options.image_size is None:
        options.image_size = [int(side) for side in options.data.rsplit(":", 1)[1].split("x")]
    return options


def main(words: Sequence[str] | None = None) -> None:
    """Trains all models and prints the tables."""
    options = parse(words)
    tasks = [name.strip() for name in options.tasks.split(",")]
    runs: dict[str, list[Trained]] = {name: [] for name in (MANY, *tasks)}
    spawned = multiprocessing.get_context("spawn")  # each has a CUDA context of its own
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(options.parallel, mp_context=spawned) as pool:
        jobs = [
            (name, seed, Path(folder) / f"{name}-{seed}", tasks if name == MANY else [name])
            for seed in options.seeds
            for name in runs
        ]
        todo = [pool.submit(train, options, some, seed, where) for _, seed, where, some in jobs]
        for (name, seed, where, _), job in zip(jobs, todo, strict=True):
            scores = job.result()
            runs[name].append(Trained(open_model(where).to(options.device), *scores))
            print(f"seed {seed}, {name}: {scores}", flush=True)
        found = report(options, runs)
    found.print()
    if options.json is not None:
        options.json.write_text(found.to_json())


if __name__ == "__main__":
    main()
