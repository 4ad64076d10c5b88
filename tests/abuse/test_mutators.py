"""Mutators: the same bytes for a seed, other bytes for another, whatever they are given; the valid files are valid."""

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.abused import specimens
from support.abused.confined import confined
from support.abused.loaders import LOADERS
from support.mutate import graphs, heavy_pictures, pictures, raw, requests, tables, trees, weights

CASES = 50


def first_of(kind: str) -> bytes:
    return pictures.originals()[kind][0]


JSON, YAML = b'{"a": [1, {"b": null}], "c": "d"}', b"epochs: 3\noptimiser:\n  lr: 0.1\n"
XML = b'<net><layer id="0" type="Const"/>\n<dim>3</dim></net>'
ORIGINALS: dict[str, tuple[Callable[[bytes, random.Random], bytes], Callable[[], bytes]]] = {
    **{f"{kind} picture": (pictures.FORMATS[kind], partial(first_of, kind)) for kind in pictures.FORMATS},
    "json": (trees.mutated_json, lambda: JSON),
    "json lines": (trees.mutated_json_lines, lambda: JSON + b"\n" + JSON),
    "yaml": (trees.mutated_yaml, lambda: YAML),
    "safetensors": (weights.safetensors, lambda: specimens.checkpoint("timm")["model.safetensors"]),
    "torch archive": (weights.archive, lambda: specimens.torch_checkpoint(legacy=False)["model.pth"]),
    "pickle": (weights.pickled, lambda: specimens.cifar_files()["cifar-10-batches-py/test_batch"]),
    "protobuf": (graphs.onnx_model, lambda: specimens.onnx_files()["model.onnx"]),
    "xml": (graphs.xml, lambda: XML),
    "csv": (tables.comma_separated, lambda: specimens.csv_files()["table.csv"]),
    "parquet": (tables.parquet, lambda: specimens.predictions(".parquet")["table.parquet"]),
    "tar": (tables.tar, lambda: specimens.shard_files()[specimens.SHARDS[0]]),
    "npy": (tables.npy, lambda: specimens.array_files()["train_images.npy"]),
    "idx": (tables.idx, lambda: specimens.idx_files()["train-images-idx3-ubyte"]),
    "lines": (tables.lines, lambda: b"cat\ndog\n"),
    "any bytes": (raw.damaged, lambda: b"anything at all"),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_mutants_follow_from_their_seed(name: str) -> None:
    mutate, data = ORIGINALS[name][0], ORIGINALS[name][1]()
    first, again = ([mutate(data, random.Random(seed)) for seed in range(CASES)] for _ in range(2))
    assert first == again
    assert len(set(first)) > CASES // 3


@pytest.mark.parametrize("name", ORIGINALS)
@pytest.mark.parametrize("data", [b"", b"\0", b"\xff" * 40], ids=["empty", "a byte", "noise"])
def test_mutators_take_anything(name: str, data: bytes) -> None:
    for seed in range(10):
        assert isinstance(ORIGINALS[name][0](data, random.Random(seed)), bytes)


@pytest.mark.parametrize("make", [requests.upload, requests.grammar])
def test_requests_follow_from_their_seed(make: Callable[[random.Random], requests.Sent]) -> None:
    first, again = ([make(random.Random(seed)) for seed in range(CASES)] for _ in range(2))
    assert first == again
    assert {sent.whole for sent in first} == {make is requests.upload}


def test_an_upload_is_valid_http() -> None:
    for seed in range(CASES):
        top, _, body = requests.upload(random.Random(seed)).data.partition(b"\r\n\r\n")
        assert int(re.search(rb"content-length: (\d+)", top)[1]) == len(body)


def test_segments_and_chunks_are_put_together_again() -> None:
    for file in pictures.originals()["jpeg"]:
        assert pictures.jpeg_joined(pictures.jpeg_segments(file)) == file
    for file in pictures.originals()["png"]:
        assert pictures.png_joined(pictures.png_chunks(file)) == file
    for file in pictures.originals()["webp"]:
        assert pictures.riff_joined(pictures.riff_chunks(file)) == file


def test_messages_of_a_protobuf_are_put_together_again() -> None:
    model = specimens.onnx_files()["model.onnx"]
    assert graphs.joined(graphs.fields(model)) == model


def test_costly_files_are_small() -> None:
    assert len(heavy_pictures.tiles(46_336)) < 300
    assert len(heavy_pictures.many_scans(500)) < 100_000


@pytest.mark.parametrize("name", [name for name in LOADERS if name not in (*pictures.FORMATS, "form", "url")])
def test_the_valid_files_are_read(name: str, tmp_path: Path) -> None:
    same = LOADERS[name]._replace(mutators=dict.fromkeys(LOADERS[name].mutators, lambda data, chance: data))
    assert [one.result for one in confined(same, range(2), tmp_path)] == ["read"] * 2
