"""The speed of a ViT on this CPU in every engine, compared with timm in eager float32 with the same weights.

    python benchmarks/cpu_engine.py --model runs/my-vit-b --data photos/ --json cpu_engine.json  # in five minutes
    python benchmarks/cpu_engine.py                                   # ViT-B/16 with random weights: speed alone
    python benchmarks/cpu_engine.py --clock processor --threads 1     # where other jobs share the cores

A model is a run's folder or a checkpoint; data is whatever `vitrail train` takes. int8 is calibrated and validated on
training images; predictions are compared with timm's on test images. Every engine takes raw pixels and preprocesses
them; timm gets resized images and only normalises. The predictions of random weights mean nothing, so all of their
layers are quantised, and the images are the embedded ones. --compile takes ten more minutes, --float32 four.
"""

import argparse
import os
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
import torch
from support.peers import timm

import vitrail
from vitrail.data.dataset import Dataset
from vitrail.data.sources.opening import open_data
from vitrail.deploy.artefact.card import Card
from vitrail.deploy.artefact.certificate import at_size
from vitrail.deploy.artefact.engine import Engine, TorchEngine
from vitrail.deploy.artefact.export import to_program, write_onnx, write_openvino
from vitrail.deploy.artefact.opening import artefacts_in, open_engine
from vitrail.deploy.bench import Bench, BenchConfig, bench
from vitrail.deploy.contenders import open_artefacts, open_compiled
from vitrail.deploy.int8.quantise import QuantiseConfig, Quantised, quantise
from vitrail.models.checkpoint import convert
from vitrail.report import Facts, Report, Text, Value
from vitrail.runs.trained import TrainedModel, open_model

RANDOM = "vit_base_patch16"


class Peer(Engine):
    """timm's model with the same weights, eager float32, on images of its size."""

    backend = f"timm {timm.__version__}, torch {torch.__version__}, eager float32"

    def __init__(self, source: str | Path, card: Card, work: Path) -> None:
        super().__init__("timm", card)
        convert(source, work, to="timm")
        self.model = timm.create_model(f"local-dir:{work}", pretrained=True).eval()

    @torch.inference_mode()
    def run(self, images: np.ndarray) -> dict[str, np.ndarray]:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)  # B C H W
        return {"logits": self.model(self.preprocess.normalise(pixels)).numpy()}


class Pictures(NamedTuple):
    """Pixels uint8 B H W C: of training images, to calibrate and validate int8, and of others to compare answers on."""

    known: np.ndarray
    fresh: np.ndarray

    @classmethod
    def of(cls, source: str, engine: Engine, *, known: int, fresh: int) -> "Pictures":
        splits = open_data(source)
        wanted = ((splits.train, known), (splits.test or splits.val, fresh))
        read = ([data.read(index) for index in spread(data, count)] for data, count in wanted)
        return cls(*(at_size(images, engine.image_size, engine.preprocess) for images in read))


def spread(data: Dataset, count: int) -> list[int]:
    """`count` evenly spaced indices."""
    count = min(count, len(data))
    return [index * len(data) // count for index in range(count)]


def contenders(
    source: str | Path, run: TrainedModel, pictures: Pictures, work: Path, options: argparse.Namespace
) -> tuple[dict[str, Engine], Quantised]:
    """timm, the artefacts, and ourselves compiled and eager where asked for."""
    eager, dist = TorchEngine(run), work / "dist"
    dist.mkdir()
    plain = write_onnx(to_program(eager.module), eager.card, dist / "model.onnx")
    config = QuantiseConfig(calibrate=options.calibrate, validate=options.validate)
    if not options.model:  # answers of random weights mean nothing
        config = replace(config, cosine=0.0, agreement=0.0)
    int8 = quantise(plain, dist / "int8.onnx", [pictures.known], config)
    for path in (plain, int8.path) if options.float32 else (int8.path,):
        write_openvino(path, open_engine(path).card, path.with_suffix(".xml"))
    engines: dict[str, Engine] = {"timm": Peer(source, eager.card, work / "timm")}
    engines |= {"vitrail": eager} if options.float32 else {}
    engines |= open_compiled(run) if options.compile else {}
    shipped = open_artefacts(artefacts_in(dist), (options.threads,))
    asked = {name: e for name, e in shipped.items() if options.float32 or e.dynamic or e.card.precision == "int8"}
    return engines | asked, int8


def report(found: Bench, int8: Quantised, pictures: Pictures, options: argparse.Namespace) -> Report:
    """What was measured, and on what."""
    base = found.engines["timm"]
    facts: dict[str, Value] = {
        "model": base.card.about if options.model else f"{RANDOM}, random weights, seed 0: answers mean nothing",
        "data": options.data, "clock": options.clock, "test images": len(pictures.fresh),
    }  # fmt: skip
    facts["calibration, validation images"] = f"{min(options.calibrate, len(pictures.known) // 2)}, {int8.validated}"
    text = f"{len(int8.kept)} of {len(int8.errors)} in floating point" + f": {', '.join(int8.kept)}" * bool(int8.kept)
    sections = (Facts("Setting", facts), *found.report().sections, Text("Layers", text))
    return Report("ViT on this CPU, beside timm", sections)


def measure(options: argparse.Namespace, work: Path) -> Report:
    """From weights to a report."""
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    source = options.model or vitrail.save(vitrail.create(RANDOM, num_classes=10), work / "random").parent
    run = replace(open_model(source), source="vitrail")
    wanted = {"known": options.calibrate + options.validate, "fresh": options.count}
    pictures = Pictures.of(options.data, TorchEngine(run), **wanted)
    engines, int8 = contenders(source, run, pictures, work, options)
    config = BenchConfig(batches=tuple(options.batches), rounds=options.rounds, clock=options.clock)
    return report(bench(engines, pictures.fresh, config), int8, pictures, options)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", help=f"a run or a checkpoint (default: {RANDOM}, random weights)")
    options.add_argument("--data", default="demo", help="what it was trained on (default: the embedded images)")
    options.add_argument("--calibrate", type=int, default=32, help="training images that int8 is calibrated on")
    options.add_argument(
        "--validate", type=int, default=200, help="training images that decide how many layers are int8"
    )
    options.add_argument("--count", type=int, default=150, help="test images on which answers are compared")
    options.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--clock", choices=("wall", "processor"), default="wall")
    options.add_argument("--compile", action="store_true", help="also compiled, in float32 and bf16")
    options.add_argument("--float32", action="store_true", help="also ourselves eager, and the artefacts in float32")
    options.add_argument("--json", type=Path)
    return options.parse_args(words)


def main() -> None:
    options, began = parse(), time.perf_counter()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    found.print()
    print(f"{time.perf_counter() - began:.0f} seconds in all")
    if options.json:
        found.to_json(options.json)


if __name__ == "__main__":
    main()
