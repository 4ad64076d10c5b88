"""Cores of torch in the threads of the service."""

import asyncio

import torch
from support.small_service import Brightness, app, picture, post

from vitrail.serve.upload import File


def test_images_are_resized_on_one_core_and_computed_on_all() -> None:
    class Counts(Brightness):
        def outputs(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            cores.append(torch.get_num_threads())
            return super().outputs(images)

    before, cores = torch.get_num_threads(), list[int]()
    torch.set_num_threads(3)
    try:
        of = app(Counts())
        assert asyncio.run(of.decoders.decode(File("x", picture()), lambda _: torch.get_num_threads(), owner=1)) == 1
        assert post(of, "/predict", picture(), content_type="image/png").status == 200
        assert asyncio.run(of.slot.reload())
        of.close()
    finally:
        torch.set_num_threads(before)
    assert set(cores) == {3}
    assert len(cores) >= 2
