"""Limits on files of data: each is reached with a small file, by a limit that is smaller still."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.abused import specimens as given

from vitrail.data.sources import arrays, cifar, shards, voc, yolo
from vitrail.data.sources.opening import find
from vitrail.errors import DataError

CASES: dict[str, tuple[Callable[[], dict[str, bytes]], object, str, int]] = {
    "idx array": (given.idx_files, arrays, "_IDX_LIMIT", 10),
    "batch of CIFAR": (given.cifar_files, cifar, "_MEMBER_LIMIT", 10),
    "label in a shard": (lambda: {"train.tar": given.shard_files()[given.SHARDS[0]]}, shards, "_LABEL_LIMIT", 0),
    "annotations of YOLO": (lambda: given.boxes("yolo"), yolo, "_LIMIT", 5),
    "list of Pascal VOC": (lambda: given.boxes("voc"), voc, "_LIST_LIMIT", 1),
}


@pytest.mark.parametrize("name", CASES)
def test_beyond_a_limit_is_an_error(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, module, limit, value = CASES[name]
    for file, data in make().items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(data)
    find(tmp_path)
    monkeypatch.setattr(module, limit, value)
    with pytest.raises(DataError, match=f"{tmp_path.name}|list|label|larger"):
        find(tmp_path)


def test_numbered_classes() -> None:
    assert len(arrays.numbered_classes(2)) == 3
    with pytest.raises(DataError, match="too high"):
        arrays.numbered_classes(arrays.MAX_CLASSES)
