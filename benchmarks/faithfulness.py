"""Faithfulness of saliency methods on a trained model: areas under the deletion and insertion curves.

    python benchmarks/faithfulness.py --data arrays --json faithfulness.json
    python benchmarks/faithfulness.py --data arrays --methods all --steps 32 --device cuda
    python benchmarks/faithfulness.py --run runs/my-run --data photos --methods relevance,attention,rollout
    python benchmarks/faithfulness.py --data arrays --skip 500    # not the images on which defaults were chosen
    python benchmarks/faithfulness.py --data arrays --steps 32 --fewer 4,8    # what quick scores are worth

The first command compares relevance with raw attention, noise and the centre, in a few minutes on two cores. Data are
what `vitrail train` takes, such as a folder with test_images.npy and test_labels.npy. Test images, in random order, are
explained for the predicted class; then pixels are deleted and inserted in the order of each map. Deleted pixels are
blurred or, with --baseline mean, have the mean colour of the image. Two maps that do not depend on the model are
baselines; the first method is compared with all others, image by image. The accuracy of the model on these images is
reported too.
"""

import argparse
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.preprocess import Preprocess
from vitrail.data.sources.opening import open_whole
from vitrail.explain.methods.saliency import methods, saliency
from vitrail.explain.scoring.faithfulness import Areas, areas, baselines
from vitrail.explain.scoring.removal import MAX_BATCH, Baseline
from vitrail.models.backbone import Backbone
from vitrail.report import Facts, Report, Section, Table, Value
from vitrail.runs.trained import open_model

SEED = 0
QUICK = "relevance,attention"  # and the maps that know nothing


class Pictures(NamedTuple):
    """A model, and images as it takes them."""

    model: Backbone
    images: Tensor  # B C H W
    target: Tensor  # B, the classes that it predicts
    right: float  # the share of them that are the images' own


def chosen_images(data: Dataset, count: int, skip: int, preprocess: Preprocess) -> tuple[Tensor, Tensor]:
    """Some images of one random order, after so many others, uint8 in the size of a model, and their classes."""
    chosen = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))[skip : skip + count]
    if len(chosen) < count:
        raise SystemExit(f"there are {len(data):,} test images; {count:,} after the first {skip:,} are too many")
    images = [preprocess.fit(data.read(int(one))[None])[0] for one in chosen]
    (classes,) = data.targets.values()
    return torch.cat(images), classes[chosen]


def pictures(run: str, data: str, count: int, skip: int = 0, device: str = "cpu") -> Pictures:
    """The model of a run, some test images as it takes them, and what it says of them."""
    trained = open_model(run).to(device)
    model = trained.backbone
    pixels, labels = chosen_images(open_whole(data), count, skip, trained.preprocess)
    images = trained.preprocess.normalise(pixels.to(device))
    with torch.no_grad():
        target = torch.cat([model(some).argmax(dim=1) for some in images.split(MAX_BATCH)])
    return Pictures(model, images, target, (target.cpu() == labels).float().mean().item())


def explained(model: Backbone, images: Tensor, names: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The maps of each method and of the baselines, and the seconds that each method took."""
    maps, seconds = {}, {}
    for name in names:
        start = time.perf_counter()
        maps[name] = saliency(model, images, name).cpu().to(images.device)  # an accelerator is waited for
        seconds[name] = time.perf_counter() - start
    return maps | baselines(images, seed=SEED), seconds


def measured(
    model: Backbone, images: Tensor, maps: dict[str, Tensor], target: Tensor, kind: Baseline, *, steps: int
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
            low, middle, high = values.cpu().quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()
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


def fewer_steps(exact: dict[str, Areas], found: dict[int, dict[str, Areas]]) -> Table:
    """How areas by fewer steps correlate with those by all: over all maps and images, and over the maps of an image."""
    rows: list[dict[str, Value]] = []
    for steps, some in found.items():
        row: dict[str, Value] = {"steps": steps}
        for what in ("deletion", "insertion"):
            pair = [
                torch.stack([getattr(one, what).double() for one in each.values()]) for each in (some, exact)
            ]  # M B
            within = torch.stack(
                [torch.corrcoef(torch.stack(each))[0, 1] for each in zip(*(x.T for x in pair), strict=True)]
            )
            whole = torch.corrcoef(torch.stack([values.flatten() for values in pair]))[0, 1]
            row |= {what: round(whole.item(), 3), f"{what}, one image": round(within.nanmean().item(), 3)}
        rows.append(row)
    return Table("Correlation of scores by fewer steps", dict.fromkeys(rows[0], ""), rows)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--run", default="packaged", help="the folder of a run, or the packaged model")
    options.add_argument("--data", required=True, help="what the test images are taken from: a folder of arrays, say")
    options.add_argument("--images", type=int, default=500)
    options.add_argument("--skip", type=int, default=0, help="images of the random order that are left out before")
    options.add_argument("--steps", type=int, default=16, help="of the curves")
    options.add_argument("--fewer", default="", help="other numbers of steps to compare with, e.g. 4,8")
    options.add_argument("--baseline", choices=("blur", "mean"), default="blur", help="what stands for pixels that go")
    options.add_argument(
        "--methods", default=QUICK, help="names with commas, the first is paired with all others; or all"
    )
    options.add_argument("--device", default="cpu")
    options.add_argument("--json", type=Path)
    return options.parse_args(arguments)


def main() -> None:
    chosen = parse()
    torch.manual_seed(SEED)
    model, images, target, right = pictures(chosen.run, chosen.data, chosen.images, chosen.skip, chosen.device)
    names = methods(model) if chosen.methods == "all" else chosen.methods.split(",")
    start = time.perf_counter()
    maps, seconds = explained(model, images, names)
    found = measured(model, images, maps, target, chosen.baseline, steps=chosen.steps)
    cuda = images.device.type == "cuda"
    facts: dict[str, Value] = {
        "model": chosen.run,
        "images": f"{len(images)} of {chosen.data} after the first {chosen.skip}",
        "of them right": f"{100 * right:.1f} %",
        "pixels that are not there": {"blur": "are blurred", "mean": "have the mean colour"}[chosen.baseline],
        "steps": chosen.steps,
        "seed": SEED,
        "hardware": torch.cuda.get_device_name()
        if cuda
        else f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "minutes": round((time.perf_counter() - start) / 60, 1),
    }
    sections: list[Section] = [
        Facts("Setting", facts),
        table("Deletion and insertion", found, seconds),
        paired(f"Deletion by {names[0]}, image by image", found, names[0]),
    ]
    if chosen.fewer:
        less = {
            steps: measured(model, images, maps, target, chosen.baseline, steps=steps)
            for steps in map(int, chosen.fewer.split(","))
        }
        sections.append(fewer_steps(found, less))
    report = Report("Faithfulness of saliency methods", tuple(sections))
    report.print()
    if chosen.json:
        report.to_json(chosen.json)


if __name__ == "__main__":
    main()
