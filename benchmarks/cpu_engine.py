"""How fast a ViT runs on this CPU in every engine, beside timm's eager float32, in one interleaved run.

    python benchmarks/cpu_engine.py --json cpu_engine.json
    python benchmarks/cpu_engine.py --weights runs/my-vit-b --images photos/ --compile

Every engine takes pixels, timm the same pixels normalised before the clock starts. Agreement is top-1 with the eager
float32 model on every other image; int8 is calibrated and mixed on those between them. Without --weights there are
random ones, with the mean of all patches (a class token that nobody trained says next to nothing), and a head fitted by
ridge regression to the labels of embedded images. Such a model is no trained one: its margins are small, and so is its
agreement.
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
sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import numpy as np
import torch
from peers import timm
from rich.console import Console
from rich.table import Table

import vitrail
from vitrail.cli.shipping import read_pictures
from vitrail.data.cache import fit
from vitrail.data.source import open_whole
from vitrail.deploy.bench import artefacts_in, open_artefacts, open_compiled
from vitrail.deploy.card import Card
from vitrail.deploy.certificate import at_size, differences, in_batches
from vitrail.deploy.engine import Engine, TorchEngine, open_engine
from vitrail.deploy.export import to_program, write_onnx, write_openvino
from vitrail.deploy.quantise import QuantiseConfig, quantise
from vitrail.deploy.timing import Spread, interleaved, machine, ratios
from vitrail.models.backbone import Backbone
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


def trained(options: argparse.Namespace) -> Trained:
    """A run or published weights; or random ones with a fitted head."""
    if options.weights:
        return open_trained(options.weights)
    torch.manual_seed(0)
    model = vitrail.create(options.model, pool={"kind": "mean"}, num_classes=10).eval()
    fit_head(model, options.fit)
    with tempfile.TemporaryDirectory() as folder:
        vitrail.save(model, folder)
        return open_trained(folder)


@torch.inference_mode()
def fit_head(model: Backbone, count: int) -> None:
    """Ridge regression from the features of embedded images to their labels."""
    data = open_whole("demo")
    places = [len(data) - 1 - index * len(data) // (2 * count) for index in range(count)]  # the last half
    pictures = torch.cat([fit(data.read(place)[None], size=model.config.image_size, channels=3) for place in places])
    found: list[torch.Tensor] = []
    hook = model.head.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    for batch in pictures.split(16):
        model(batch / 127.5 - 1)
    hook.remove()
    features = torch.cat(found).double()  # M D
    centre, spread = features.mean(0), features.std(0).mean()
    normal = (features - centre) / spread
    wanted = 10 * (torch.nn.functional.one_hot(data.labels[places], 10) - 0.1)  # M K
    weights = torch.linalg.solve(normal.T @ normal + 3 * torch.eye(normal.shape[1]), normal.T @ wanted.double())
    model.head.weight.copy_(weights.T / spread)
    model.head.bias.copy_(-centre @ weights / spread)


def contenders(options: argparse.Namespace, folder: Path, pictures: list[Any]) -> dict[str, Engine]:
    """timm, ourselves eager and compiled, and every artefact."""
    torch.set_num_threads(options.threads)
    run = trained(options)
    eager = TorchEngine("vitrail eager", run)
    plain = write_onnx(to_program(eager.module), eager.card, folder / "onnx.onnx")
    pixels = at_size(pictures[::2], eager.image_size, eager)  # the others judge below
    int8 = quantise(plain, folder / "onnx-int8.onnx", pixels, QuantiseConfig(calibrate=options.calibrate))
    print(f"int8: {len(int8.kept)} of {len(int8.errors)} layers kept in floating point, agreement {int8.agreement:.3f}")
    for source, name in ((plain, "openvino.xml"), (int8.path, "openvino-int8.xml")):
        write_openvino(source, open_engine(source).card, folder / name)
    engines = {"timm": Peer(options.peer, eager.card), "vitrail": eager}
    engines |= open_compiled("vitrail", run) if options.compile else {}
    return engines | open_artefacts(artefacts_in(folder), (options.threads,))


def measure(engines: dict[str, Engine], pixels: np.ndarray, options: argparse.Namespace) -> list[dict[str, Any]]:
    ours = {name: engine for name, engine in engines.items() if name != "timm"}
    whole = pixels[: len(pixels) // 8 * 8]  # compiled code has a size of batches
    expected, rows = in_batches(engines["vitrail"], whole, 8), []
    agreement = {name: differences(expected, in_batches(engine, whole, 8)) for name, engine in ours.items()}
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
    options.add_argument("--images", default="demo", help="default: the embedded images")
    options.add_argument("--count", type=int, default=400)
    options.add_argument("--calibrate", type=int, default=64)
    options.add_argument("--fit", type=int, default=400, help="images that the head is fitted to, without --weights")
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
        rows = measure(engines, at_size(pictures[1::2], engines["vitrail"].image_size, engines["vitrail"]), chosen)
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
