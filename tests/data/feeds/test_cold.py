"""Cold packing: any order, several sizes of one decoding, all files or none."""

from pathlib import Path

import pytest
import torch
from support.numbered_images import Numbered

from vitrail.data.broken import Tally
from vitrail.data.dataset import RandomSubset, Retargeted, Subset
from vitrail.data.feeds import cold, pack_file
from vitrail.data.feeds.cold import Wanted, build, rows_in
from vitrail.data.feeds.packing import pack, wanted_file
from vitrail.data.preprocess import Preprocess
from vitrail.errors import DataError

LARGE, SMALL = Preprocess(image_size=(4, 4)), Preprocess(image_size=(2, 3))


def wanted(data: Subset | Numbered, fit: Preprocess, folder: Path) -> Wanted:
    found = wanted_file(data, fit, folder)
    assert found is not None
    return found


@pytest.mark.parametrize("broken", [[], [3, 7]])
def test_an_order_and_a_part_at_another_size(
    tmp_path: Path, broken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files are those that are made one after the other, in order."""
    monkeypatch.setattr(cold, "_BLOCK", 4 * 48)
    whole, order = Numbered(20, broken=broken), [7, 19, 2, *(at for at in range(20) if at not in (2, 7, 19))]
    part = RandomSubset(whole, [9, 3, 19])
    seen: list[int] = []
    build(
        wanted(whole, LARGE, tmp_path), [wanted(part, SMALL, tmp_path)], workers=2, tally=Tally(1000), order=order,
        arrived=lambda block: seen.extend(block.indices),
    )  # fmt: skip
    assert seen == order
    whole.read = None  # type: ignore[assignment,method-assign]  (nothing is decoded again)
    for data, fit in ((whole, LARGE), (part, SMALL)):
        found = pack(data, fit, folder=tmp_path, tally=Tally(1000))
        apart = pack(
            data if data is whole else RandomSubset(Numbered(20, broken=broken), part.indices), fit, folder=tmp_path
        ) if not broken else found  # fmt: skip
        assert torch.equal(found.images, apart.images)
        numbers = range(20) if data is whole else part.indices
        readable = [number for number in numbers if number not in broken]
        rows = torch.arange(len(found)) if found.rows is None else found.rows
        assert found.images[rows][:, 0, 0, 0].tolist() == readable
        assert found.sizes.tolist() == [[4, 4]] * len(readable)


def test_an_error_leaves_no_file(tmp_path: Path) -> None:
    whole = Numbered(40, broken=range(5))
    part = RandomSubset(whole, [1, 2, 9])
    with pytest.raises(DataError, match="limit"):
        build(wanted(whole, LARGE, tmp_path), [wanted(part, SMALL, tmp_path)], tally=Tally(40))
    assert not list(tmp_path.iterdir())


def test_rows_of_parts_of_parts() -> None:
    whole = Numbered(10)
    outer, inner = Subset(whole, [8, 2, 5, 1]), Subset(Subset(whole, [1, 5, 8]), [2, 0])
    assert rows_in(outer, Retargeted(inner, {}, {})) == {0: 0, 3: 1}
    assert rows_in(inner, outer) is None
    assert rows_in(outer, Numbered(10)) is None
    assert rows_in(whole, Subset(whole, [3, 3])) is None


def test_rows_of_a_file_in_any_order(tmp_path: Path) -> None:
    """Its checksums are those of a file that was written in order."""
    images = torch.arange(7 * 12, dtype=torch.uint8).view(7, 3, 2, 2)
    pack_file.write(tmp_path / "a", [images[:3], images[3:6], images[6:]], dict)
    rows = pack_file.Rows(tmp_path / "b", rows=7, size=12, together=3)
    rows.put(5, images[5:])
    rows.put(0, images[:2])
    assert torch.equal(rows.pixels[60:], images[5:].flatten())
    rows.put(2, images[2:5])
    rows.finish(7, {})
    rows.close()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert torch.equal(pack_file.read(tmp_path / "b", whole=True)[0], images.flatten())
