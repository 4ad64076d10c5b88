"""Nearest neighbours against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from support.small_data import clouds

from vitrail.errors import ConfigError
from vitrail.explain.probes.knn import Neighbours


@pytest.mark.parametrize("k", [1, 20])
def test_neighbours_are_scikit_learns(k):
    (x, y), (new, _) = clouds(300, seed=0), clouds(101, seed=1)
    x, new = x - 50, new - 50
    peer = KNeighborsClassifier(k, metric="cosine", weights=lambda far: np.exp((1 - far) / 0.07), algorithm="brute")
    peer.fit(x.double().numpy(), y.numpy())
    ours = Neighbours(x, y, num_outputs=4, k=k, temperature=0.07).predict(new)
    shares = ours / ours.sum(dim=1, keepdim=True)
    assert shares.numpy() == pytest.approx(peer.predict_proba(new.double().numpy()), abs=1e-4)


def test_neighbours_in_parts_are_the_same(monkeypatch):
    (x, y), (new, _) = clouds(50, seed=0), clouds(33, seed=1)
    near = Neighbours(x, y, num_outputs=4, k=5, temperature=0.07)
    whole = near.predict(new)
    monkeypatch.setattr("vitrail.explain.probes.knn._PAIRS", 200)
    assert torch.allclose(near.predict(new), whole, atol=1e-4)
    assert near.predict(new[:0]).shape == (0, 4)


def test_no_temperature_is_too_low():
    x, y = clouds(50, seed=0)
    assert Neighbours(x, y, num_outputs=4, k=5, temperature=1e-4).predict(x).argmax(dim=1).equal(y)
    with pytest.raises(ConfigError, match="k is 51"):
        Neighbours(x, y, num_outputs=4, k=51, temperature=0.07)


def test_numbers_are_the_weighted_means_of_scikit_learn() -> None:
    (x, _), (new, _) = clouds(300, seed=0), clouds(101, seed=1)
    x, new = x - 50, new - 50
    y = torch.stack([x[:, 0], x[:, 5] * 2], dim=1)
    peer = KNeighborsRegressor(7, metric="cosine", weights=lambda far: np.exp((1 - far) / 0.07), algorithm="brute")
    peer.fit(x.double().numpy(), y.double().numpy())
    ours = Neighbours(x, y, num_outputs=2, k=7, temperature=0.07).predict(new)
    assert ours.numpy() == pytest.approx(peer.predict(new.double().numpy()), abs=1e-3)
