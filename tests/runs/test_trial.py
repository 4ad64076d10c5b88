"""A model is tried on one picture before it is used; an artefact must compute what its certificate says."""

import pytest
import torch
from support.small_service import Brightness, Greyness
from torch import Tensor

from vitrail.data.preprocess import Preprocess
from vitrail.errors import CheckpointError
from vitrail.runs.trial import trial_picture, try_model


class Changed(Brightness):
    """Outputs of some other shape or value."""

    def __init__(self, change) -> None:
        super().__init__()
        self.change = change

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        return self.change(super().outputs(images)["logits"])


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda logits: {"logits": logits * float("nan")}, "finite"),
        (lambda logits: {"logits": logits.index_fill(1, torch.tensor([1]), float("inf"))}, "finite"),
        (lambda logits: {"logits": logits, "other": torch.tensor([[float("nan")]])}, "finite"),
        (lambda logits: {"logits": logits[:, :2]}, "outputs"),
        (lambda logits: {"logits": logits.repeat(2, 1)}, "row"),
        (lambda logits: {"logits": logits[0, 0]}, "shapes"),
        (lambda logits: {}, "shapes"),
    ],
)
def test_models_that_are_not_usable(change, word) -> None:
    with pytest.raises(CheckpointError, match=word):
        try_model(Changed(change))


def test_models_that_are() -> None:
    for engine in (Brightness(), Greyness()):
        assert len(next(iter(try_model(engine).values()))) == 1


def test_the_picture_is_the_same_for_ever() -> None:
    picture = trial_picture(Preprocess(image_size=(12, 16), channels=3))
    assert (picture.shape, picture.dtype) == ((1, 3, 12, 16), torch.uint8)
    assert picture.sum(dim=(2, 3)).tolist() == [[21778, 28738, 25458]]
