"""Makes the model that comes with the package: the best model of a trained run, in fp16.

    vitrail train cifar10 --recipe cifar10-conv-mae --val 0.02 --out runs/mae
    vitrail train cifar10 --recipe cifar10-conv --from runs/mae --val 0.02 --out runs/best
    python benchmarks/make_packaged.py runs/best

The result is a run's folder like any other, without checkpoints: `vitrail predict packaged picture.jpg` opens it. It is
written beside the old one and takes its place only if it is small enough and fp16 changes hardly any answer on the
run's validation images. Test images, where there are some, are looked at once more, so that the figure travels along.
"""

import argparse
import json
import math
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.cli.serving_calibration import fitted, keep
from vitrail.data.batches import Batches
from vitrail.data.cache import Packed
from vitrail.data.known import KNOWN
from vitrail.deploy.calibration import Calibration
from vitrail.deploy.engine import open_engine
from vitrail.models.checkpoint import load, save
from vitrail.models.checkpoint.files import write_json
from vitrail.packaged import FILES, MAX_BYTES, packaged_folder
from vitrail.training.assemble import pack_split
from vitrail.training.plan import Plan, read_plan
from vitrail.training.trained import Trained, open_trained

MOST_CHANGED = 0.002  # of the validation images; one is always allowed
KEPT = ("recipe", "model", "classes", "multi_label", "environment", "taught")


def described(run: dict[str, Any], data: str) -> dict[str, Any]:
    """What run.json says of a model, without what concerns the machine that trained it: its folders."""
    source = str(run["source"]).partition(":")[0]  # cifar10:folder -> cifar10
    command = re.sub(r"(?<![\w.~-])/(?:[^\s/]+/)*", "", run["command"])  # the folders of absolute paths
    return {name: run[name] for name in KEPT} | {
        "source": source if source in KNOWN else Path(data).name,
        "val": run["val"] if isinstance(run["val"], float) else None,
        "start": None,
        "teacher": None,
        "notes": [],
        "command": command,
    }


@torch.inference_mode()
def answers(trained: Trained, images: Packed) -> Tensor:
    """N K bool: the classes that a model gives to images."""
    device = next(trained.task.parameters()).device
    batches = Batches(images, batch_size=256, seed=0, shuffle=False, device=device).epoch(0)
    return torch.cat([trained.task.predict(trained.prepare(batch.images))["chosen"].cpu() for batch in batches])


def right(given: Tensor, labels: Tensor) -> float:
    """The share of images whose answer is right, all labels of an image together."""
    truth = labels.bool() if labels.ndim == 2 else torch.nn.functional.one_hot(labels, given.shape[1]).bool()
    return float((given == truth).all(dim=1).float().mean())


def write(run: Path, out: Path, *, data: str, extra: dict[str, float]) -> None:
    """A run's folder in fp16, without its checkpoints."""
    save(load(run).half(), out)
    about, best = (json.loads((run / name).read_text(encoding="utf-8")) for name in ("run.json", "best.json"))
    write_json(out / "run.json", described(about, data))
    write_json(out / "best.json", best | extra)


def check(plan: Plan, run: Path, new: Path, device: str) -> tuple[dict[str, float], dict[str, str], list[str]]:
    """What fp16 did to the answers of a run: figures to keep, rows to show, and reasons to refuse."""
    before, after = open_trained(run), open_trained(new)
    for trained in (before, after):
        trained.task.to(device)
    extra, rows, wrong = {}, {}, []
    for name, part in (("validation", plan.data.val), ("test", plan.data.test)):
        if part is None:
            continue
        images = pack_split(plan, part, learning=False)
        first, second = answers(before, images), answers(after, images)
        changed = int((first != second).any(dim=1).sum())
        shares = f"{100 * right(first, images.labels):.2f} % -> {100 * right(second, images.labels):.2f} %"
        rows[f"{name}, right before and in fp16"] = f"{shares} of {len(images):,}"
        rows[f"{name}, answers that fp16 changed"] = f"{changed} of {len(images):,}"
        if name == "test":
            extra["test_accuracy"] = right(second, images.labels)
        elif changed > (most := max(1, math.ceil(MOST_CHANGED * len(images)))):
            wrong.append(f"fp16 changes {changed} of {len(images):,} answers; at most {most} are allowed")
    return extra, rows, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run that is over, whose data are still there")
    parser.add_argument("--out", type=Path, default=packaged_folder())
    parser.add_argument("--device", default="cpu")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        new = Path(name)
        plan = read_plan(chosen.run)
        write(chosen.run, new, data=plan.data.train.name, extra={})
        extra, rows, wrong = check(plan, chosen.run, new, chosen.device)
        write(chosen.run, new, data=plan.data.train.name, extra=extra)
        engine = open_engine(new, open_run=open_trained)
        multi_label = engine.card.multi_label
        keep(new, engine, Calibration() if multi_label else fitted(engine, plan.data.val))
        size = sum((new / file).stat().st_size for file in FILES)
        if size > MAX_BYTES:
            wrong.append(f"it has {size:,} bytes; at most {MAX_BYTES:,} are allowed")
        print(open_trained(new).about.removeprefix(f"{new}: "))
        for what, value in {"bytes": f"{size:,} of {MAX_BYTES:,} allowed", **rows}.items():
            print(f"  {what}: {value}")
        if wrong:
            raise SystemExit("; ".join(wrong) + f"; {chosen.out} is as it was")
        chosen.out.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            shutil.copyfile(new / file, chosen.out / file)
    print(f"wrote {chosen.out}")


if __name__ == "__main__":
    main()
