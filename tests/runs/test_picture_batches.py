"""Pictures of a data set at their own sizes, with their targets."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from vitrail.data.dataset import Dataset
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.errors import BrokenImage, DataError, Notice
from vitrail.runs.picture_batches import PictureBatches


class Some(Dataset):
    """Pictures of different sizes with a box each; one is broken."""

    def __init__(self, sizes: Sequence[tuple[int, int] | None]) -> None:
        self.sizes, self.name, self.schema = sizes, "some", {"boxes": BoxesTarget(classes=("a",))}
        boxes = torch.zeros(len(sizes), 1, 7)
        boxes[:, 0, :5] = torch.tensor([0.0, 1.0, 2.0, 9.0, 8.0])
        self.targets = {"boxes": boxes}

    def __len__(self) -> int:
        return len(self.sizes)

    def read(self, index: int) -> Tensor:
        if (size := self.sizes[index]) is None:
            raise BrokenImage("it is broken")
        return torch.zeros(3, *size, dtype=torch.uint8)

    def where(self, index: int) -> str:
        return f"picture {index}"

    @property
    def fingerprint(self) -> str:
        return "some"


def test_pictures_at_their_own_sizes() -> None:
    batches = PictureBatches(Some([(20, 30), None, *[(40, 10)] * 130]))
    with pytest.warns(Notice, match="broken"):
        found = list(batches.epoch(0))
    assert [int(batch.ids) for batch in found] == [0, *range(2, 132)]
    assert found[0].images.shape == (1, 3, 20, 30)
    assert torch.equal(found[0].targets["boxes"], batches.dataset.targets["boxes"][:1])  # moved by nothing
    assert batches.skipped == (("picture 1", "it is broken"),)


@pytest.mark.filterwarnings("ignore::vitrail.errors.Notice")
def test_too_many_are_broken() -> None:
    with pytest.raises(DataError, match="limit"):
        list(PictureBatches(Some([None])).epoch(0))
