"""Makes the packaged model: the best model of a trained run, in fp16.

    vitrail train cifar10 --recipe cifar10-conv-mae --val 0.02 --out runs/mae
    vitrail train cifar10 --recipe cifar10-conv --from runs/mae --val 0.02 --out runs/best
    python benchmarks/make_packaged.py runs/best

The result is a run folder without checkpoints: `vitrail predict packaged picture.jpg` opens it. It replaces the old one
only if it is small enough and fp16 changes almost no prediction on the validation images of the run. Test images, if
there are any, are evaluated in fp16, and the result is stored in the folder.
"""

import argparse
import math
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from vitrail.checksums import write_checksums
from vitrail.data.sources.catalogue import KNOWN
from vitrail.models.checkpoint import load, save
from vitrail.packaged import FILES, MAX_BYTES, packaged_folder
from vitrail.runs.evaluate import Evaluation
from vitrail.runs.record import Record, Result
from vitrail.runs.trained import open_model
from vitrail.training.plan import read_plan

LICENCE = "Apache-2.0"
MOST_CHANGED = 0.002  # of the validation images; one is always allowed


def described(record: Record, data: str) -> Record:
    """What run.json says of a model, without what concerns the machine that trained it: its folders."""
    source = str(record.source).partition(":")[0]  # cifar10:folder -> cifar10
    return replace(
        record,
        source=source if source in KNOWN else Path(data).name,
        val=record.val if isinstance(record.val, float) else None,
        learned=None,
        start=None,
        teacher=None,
        notes=(),
        command=re.sub(r"(?<![\w.~-])/(?:[^\s/]+/)*", "", record.command),  # the folders of absolute paths
        licence=record.licence or LICENCE,
    )


def compared(before: Evaluation, after: Evaluation) -> tuple[int, str]:
    """How many predictions fp16 changes, and the metrics before and in fp16."""
    first, second = ({name: values.numpy() for name, values in found.outputs.items()} for found in (before, after))
    name = before.task.best_metric
    values = f"{name} {before.metrics[name]:.4f} -> {after.metrics[name]:.4f}"
    return int(np.sum(~before.task.same(first, second))), values


def make(run: Path, out: Path, device: str) -> tuple[dict[str, str], list[str]]:
    """Writes the model of a run in fp16; returns rows to show, and reasons to reject it."""
    plan = read_plan(run)
    save(load(run).half(), out)
    described(Record.read(run), plan.data.train.name).write(out)
    result = Result.read(run)
    result.write(out)
    before, after = (open_model(folder).to(device) for folder in (run, out))
    rows, wrong = {}, []
    for name, part in (("validation", plan.data.val), ("test", plan.data.test)):
        if part is None:
            continue
        first, second = before.evaluate(part), after.evaluate(part)
        changed, values = compared(first, second)
        count = len(next(iter(first.outputs.values())))
        rows[f"{name}, before and in fp16"] = values
        rows[f"{name}, answers that fp16 changed"] = f"{changed} of {count:,}"
        if name == "test":
            result = result.with_test(second.metrics)
        elif changed > (most := max(1, math.ceil(MOST_CHANGED * count))):
            wrong.append(f"fp16 changes {changed} of {count:,} answers; at most {most} are allowed")
    result.write(out)
    return rows, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run that is over, whose data are still there")
    parser.add_argument("--out", type=Path, default=packaged_folder())
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        new = Path(name)
        rows, wrong = make(chosen.run, new, chosen.device)
        size = sum((new / file).stat().st_size for file in FILES)
        if size > MAX_BYTES:
            wrong.append(f"it has {size:,} bytes; at most {MAX_BYTES:,} are allowed")
        print(open_model(new).about.removeprefix(f"{new}: "))
        for what, value in {"bytes": f"{size:,} of {MAX_BYTES:,} allowed", **rows}.items():
            print(f"  {what}: {value}")
        if wrong:
            raise SystemExit("; ".join(wrong) + f"; {chosen.out} is as it was")
        chosen.out.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            shutil.copyfile(new / file, chosen.out / file)
        write_checksums(chosen.out, FILES)
    print(f"wrote {chosen.out}")


if __name__ == "__main__":
    main()
