"""One image in its room: fitted pixels and the size that it had, or why it cannot be read."""

import torch
from support.numbered_images import Numbered

from vitrail.data.feeds.decoded import decode_into
from vitrail.data.preprocess import Preprocess


def test_pixels_and_size() -> None:
    data, fit = Numbered(3), Preprocess(image_size=(6, 5))
    room = torch.empty(fit.channels, 6, 5, dtype=torch.uint8)
    image = data.read(2)
    assert decode_into(data, 2, [(fit, room)]) == tuple(image.shape[1:])
    assert torch.equal(room, fit.fit(image[None])[0][0])


def test_a_reason_in_place_of_an_image() -> None:
    room = torch.zeros(3, 6, 5, dtype=torch.uint8)
    answer = decode_into(Numbered(3, broken=[1]), 1, [(Preprocess(image_size=(6, 5)), room)])
    assert isinstance(answer, str)
    assert "broken" in answer


def test_several_sizes_of_one_reading() -> None:
    fits = [Preprocess(image_size=(6, 5)), Preprocess(image_size=(3, 3), channels=1)]
    rooms = [(fit, torch.empty(fit.channels, *fit.image_size, dtype=torch.uint8)) for fit in fits]
    data = Numbered(3)
    decode_into(data, 2, rooms)
    for fit, room in rooms:
        assert torch.equal(room, fit.fit(data.read(2)[None])[0][0])
