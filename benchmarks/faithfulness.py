"""How true each saliency method is on a trained model: areas under the curves of deletion and insertion.

    python benchmarks/faithfulness.py --json faithfulness.json
    python benchmarks/faithfulness.py --run runs/my-run --images 200 --methods relevance,attention
    python benchmarks/faithfulness.py --skip 500    # other images than those that defaults were chosen by

Test images of the embedded Fashion-MNIST, in one random order, are explained for the class that the model predicts, by
every method that makes sense for it; pixels then go and come in the order of each map. Pixels that are not there have
the image's mean colour in the first tables, those of the blurred image in the last. Beside the methods stand two maps
that know nothing of the model; then the first method is paired with all others, image by image.
"""

import argparse
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vitrail.data.cache import fit
from vitrail.data.embedded import read_embedded
from vitrail.explain.faithfulness import Areas, areas, baselines
from vitrail.explain.method import classes
from vitrail.explain.removal import Baseline
from vitrail.explain.saliency import methods, saliency
from vitrail.models.backbone import Backbone
from vitrail.report import Facts, Report, Section, Table, Value
from vitrail.training.trained import open_trained

SEED = 0
KINDS: tuple[Baseline, ...] = ("mean", "blur")


def pictures(run: str, count: int, skip: int = 0) -> tuple[Backbone, Tensor, Tensor]:
    """The model of a run, some test images as it takes them, after so many others, and the classes that it predicts."""
    trained, test = open_trained(run), read_embedded().test
    model = trained.task.backbone.eval()
    chosen = torch.randperm(len(test), generator=torch.Generator().manual_seed(SEED))[skip : skip + count]
    if len(chosen) < count:
        raise SystemExit(f"there are {len(test):,} test images; {count:,} after the first {skip:,} are too many")
    config = model.config
    images = trained.prepare(fit(test.array[chosen], size=config.image_size, channels=config.channels))
    return model, images, classes(model, images)


def explained(model: Backbone, images: Tensor, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The maps of each method and of the baselines, and the seconds that each method took."""
    maps, seconds = {}, {}
    for name in names:
        start = time.perf_counter()
        maps[name] = saliency(model, images, name)
        seconds[name] = time.perf_counter() - start
    return maps | baselines(images, seed=SEED), seconds


def measured(
    model: Backbone, images: Tensor, maps: dict[str, Tensor], target: Tensor, kind: Baseline, *, steps: int = 32
) -> dict[str, Areas]:
    """The areas of every map, where pixels that are not there are those of one baseline."""
    options = {"steps": steps, "deletion": kind, "insertion": kind}
    return {name: areas(model, images, one, target, **options) for name, one in maps.items()}


def table(title: str, found: dict[str, Areas], seconds: dict[str, float]) -> Table:
    """Medians and the distance of the quartiles, the best deletion first."""
    rows: list[dict[str, Value]] = []
    for name, one in sorted(found.items(), key=lambda item: item[1].deletion.median().item()):
        row: dict[str, Value] = {"map": name}
        for what, values in zip(("deletion", "insertion"), one, strict=True):
            low, middle, high = values.quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
            row |= {what: round(middle, 3), f"{what[:3]}. spread": round(high - low, 3)}
        taken = 1000 * seconds[name] / len(one.deletion) if name in seconds else None
        rows.append(row | {"ms an image": None if taken is None else round(taken, 2)})
    return Table(title, dict.fromkeys(rows[0], ""), rows)


def paired(title: str, found: dict[str, Areas], first: str) -> Table:
    """How often, and by how much in the median, one method's deletion is smaller than another's on the same image."""
    rows: list[dict[str, Value]] = []
    for name, one in found.items():
        if name != first:
            less = one.deletion - found[first].deletion
            rows.append({"against": name, "smaller": (less > 0).float().mean().item(), "by": less.median().item()})
    return Table(title, {"against": "", "smaller": "share", "by": ""}, rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--run", default="packaged", help="the folder of a run, or the packaged model")
    options.add_argument("--images", type=int, default=500)
    options.add_argument("--skip", type=int, default=0, help="images of the random order that are left out before")
    options.add_argument("--steps", type=int, default=32, help="of the curves")
    options.add_argument("--methods", help="names with commas; the first is paired with all others")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    torch.manual_seed(SEED)
    model, images, target = pictures(chosen.run, chosen.images, chosen.skip)
    names = chosen.methods.split(",") if chosen.methods else methods(model)
    maps, seconds = explained(model, images, names)
    facts = {
        "model": chosen.run,
        "images": f"{len(images)} after the first {chosen.skip}" if chosen.skip else len(images),
        "steps": chosen.steps,
        "seed": SEED,
        "hardware": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
    }
    sections: list[Section] = [Facts("Setting", facts)]
    for kind in KINDS:
        found = measured(model, images, maps, target, kind, steps=chosen.steps)
        sections.append(table(f"Deletion and insertion, {kind}", found, seconds))
        sections.append(paired(f"Deletion by {names[0]}, image by image, {kind}", found, names[0]))
    report = Report("Faithfulness of saliency methods", tuple(sections))
    report.print()
    if chosen.json:
        report.to_json(chosen.json)


if __name__ == "__main__":
    main()
