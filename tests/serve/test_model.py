"""The slot that holds the model in use."""

from support.small_service import Brightness
from torch import Tensor

from vitrail.serve.model import ModelSlot, ServedModel


def test_a_model_that_fails_at_its_first_picture_is_not_taken() -> None:
    class Lame(Brightness):
        def outputs(self, images: Tensor) -> dict[str, Tensor]:
            raise RuntimeError("out of order")

    engines = iter([Brightness(), Lame(), Brightness()])
    slot = ModelSlot(lambda: ServedModel(engine=next(engines)))
    first = slot.served
    assert not slot.reload()
    assert (slot.served, slot.error) == (first, "out of order")
    assert slot.reload()
    assert (slot.served.generation, slot.error) == (2, None)
