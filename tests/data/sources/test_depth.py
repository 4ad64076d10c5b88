"""Depth maps beside images."""

import numpy as np
import pytest
from PIL import Image
from support.annotated import SIZE, depth, masks

from vitrail.data.audit.doctor import examine
from vitrail.data.sources.opening import find, open_data
from vitrail.data.sources.table import Wanted
from vitrail.errors import DataError
from vitrail.training.run import train


def first(found):
    return found.train.schema["depth"].load(found.train.targets["depth"][0])


def test_millimetres_by_default_or_as_a_file_says(tmp_path):
    found = find(depth(tmp_path))
    assert "depth: train 4 images" in found.notes[0]
    assert float(first(found).max()) == 1.5
    (tmp_path / "depth_scale.txt").write_text("256\n")
    assert float(first(find(tmp_path)).max()) == 1500 / 256


@pytest.mark.parametrize("text", ["mm", "0", "-1", "inf", ""])
def test_a_scale_that_is_not_a_number_is_refused(tmp_path, text):
    depth(tmp_path)
    (tmp_path / "depth_scale.txt").write_text(text)
    with pytest.raises(DataError, match="depth_scale"):
        find(tmp_path)


def test_floats_are_metres(tmp_path):
    depth(tmp_path)
    for number in range(4):
        (tmp_path / "depth" / f"{number}.png").unlink()
        np.save(tmp_path / "depth" / f"{number}.npy", np.full(SIZE[::-1], 3.25, np.float32))
    assert float(first(find(tmp_path)).max()) == 3.25


def test_masks_come_first_unless_depth_is_wanted(tmp_path):
    depth(masks(tmp_path))
    found = find(tmp_path)
    assert set(found.train.schema) == {"mask"}
    assert any("--task depth" in note for note in found.notes)
    assert set(find(tmp_path, wanted=Wanted(kinds=("depth",))).train.schema) == {"depth"}


def test_all_kinds_that_a_task_names_are_read_together(tmp_path):
    depth(masks(tmp_path, count=5), count=4)
    found = find(tmp_path, wanted=Wanted(kinds=("boxes", "mask", "depth")))
    assert set(found.train.schema) == {"mask", "depth"}
    assert len(found.train) == 5
    target = found.train.schema["depth"]
    assert [target.text(value) for value in found.train.targets["depth"]][-1] == "not annotated"


def test_a_depth_map_without_an_image_is_named(tmp_path):
    depth(tmp_path)
    (tmp_path / "images" / "2.png").unlink()
    (finding,) = find(tmp_path).findings.serious
    assert finding.file.endswith("depth/2.png")


@pytest.mark.parametrize("suffix", [".png", ".npy", ".exr", ".pfm"])
def test_a_damaged_depth_map_is_named_and_left_out(tmp_path, suffix):
    depth(tmp_path)
    (tmp_path / "depth" / "1.png").unlink()
    (tmp_path / "depth" / f"1{suffix}").write_bytes(b"x")
    found = find(tmp_path)
    (finding,) = found.findings.serious
    assert finding.file.endswith(f"depth/1{suffix}")
    assert "cannot be read" in finding.kind
    assert len(found.train) == 3
    with pytest.raises(DataError, match="annotations"):
        open_data(tmp_path)


def test_a_depth_map_that_ends_too_early_is_named_by_the_audit_and_by_training(tmp_path, monkeypatch):
    depth(tmp_path)
    noise = np.random.default_rng(0).integers(1, 60000, SIZE[::-1], np.uint16)
    Image.fromarray(noise).save(file := tmp_path / "depth" / "1.png")
    file.write_bytes(file.read_bytes()[:600])  # the header is all right
    splits = open_data(tmp_path)
    assert not splits.findings.serious
    (row,) = examine(splits)["Faults"].rows
    assert "depth/1.png" in row["problem"]
    assert "truncated" in row["problem"]
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"depth/1\.png"):
        train(splits, model="vit32_small", folder=tmp_path / "run", device="cpu", silent=True, image_size=16, epochs=1)


def test_opening_decodes_no_png(tmp_path, monkeypatch):
    monkeypatch.setattr("vitrail.data.sources.depth.read_depth", lambda *_: pytest.fail("it was decoded"))
    assert len(find(depth(tmp_path)).train) == 4


def test_a_picture_in_colours_is_no_depth_map(tmp_path):
    depth(tmp_path)
    Image.new("RGB", SIZE).save(tmp_path / "depth" / "1.png")
    (finding,) = find(tmp_path).findings.serious
    assert "colours" in finding.problem


def test_a_depth_map_of_another_size_is_named_and_left_out(tmp_path):
    depth(tmp_path)
    np.save(tmp_path / "depth" / "1.npy", np.ones((3, 4), np.float32))
    (tmp_path / "depth" / "1.png").unlink()
    (finding,) = find(tmp_path).findings.serious
    assert "4 x 3 pixels" in finding.problem
    assert "size" in finding.kind


def test_a_split_without_a_usable_depth_map_is_refused(tmp_path):
    depth(tmp_path)
    for path in (tmp_path / "depth").iterdir():
        path.write_bytes(b"x")
    with pytest.raises(DataError, match="no usable"):
        find(tmp_path)
