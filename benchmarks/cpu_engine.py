"""How fast a ViT runs on this CPU in every engine, beside timm's eager float32, in one interleaved run.

    python benchmarks/cpu_engine.py --images photos/ --json cpu_engine.json
    python benchmarks/cpu_engine.py --model vit_small_patch16 --weights hf-hub:timm/... --images photos/ --compile

Every engine takes pixels, timm the same pixels normalised before the clock starts. Agreement is top-1 with the eager
float32 model on the images; with random weights (no --weights) the head is drawn anew, so that answers differ.
"""

import argparse
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ.setdefault("TORCHINDUCTOR_FREEZING", "1")
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
import torch
from peers import timm
from rich.console import Console
from rich.table import Table

import vitrail
from vitrail.cli.shipping import read_pictures
from vitrail.deploy.bench import artefacts_in, open_artefacts
from vitrail.deploy.card import Card
from vitrail.deploy.certificate import at_size, differences, in_batches
from vitrail.deploy.engine import Engine, TorchEngine
from vitrail.deploy.export import to_program, write_onnx, write_openvino
from vitrail.deploy.quantise import QuantiseConfig, quantise
from vitrail.deploy.timing import Spread, interleaved, machine, ratios
from vitrail.training.trained import Trained, open_trained


class Peer(Engine):
    """timm's model, eager float32, on images that are normalised already."""

    backend = "timm, eager float32"

    def __init__(self, name: str, card: Card) -> None:
        super().__init__("timm", card)
        self.model = timm.create_model(name, num_classes=len(card.labels)).eval()

    @torch.inference_mode()
    def run(self, images: np.ndarray) -> np.ndarray:
        return self.model(torch.from_numpy(images).permute(0, 3, 1, 2).float()).numpy()


class Compiled(Engine):
    """The eager model in bf16, compiled for this processor."""

    backend = "torch.compile, bf16"

    def __init__(self, other: TorchEngine) -> None:
        super().__init__("compiled", other.card)
        self.pixels = other.module.pixels
        self.model = torch.compile(other.module.model.to(torch.bfloat16), mode="max-autotune-no-cudagraphs")

    @torch.inference_mode()
    def run(self, images: np.ndarray) -> np.ndarray:
        return self.model(self.pixels(torch.from_numpy(images)).bfloat16()).float().numpy()


def trained(options: argparse.Namespace) -> Trained:
    """Published weights, or random ones with a head that tells images apart."""
    if options.weights:
        return open_trained(options.weights)
    torch.manual_seed(0)
    model = vitrail.create(options.model)
    torch.nn.init.normal_(model.head.weight, std=0.05)
    with tempfile.TemporaryDirectory() as folder:
        vitrail.save(model, folder)
        return open_trained(folder)


def contenders(options: argparse.Namespace, folder: Path, pictures: list[Any]) -> dict[str, Engine]:
    """timm, ourselves eager, and every artefact."""
    torch.set_num_threads(options.threads)
    eager = TorchEngine("vitrail eager", trained(options))
    plain = write_onnx(to_program(eager.module), eager.card, folder / "onnx.onnx")
    pixels = at_size(pictures, eager.image_size, eager)
    int8 = quantise(plain, folder / "onnx-int8.onnx", pixels, QuantiseConfig(calibrate=options.calibrate))
    for source, name in ((plain, "openvino.xml"), (int8.path, "openvino-int8.xml")):
        write_openvino(source, open_artefacts([source])[source.name].card, folder / name)
    engines = {"timm": Peer(options.peer, eager.card), "vitrail": eager}
    return engines | open_artefacts(artefacts_in(folder), (options.threads,))


def measure(engines: dict[str, Engine], pixels: np.ndarray, options: argparse.Namespace) -> list[dict[str, Any]]:
    expected, rows = in_batches(engines["vitrail"], pixels, 8), []
    if options.compile:
        engines = engines | {"compiled bf16": Compiled(TorchEngine("bf16", trained(options)))}
    agreement = {name: differences(expected, in_batches(e, pixels, 8)) for name, e in engines.items() if name != "timm"}
    for batch in options.batches:
        images = np.concatenate([pixels] * -(-batch // len(pixels)))[:batch]
        taken = interleaved({n: (lambda e=e, x=images: e.run(x)) for n, e in engines.items()}, rounds=options.rounds)
        for name, speed in ratios(taken, "timm").items():
            error, cosine, same = agreement.get(name, (None, None, None))
            seconds = Spread.of(taken[name]).median
            rows.append(
                {"engine": name, "batch": batch, "ms": 1000 * seconds, "images_per_s": batch / seconds}
                | {"times_timm": speed.median, "low": speed.low, "high": speed.high}
                | {"agreement": same, "cosine": cosine, "error": error}
            )
    return rows


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", default="vit_base_patch16")
    options.add_argument("--peer", default="vit_base_patch16_224")
    options.add_argument("--weights")
    options.add_argument("--images", required=True)
    options.add_argument("--count", type=int, default=200)
    options.add_argument("--calibrate", type=int, default=64)
    options.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    options.add_argument("--rounds", type=int, default=9)
    options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options.add_argument("--compile", action="store_true")
    options.add_argument("--json", type=Path)
    chosen = options.parse_args()
    warnings.simplefilter("ignore")
    pictures = read_pictures(chosen.images, chosen.count)
    with tempfile.TemporaryDirectory() as folder:
        engines = contenders(chosen, Path(folder), pictures)
        rows = measure(engines, at_size(pictures, engines["vitrail"].image_size, engines["vitrail"]), chosen)
    header = (
        f"{chosen.model}, {len(pictures)} images, {chosen.rounds} rounds; {machine()}, timm {timm.__version__}; seed 0"
    )
    table = Table("engine", "batch", "ms", "images/s", "times timm", "middle half", "agreement", title=header)
    for row in rows:
        same = "" if row["agreement"] is None else f"{100 * row['agreement']:.1f} %"
        spread = f"{row['low']:.2f} to {row['high']:.2f}"
        numbers = (f"{row['ms']:.1f}", f"{row['images_per_s']:.1f}", f"{row['times_timm']:.2f}", spread, same)
        table.add_row(row["engine"], str(row["batch"]), *numbers)
    Console(width=140).print(table)
    if chosen.json:
        chosen.json.write_text(json.dumps({"setting": header, "results": rows}, indent=2))


if __name__ == "__main__":
    main()
