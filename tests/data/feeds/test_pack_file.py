"""The file of packed images: whole or not there, and its pixels mapped, not read."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitrail.data.feeds import pack_file


def blocks() -> Iterator[Tensor]:
    yield from torch.arange(48, dtype=torch.uint8).view(2, 2, 3, 2, 2)


def test_pixels_and_description_come_back(tmp_path: Path) -> None:
    path, order = tmp_path / "x.pack", []
    pack_file.write(path, blocks(), lambda: order.append(path.exists()) or {"name": "é", "count": 4})
    pixels, about = pack_file.read(path, whole=True)
    assert torch.equal(pixels, torch.arange(48, dtype=torch.uint8))
    assert (about["name"], about["count"], len(about["pixels"])) == ("é", 4, 64)
    assert order == [False]  # asked before the file is there, and after the last block
    assert [file.name for file in tmp_path.iterdir()] == ["x.pack"]


def test_nothing_is_a_file_without_images(tmp_path: Path) -> None:
    pack_file.write(tmp_path / "x.pack", iter(()), dict)
    assert pack_file.read(tmp_path / "x.pack")[0].shape == (0,)


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.pack"
    pack_file.write(path, blocks(), lambda: {"version": 1})

    def failing() -> Iterator[Tensor]:
        yield next(blocks())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack_file.write(path, failing(), lambda: {"version": 2})
    assert pack_file.read(path)[1]["version"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["x.pack"]


@pytest.mark.parametrize(("length", "word"), [(10, "few"), (-1, "end"), (-60, "end")])
def test_a_file_that_was_cut_off_cannot_be_used(tmp_path: Path, length: int, word: str) -> None:
    path = tmp_path / "x.pack"
    pack_file.write(path, blocks(), dict)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(pack_file.Unusable, match=word):
        pack_file.read(path)
