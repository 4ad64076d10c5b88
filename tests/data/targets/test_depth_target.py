"""Depth maps: millimetres in PNG, metres in floats, 0 for unknown."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.targets import DepthTarget
from vitrail.data.targets.depth_target import depth_references, read_depth
from vitrail.errors import BrokenImage

HUGE = b"{'descr': '<f8', 'fortran_order': False, 'shape': (%d,)}" % (1 << 42)
HUGE = b"\x93NUMPY\1\0v\0" + HUGE.ljust(117) + b"\n"  # 32 TB
METRES = np.float32([[0.5, 1.25, 0.0], [2.0, 60.0, 3.5]])


def test_every_format_gives_metres(tmp_path):
    Image.fromarray((METRES * 1000).astype(np.uint16)).save(tmp_path / "a.png")
    Image.fromarray(METRES).save(tmp_path / "a.tiff")
    np.save(tmp_path / "a.npy", METRES)
    np.save(tmp_path / "b.npy", (METRES * 1000).astype(np.uint16)[None])
    (tmp_path / "a.pfm").write_bytes(b"Pf\n3 2\n-1.0\n" + METRES[::-1].astype("<f4").tobytes())
    for name in ("a.png", "a.tiff", "a.npy", "b.npy", "a.pfm"):
        np.testing.assert_allclose(read_depth(tmp_path / name, 1000.0), METRES, err_msg=name)


def test_units_per_metre_hold_for_whole_numbers(tmp_path):
    Image.fromarray((METRES * 256).astype(np.uint16)).save(tmp_path / "a.png")
    target, values = DepthTarget(), depth_references([tmp_path / "a.png", None], 256.0)
    assert torch.equal(target.load(values[0]), torch.from_numpy(METRES))
    assert target.load(values[1]).tolist() == [[0]]


def test_what_is_not_a_distance_is_unknown(tmp_path):
    np.save(tmp_path / "a.npy", np.float64([[np.nan, np.inf], [-1, 2]]))
    assert read_depth(tmp_path / "a.npy", 1000.0).tolist() == [[0, 0], [0, 2]]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.npy", b"junk"),
        ("a.npy", HUGE),
        ("a.pfm", b"Pf\n3 2\n-1.0\nshort"),
        ("a.pfm", b"PF\n1 1\n-1.0\n" + bytes(12)),
        ("a.png", b"junk"),
        ("a.npy", None),
    ],
)
def test_damaged_files_are_named(tmp_path, name, data):
    if data is None:
        np.save(tmp_path / name, np.zeros((2, 3, 4)))
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(BrokenImage, match=name):
        read_depth(tmp_path / name, 1000.0)


def test_text_and_drawing(tmp_path):
    np.save(tmp_path / "a.npy", METRES)
    target, values = DepthTarget(), depth_references([tmp_path / "a.npy"])
    assert target.text(target.load(values[0])) == "0.5 to 60, median 2"
    assert target.text(torch.zeros(2, 3)) == "not annotated"
    grey = torch.full((3, 2, 3), 100, dtype=torch.uint8)
    drawn = target.draw(grey, values[0])
    assert drawn[:, 0, 2].tolist() == [100, 100, 100]  # unknown
    near, far = drawn[:, 0, 0], drawn[:, 1, 1]
    assert near[0] > far[0]  # near is warm


def test_the_audit_gives_the_range(tmp_path):
    np.save(tmp_path / "a.npy", METRES)
    values = depth_references([tmp_path / "a.npy"] * 2)
    row = DepthTarget().audit({"train": values}).sections[0].rows[0]
    assert (row["maps"], row["nearest"], row["farthest"]) == (2, 0.5, 60)
    assert row["known pixels"] == pytest.approx(5 / 6)
