"""Parity with other libraries: the largest relative error of every case, in float64, against their own model.

python benchmarks/parity.py [--only dinov3] [--json parity.json]

Detectors, segmenters and depth models are compared with their processors too, on photographs: the pixels that go into
the model, and the answers. The exit status is 1 if an error is above its limit, or if there is no case to compare.
"""

import argparse
import importlib.metadata
import json
import platform
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from parity.compare import Case, compare
from parity.families import all_cases, family_name
from parity.heads import HeadCase, head_cases, head_errors
from parity.processors import (
    ProcessorCase,
    answer_errors,
    as_tensor,
    at_usual_sizes,
    grey_levels,
    padded_cases,
    padded_errors,
    photographs,
    write,
)
from rich.console import Console
from rich.table import Table
from support import peers

from vitrail.errors import ResampledNotice
from vitrail.runs.trained import open_model

LIMITS = {"grey_levels": 1.001, "boxes": 0.01, "pixels": 0.001, "depth": 1e-4}
LIMIT = 1e-5  # far above the error of float32 tables of rotary positions, far below that of a wrong weight


def measure(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        errors = compare(case, Path(folder))
        seconds = time.perf_counter() - start
        family = family_name(case, Path(folder))
    height, width = case.image_size
    return {
        "family": family,
        "peer": case.peer,
        "model": case.name,
        "image_size": f"{height}x{width}",
        "logits": errors.logits,
        "features": errors.features,
        "seconds": round(seconds, 3),
    }


def measure_head(case: HeadCase) -> dict[str, Any]:
    """A whole model with a head: its outputs take the place of logits."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        errors = head_errors(case, Path(folder))
        seconds = time.perf_counter() - start
    height, width = case.image_size
    return {
        "family": "with a head",
        "peer": "hf",
        "model": case.name,
        "image_size": f"{height}x{width}",
        "logits": max(errors.values()),
        "features": 0.0,
        "seconds": round(seconds, 3),
    }


def measure_padded(case: HeadCase) -> dict[str, Any]:
    """Two images of different sizes in one padded batch."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        errors = padded_errors(case, Path(folder))
        seconds = time.perf_counter() - start
    about = {"family": "padded batch", "peer": "hf", "model": case.name, "image_size": "75x128, 96x87"}
    return {**about, "logits": max(errors.values()), "features": 0.0, "seconds": round(seconds, 3)}


def measure_answers(case: ProcessorCase) -> dict[str, Any]:
    """A folder with a processor, on photographs: pixels that go in and answers that come out."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResampledNotice)
        processor, model = write(case, Path(folder))
        opened = open_model(folder)
        photos = photographs()
        levels = max(grey_levels(processor, opened, photo) for photo in photos.values())
        errors = answer_errors(case, processor, model, opened)
        size = opened.pictures.fitted(as_tensor(photos["china"])).shape[2:] if opened.pictures is not None else ()
    about = {"model": case.name, "processor": f"{case.processor}ImageProcessor", "input": "x".join(map(str, size))}
    return {**about, "photographs": len(photos), "grey_levels": levels, **errors}


def worst(row: dict[str, Any]) -> float:
    return max(row["logits"], row["features"])


def shown(rows: list[dict[str, Any]]) -> Table:
    table = Table("family", "peer", "model", "image", "logits", "features", title="largest relative error in float64")
    for row in rows:
        numbers = (f"{row['logits']:.1e}", f"{row['features']:.1e}")
        table.add_row(row["family"], row["peer"], row["model"], row["image_size"], *numbers)
    return table


def shown_answers(rows: list[dict[str, Any]]) -> Table:
    photos, columns = rows[0]["photographs"], ("model", "processor", "input of 427x640", "grey levels")
    table = Table(*columns, "boxes, px", "other pixels", "depth", title=f"largest difference on {photos} photographs")
    for row in rows:
        numbers = [f"{row[name]:.1e}" if name in row else "" for name in LIMITS]
        table.add_row(row["model"], row["processor"], row["input"], *numbers)
    return table


def over_limits(rows: list[dict[str, Any]]) -> list[str]:
    return [row["model"] for row in rows if any(row.get(name, 0.0) > limit for name, limit in LIMITS.items())]


def written(rows: list[dict[str, Any]], answers: list[dict[str, Any]]) -> str:
    versions = {name: importlib.metadata.version(name) for name in ("torch", "timm", "transformers", "torchvision")}
    about = {"command": " ".join(sys.argv), "machine": platform.machine(), "threads": torch.get_num_threads()}
    return json.dumps(about | {"versions": versions, "rows": rows, "answers": answers}, indent=2) + "\n"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="cases whose peer or name contains this")
    parser.add_argument("--json", type=Path, help="write the table and the versions here")
    arguments = parser.parse_args(words)

    peers.transformers.logging.disable_progress_bar()
    peers.transformers.logging.set_verbosity_error()
    cases = [case for case in all_cases() if arguments.only in f"{case.peer} {case.name}"]
    heads = [case for case in head_cases() if arguments.only in f"hf {case.name}"]
    padded = [case for case in padded_cases() if arguments.only in f"hf {case.name} padded batch"]
    whole = [case for case in at_usual_sizes() if arguments.only in f"hf {case.name} {case.processor}ImageProcessor"]
    if not photographs():
        print("without scikit-learn there are no photographs: answers are not compared")
        whole = []
    if not cases and not heads and not padded and not whole:
        some = ", ".join(dict.fromkeys(case.peer for case in all_cases()))
        sys.exit(f"--only {arguments.only} is in the name of no case; give a part of a model's name, or a peer: {some}")
    rows = [measure(case) for case in cases]
    rows += [*map(measure_head, heads), *map(measure_padded, padded)]
    answers = [measure_answers(case) for case in whole]
    console = Console(width=None if sys.stdout.isatty() else 120)
    if rows:
        console.print(shown(rows))
        print(f"{len(rows)} configurations, worst relative error {max(map(worst, rows)):.1e}")
    if answers:
        console.print(shown_answers(answers))
    if arguments.json:
        arguments.json.write_text(written(rows, answers))
    wrong = [f"{row['peer']} {row['model']}" for row in rows if worst(row) > LIMIT]
    wrong += over_limits(answers)
    if wrong:
        total = len(rows) + len(answers)
        sys.exit(f"{len(wrong)} of {total} are not the peer's: the error is above its limit in {'; '.join(wrong)}")


if __name__ == "__main__":
    main()
