from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.errors import DataError
from vitrail.lab.fitting import Fit, first, fit, mean_loss, open_pictures, shuffled
from vitrail.lab.small_training import Labelled, accuracy


def easy(count: int) -> Labelled:
    """Images of two brightnesses."""
    labels = torch.arange(count) % 2
    return Labelled(torch.rand(count, 1, 4, 4) * 0.2 + labels.view(-1, 1, 1, 1) * 0.5, labels)


def test_an_easy_task_is_learned_and_steps_are_counted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    seen: list[int] = []
    losses = fit(model, shuffled(easy(64), 16), Fit(steps=60, batch=16, rate=0.05), after=seen.append)
    assert seen == list(range(1, 61))
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy(model, easy(40)) == 1.0
    assert mean_loss(model, easy(40)) < 0.5


def test_each_image_comes_once_in_an_epoch() -> None:
    pictures = Labelled(torch.arange(12.0).view(12, 1, 1, 1), torch.arange(12))
    draw = shuffled(pictures, 4)
    for _ in range(2):
        assert sorted(int(label) for _ in range(3) for label in draw().classes) == list(range(12))
    assert len(shuffled(pictures, 50)().classes) == 12


def test_arrays_in_files_are_opened(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(30, 8, 8, 3), dtype=np.uint8)
    for part in ("train", "test"):
        np.save(tmp_path / f"{part}_images.npy", images)
        np.save(tmp_path / f"{part}_labels.npy", np.arange(30) % 10)
    train, test = open_pictures(f"cifar10:{tmp_path}", 0, 20, torch.device("cpu"))
    assert train.images.shape == (30, 3, 8, 8)
    assert len(test.images) == 20
    row = int(np.abs(images.mean(axis=(1, 2, 3)) - 255 * float(train.images[0].mean())).argmin())
    assert torch.allclose(train.images[0], torch.from_numpy(images[row]).permute(2, 0, 1) / 255)
    assert train.classes[0] == row % 10


def test_the_embedded_set_is_opened_without_a_network() -> None:
    train, test = open_pictures("demo", 50, 20, torch.device("cpu"))
    assert train.images.shape == (50, 1, 28, 28)
    assert 0 <= float(test.images.min()) <= float(test.images.max()) <= 1
    assert first(train, 10).classes.tolist() == train.classes[:10].tolist()
    with pytest.raises(DataError, match="12000"):
        open_pictures("demo", 13_000, 20, torch.device("cpu"))
