"""Small valid files of everything that vitrail reads, as bytes by name: what the mutators start from."""

import io
import json
import pickle
import re
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitrail
from support import annotated
from support.mutate.pictures import originals
from support.registered import tiny
from support.run_folder import run_folder
from support.shipped import trained
from vitrail.data.feeds import pack_file
from vitrail.deploy.artefact.card import KEY, Card
from vitrail.deploy.artefact.runtimes import needs

Files = dict[str, bytes]


def folder_files(make: Callable[[Path], object]) -> Files:
    """What a function writes into a folder."""
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        return {
            str(file.relative_to(name)): file.read_bytes() for file in sorted(Path(name).rglob("*")) if file.is_file()
        }


@cache
def run() -> Files:
    """A run's folder."""
    return folder_files(run_folder)


@cache
def run_without_sums() -> Files:
    """The same as somebody who changed it on purpose would send it."""
    return {name: data for name, data in run().items() if name != "SHA256SUMS"}


@cache
def boxes(kind: str) -> Files:
    """Pictures with boxes: of COCO, Pascal VOC or YOLO."""
    return folder_files({"coco": annotated.coco, "voc": annotated.voc, "yolo": annotated.yolo}[kind])


@cache
def checkpoint(to: str, name: str = "vit_tiny_patch16") -> Files:
    """A checkpoint of a dialect."""
    torch.manual_seed(0)
    model = tiny(name)

    def make(folder: Path) -> None:
        vitrail.save(model, folder / "ours")
        vitrail.convert(folder / "ours", folder / "theirs", to=to)
        for file in (folder / "ours").iterdir():
            file.unlink()

    return {name.removeprefix("theirs/"): data for name, data in folder_files(make).items()}


HEADS = ("DETR", "Deformable DETR", "RT-DETR", "SegFormer", "EoMT, windows", "EoMT, padded", "DPT")


@cache
def headed(name: str) -> Files:
    """A detector, segmenter or depth model of Hugging Face, with its processor."""
    from parity import processors

    processors.transformers.logging.disable_progress_bar()
    case = next(case for case in processors.CASES if case.name == name)
    return folder_files(lambda folder: processors.write(case, folder))


@cache
def torch_checkpoint(*, legacy: bool) -> Files:
    """A .pth of torchvision's or timm's kind, as an archive or as one pickle."""
    from safetensors.torch import load

    files, file = checkpoint("timm"), io.BytesIO()
    content = {"state_dict": load(files["model.safetensors"]), "epoch": 3}
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return {"model.pth": file.getvalue(), "config.json": files["config.json"]}


@cache
def sharded() -> Files:
    """A checkpoint in two files with an index."""
    from safetensors.torch import load, save

    files = checkpoint("timm")
    tensors = load(files["model.safetensors"])
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    index = {"metadata": {}, "weight_map": {name: file for file, held in halves.items() for name in held}}
    made = {file: save({name: tensors[name] for name in held}) for file, held in halves.items()}
    return made | {"model.safetensors.index.json": json.dumps(index).encode(), "config.json": files["config.json"]}


class Averages(torch.nn.Module):
    """The smallest thing that could have been exported: five numbers from the mean colour."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.head = torch.nn.Linear(3, outputs)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"logits": self.head(images.float().mean(dim=(1, 2)))}


@cache
def card() -> str:
    """The card of an exported classifier."""
    return Card.of(trained(record=True)).to_json()


@cache
def program() -> Files:
    """A .pt2."""
    torch.manual_seed(0)
    free = {
        0: torch.export.Dim("b", min=1, max=64),
        1: torch.export.Dim("h", max=999),
        2: torch.export.Dim("w", max=999),
    }
    outputs = len(json.loads(card())["schema"]["label"]["classes"])
    images = torch.zeros(2, 16, 17, 3, dtype=torch.uint8)
    exported = torch.export.export(Averages(outputs), (images,), dynamic_shapes={"images": free})
    file = io.BytesIO()
    torch.export.save(exported, file, extra_files={KEY: card()})
    return {"model.pt2": file.getvalue()}


@cache
def onnx_files() -> Files:
    """A .onnx with its card."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    outputs = len(json.loads(card())["schema"]["label"]["classes"])
    weight = numpy_helper.from_array(np.full((3, outputs), 0.01, np.float32), "weight")
    axes = numpy_helper.from_array(np.array([1, 2], np.int64), "axes")
    nodes = [
        helper.make_node("Cast", ["images"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["float", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["logits"]),
    ]
    taken = helper.make_tensor_value_info("images", TensorProto.UINT8, ["b", "h", "w", 3])
    given = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", outputs])
    graph = helper.make_graph(nodes, "small", [taken], [given], [weight, axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, {KEY: card()})
    onnx.checker.check_model(model)
    return {"model.onnx": model.SerializeToString()}


@cache
def openvino_files() -> Files:
    """An OpenVINO IR with its card."""
    openvino = needs("openvino")

    def make(folder: Path) -> None:
        (folder / "model.onnx").write_bytes(onnx_files()["model.onnx"])
        model = openvino.Core().read_model(folder / "model.onnx")
        model.set_rt_info(card(), [KEY])
        openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
        (folder / "model.onnx").unlink()

    return folder_files(make)


def images(count: int) -> Files:
    """Pictures that tables name."""
    return {f"images/{number}.png": originals()["png"][0] for number in range(count)}


def csv_files() -> Files:
    """A table with labels and splits."""
    rows = [f"images/{n % 4}.png,{'cat' if n % 2 else 'dog'},{'train' if n < 9 else 'val'}" for n in range(12)]
    return images(4) | {"table.csv": "\n".join(["path,label,split", *rows]).encode()}


def numbers_files() -> Files:
    """A table with numbers."""
    rows = [f"images/{n % 4}.png,{n * 1.5},{-n}" for n in range(12)]
    return images(4) | {"table.tsv": "\n".join(["path,age,angle", *rows]).replace(",", "\t").encode()}


def jsonl_files() -> Files:
    """A table of JSON lines with several labels."""
    rows = [{"image": f"images/{n % 4}.png", "labels": ["a", "b"][: 1 + n % 2]} for n in range(12)]
    return images(4) | {"table.jsonl": "\n".join(map(json.dumps, rows)).encode()}


SHARDS = [f"{suffix}-{kind}.tar" for suffix in ("cls", "txt", "json") for kind in ("pax", "gnu")]


@cache
def shard_files() -> Files:
    """A shard for each kind of label and of long name."""
    labels, formats = (
        {"cls": b"1", "txt": b"cat", "json": b'{"label": 2}'},
        {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT},
    )
    found = {}
    for name in SHARDS:
        suffix, kind = name.removesuffix(".tar").split("-")
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=formats[kind]) as archive:
            for stem in ("long" * 40, "1", "2"):
                for ending, data in (("png", originals()["png"][0]), (suffix, labels[suffix])):
                    info = tarfile.TarInfo(f"{stem}.{ending}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        found[name] = file.getvalue()
    return found


def array_files() -> Files:
    """Arrays with labels."""

    def saved(array: np.ndarray) -> bytes:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()

    pixels, labels = np.zeros((6, 4, 4, 3), np.uint8), np.arange(6) % 2
    return {"train_images.npy": saved(pixels), "train_labels.npy": saved(labels), "classes.txt": b"cat\ndog\n"}


def npz_files() -> Files:
    """The same in one archive."""
    file = io.BytesIO()
    np.savez(file, X=np.zeros((6, 4, 4), np.float32), y=np.arange(6) % 2)
    return {"data.npz": file.getvalue()}


def idx_files() -> Files:
    """MNIST's own format."""
    pixels, labels = bytes(6 * 16), bytes(n % 2 for n in range(6))
    heads = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (6, 4, 4)), b"\0\0\x08\x01\0\0\0\x06"
    return {"train-images-idx3-ubyte": heads[0] + pixels, "train-labels-idx1-ubyte": heads[1] + labels}


def cifar_files() -> Files:
    """The pickles of CIFAR-10, with two images each."""
    batch = pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1]}, protocol=2)
    names = pickle.dumps({"label_names": ["cat", "dog"]}, protocol=2)
    found = {f"cifar-10-batches-py/data_batch_{number}": batch for number in range(1, 6)}
    return found | {"cifar-10-batches-py/test_batch": batch, "cifar-10-batches-py/batches.meta": names}


def packed_files() -> Files:
    """A file of packed images."""
    blocks = [torch.zeros(2, 3, 4, 4, dtype=torch.uint8)] * 2
    about: dict[str, Any] = {"name": "x", "count": 4, "shape": [4, 3, 4, 4]}
    return folder_files(lambda folder: pack_file.write(folder / "pack", blocks, lambda: about))


COLUMNS = ("path", "label", "error", "model")


def predictions(suffix: str) -> Files:
    """A table of predictions that another run of `predict --out` left."""
    rows = [dict(zip(COLUMNS, (f"{n}.png", "cat", None, "m"), strict=True)) for n in range(4)]
    if suffix == ".partial":
        return {"table.csv.partial": b"".join(json.dumps(row).encode() + b"\n" for row in rows)}
    if suffix == ".jsonl":
        return {"table.jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in rows)}
    if suffix == ".csv":
        return {"table.csv": "\r\n".join([",".join(COLUMNS), *(f"{n}.png,cat,,m" for n in range(4)), ""]).encode()}
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    file = io.BytesIO()
    parquet.write_table(arrow.Table.from_pylist(rows), file)
    return {"table.parquet": file.getvalue()}


def depth_maps() -> list[Callable[[], Files]]:
    """A depth map of each format that is read by vitrail's own code."""
    metres = np.linspace(0.5, 60, 12, dtype=np.float32).reshape(3, 4)
    array = io.BytesIO()
    np.save(array, metres)
    float_map = b"Pf\n4 3\n-1.0\n" + metres[::-1].tobytes()
    packed = zlib.compress(b"\0" + b"\x80" * (16 * 40 * 4 * 3 - 1))
    plain = exr({"A": 2, "B": 1, "Z": 2}, 5, 4, compression=0)
    zipped = exr({"R": 2, "Y": 2, "Z": 2}, 40, 16, blocks=((0, packed),))
    files = {"exr": plain, "zipped.exr": zipped, "pfm": float_map, "npy": array.getvalue()}
    return [lambda name=name: {f"a.{name}": files[name]} for name in files]


def exr(
    channels: dict[str, int],
    width: int,
    height: int,
    *,
    compression: int = 3,
    blocks: tuple[tuple[int, bytes], ...] = (),
) -> bytes:
    """An OpenEXR file of these channels (1: half, 2: float); without blocks, those of zeros."""
    kinds = b"".join(name.encode() + struct.pack("<xiIii", kind, 0, 1, 1) for name, kind in channels.items())
    parts = {
        "channels": kinds + b"\0",
        "compression": bytes([compression]),
        "dataWindow": struct.pack("<iiii", 0, 0, width - 1, height - 1),
    }
    head = b"".join(name.encode() + b"\0t\0" + struct.pack("<i", len(data)) + data for name, data in parts.items())
    line = bytes(width * sum(2 * kind for kind in channels.values()))
    blocks = blocks or tuple((row, line) for row in range(height))
    stored = [struct.pack("<ii", row, len(data)) + data for row, data in blocks]
    start = 8 + len(head) + 1 + 8 * len(stored)
    offsets = [start + sum(map(len, stored[:number])) for number in range(len(stored))]
    return b"\x76\x2f\x31\x01\2\0\0\0" + head + b"\0" + struct.pack(f"<{len(stored)}Q", *offsets) + b"".join(stored)


def coco_predictions() -> Files:
    """Boxes as COCO's JSON that another run of `predict --out` left."""
    images = [{"id": n, "file_name": f"{n}.png", "width": 40, "height": 30, "path": f"{n}.png"} for n in (1, 2)]
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1.0, 2.0, 9.5, 8.0], "area": 76.0, "score": 0.75}
    data = {"info": {"model": "m", "errors": {"3.png": "broken"}}, "images": images, "annotations": [box]}
    return {"boxes.json": json.dumps(data | {"categories": [{"id": 1, "name": "cat"}]}).encode()}


def mask_folder() -> Files:
    """A folder of masks that another run of `predict --out` left."""
    row = {"path": "a.png", "file": "a.png", "classes": {}, "error": None, "model": "m"}
    return {"predictions.jsonl": json.dumps(row).encode() + b"\n", "a.png": originals()["png"][0]}


@cache
def lab_results() -> Files:
    """What `vitrail lab temperature --quick --seeds 1` leaves."""
    from vitrail.lab.running import run_experiment
    from vitrail.lab.temperature import Temperature

    files = folder_files(lambda folder: run_experiment(Temperature(), quick=True, seeds=1, folder=folder))
    return {name: re.sub(rb'"seconds": *[0-9.e-]+', b'"seconds":1.5', data) for name, data in files.items()}  # no clock


def search() -> Files:
    """The journal of a search that was killed."""
    ends = {"metrics": {"accuracy": 0.5}, "parts": [[{"accuracy": 0.5}, {"accuracy": 0.4}]] * 5, "reason": ""}
    times = {"epoch_cost": 1.5, "spent": 3.0, "seconds": 3.0}
    about = {"about": "the default", "traits": {"method": "training"}, "state": "over", "epochs": 2}
    trials = [
        {"key": key, "number": number, **about, **times, **ends} for key, number in (("default", 1), ("0.0 a", 2))
    ]
    budget = {"kind": "seconds", "total": 60.0, "spent": 10.5}
    whole = {"version": 1, "data": "photos", "options": {"epochs": 2}, "budget": budget, "chosen": 1}
    return {"tuning.json": json.dumps({**whole, "brackets": [[[3, 5.0], [1, 15.0]]], "trials": trials}).encode()}


def folds() -> Files:
    """What folds have in common."""
    options = {"epochs": 1, "seed": 0, "model": "vit32_conv", "options": {"depth": 1}, "val": 0.1}
    return {"folds.json": json.dumps({"version": 1, "data": "photos", "folds": 3, "options": options}).encode()}


def history() -> Files:
    """The epochs of a run."""
    speed = {"seconds": 3.0, "images_per_second": 100.0, "waiting": 0.1}
    rows = [{"epoch": n, "step": 10 * n, "train/loss": 1.0 / n, "val/accuracy": 0.5, **speed} for n in (1, 2, 3)]
    return {"metrics.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows).encode()}
