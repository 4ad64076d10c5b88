import math

import torch
from torch import nn

from vitrail.lab.small_training import Labelled, accuracy, batches, fashion, fit, outputs, rate_at


def test_the_embedded_images_are_normalised() -> None:
    train, test = fashion(torch.device("cpu"))
    assert train.images.shape == (12_000, 1, 28, 28)
    assert abs(float(train.images.mean())) < 1e-4
    assert math.isclose(float(train.images.std()), 1.0, rel_tol=1e-4)
    assert test.classes.bincount().tolist() == [200] * 10


def test_the_rate_rises_then_falls_to_zero() -> None:
    rates = [rate_at(step, steps=10, warm_up=4) for step in range(11)]
    assert rates[:4] == [0.2, 0.4, 0.6, 0.8]
    assert rates[4] == 1.0
    assert math.isclose(rates[7], 0.5)
    assert rates[10] == 0.0
    assert rate_at(0, steps=10, warm_up=0) == 1.0


def test_two_clusters_are_learned() -> None:
    torch.manual_seed(0)
    classes = torch.arange(40) % 2
    data = Labelled(torch.randn(40, 1, 2, 2) + 4 * classes[:, None, None, None], classes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    losses = fit(model, batches(data, 20), steps=40, rate=0.1, warm_up=4)
    assert len(losses) == 40
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy(model, data) > 0.95


def test_parts_of_an_evaluation_join_and_the_mode_stays() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4)).train()
    images = torch.rand(1100, 1, 2, 2)
    found = outputs(model, images)
    assert model.training
    assert torch.allclose(found, images.flatten(1) / (1 + 1e-5) ** 0.5)
