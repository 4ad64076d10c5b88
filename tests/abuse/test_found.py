"""What the abuse suite has found, each as the smallest input that showed it."""

import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from support.abused import specimens
from support.abused.loaders import LOADERS

from vitrail.errors import VitrailError

DEEP = b"[" * 100_000


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def card(**state: object) -> bytes:
    return json.dumps(json.loads(specimens.card()) | {"state": state}).encode()


def card_of_version(version: object) -> bytes:
    return json.dumps(json.loads(specimens.card()) | {"version": version}).encode()


def shard(label: bytes) -> bytes:
    """A shard whose labels, all of one byte, are another text."""
    data = bytearray(specimens.shard_files()["cls-gnu.tar"])
    at = -1
    while (at := data.find(b"ustar", at + 1)) != -1:
        start = at - 257
        if data[start : start + 100].rstrip(b"\0").endswith(b".cls"):
            data[start + 124 : start + 136] = b"%011o\0" % len(label)
            data[start + 512 : start + 512 + len(label)] = label
            data[start + 148 : start + 156] = b" " * 8
            data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    return bytes(data)


def openvino(old: bytes, new: bytes) -> bytes:
    """The .xml of an OpenVINO model with another text in it."""
    return specimens.openvino_files()["model.xml"].replace(old, new)


def shifted() -> bytes:
    """A .pt2 whose table of contents says that it begins later than it does: parts would lie before the file."""
    data = bytearray(specimens.program()["model.pt2"])
    for mark, at, size in ((b"PK\x05\x06", 16, 4), (b"PK\x06\x06", 48, 8)):
        if (start := data.rfind(mark)) != -1:
            place = int.from_bytes(data[start + at : start + at + size], "little")
            data[start + at : start + at + size] = (place + 1000).to_bytes(size, "little")
    return bytes(data)


def index(name: str) -> bytes:
    """The index of a sharded checkpoint that names another file."""
    return json.dumps({"weight_map": {"head.weight": name}}).encode()


def convnext(**changes: object) -> bytes:
    about = json.loads(specimens.checkpoint("hf", "convnext_tiny")["config.json"])
    return json.dumps(about | changes).encode()


ROW = {"path": "a", "label": "b", "error": None, "model": "m"}
FOUND = {
    "labels of arrays that are numbers without end": ("arrays", {"train_labels.npy": npy(np.full(6, 2**40))}),
    "an array without sides": ("arrays", {"train_labels.npy": npy(np.array(3))}),
    "an archive of what is no array": ("arrays", {"data.npz": npz(**{"X.npy": b"x", "y": b"y", "X": b"x"})}),
    "class names that are not text": ("arrays", {"classes.txt": b"\xff\xfe"}),
    "a header with an open bracket": ("arrays", {"train_images.npy": b"\x93NUMPY\1\0\x02\0(\n"}),
    "an idx file that claims gigabytes": ("idx", {"train-images-idx3-ubyte": b"\0\0\x08\x01\x3f\xff\xff\xff"}),
    "a class number without end": ("shards", {"train.tar": lambda: shard(b"99999999999")}),
    "a label of deeply nested JSON": ("jsonl", {"table.jsonl": b'{"image": ' + DEEP}),
    "a row of deeply nested JSON": ("predictions", {"table.jsonl": DEEP}),
    "a row whose model is a list": ("predictions", {"table.jsonl": json.dumps(ROW | {"model": []}).encode()}),
    "a row whose image is a list": ("predictions", {"table.jsonl": json.dumps(ROW | {"path": []}).encode()}),
    "a state with an unknown key": ("card", {"card.json": lambda: card(temperature={"x": 1})}),
    "a state that is a number": ("card", {"card.json": lambda: card(temperature=1.5)}),
    "an artefact with an endless name": (
        "choice",
        {"fastest.json": b'{"artefact": "%s", "threads": 1}' % (b"x" * 999)},
    ),
    "classes numbered by words": ("yolo", {"data.yaml": b"train: images/train\nnames: {0: a, b: c}\n"}),
    "a deeply nested record": ("run", {"run.json": DEEP}),
    "an output with another name": (
        "openvino",
        {"model.xml": lambda: openvino(b'names="logits"', b'names="other"')},
    ),
    "an input with another name": ("openvino", {"model.xml": lambda: openvino(b'names="images"', b'names="other"')}),
    "an input with other numbers": (
        "openvino",
        {"model.xml": lambda: openvino(b'element_type="u8"', b'element_type="i8"')},
    ),
    "parts that lie before the file": ("pt2", {"model.pt2": shifted}),
    "a shard with an endless name": ("timm checkpoint", {"model.safetensors.index.json": index("x" * 5000)}),
    "a shard outside of its folder": ("timm checkpoint", {"model.safetensors.index.json": index("../a.safetensors")}),
    "a list without end in a config": (
        "convnext checkpoint",
        {"config.json": lambda: convnext(depths=[1, 1, 2, 1] * 1000)},
    ),
    "a card whose version is a long list": ("card", {"card.json": lambda: card_of_version([-15] * 5000)}),
    "sides beyond any array, one of them zero": (
        "idx",
        {"train-images-idx3-ubyte": struct.pack(">BBBB4I", 0, 0, 8, 4, 0, 458_752, 1 << 27, 1 << 31)},
    ),
    "a header of lines": ("csv", {"table.csv": b'"%s"\r\n' % (b"images/0.png,cat\r" * 300)}),
    "a path that is a long list": ("jsonl", {"table.jsonl": json.dumps({"image": [None] * 5000}).encode()}),
    "a path with half of a pair of surrogates": ("jsonl", {"table.jsonl": b'{"image": "\\ud800.png", "label": "a"}'}),
    "a path too long for a file": ("csv", {"table.csv": b"path,label\n%s,a\n" % (b"9" * 5000)}),
    "a deeply nested config": ("hugging face checkpoint", {"config.json": DEEP}),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_was_found_is_refused(case: str, tmp_path: Path) -> None:
    name, changes = FOUND[case]
    loader = LOADERS[name]
    files = next(source() for source in loader.sources if changes.keys() <= source().keys())
    for file, data in (files | changes).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(data() if callable(data) else data)
    with pytest.raises(VitrailError) as caught:
        loader.load(tmp_path)
    assert len(str(caught.value)) < 1500


def test_a_prediction_for_an_endless_name_is_kept_as_a_row(tmp_path: Path) -> None:
    row = {"path": "9" * 5000, "file": "a.png", "classes": {}, "error": None, "model": "m"}
    for name, data in (specimens.mask_folder() | {"predictions.jsonl": json.dumps(row).encode() + b"\n"}).items():
        (tmp_path / name).write_bytes(data)
    LOADERS["masks"].load(tmp_path)
    assert "9" * 5000 in (tmp_path / "predictions.jsonl").read_text()
