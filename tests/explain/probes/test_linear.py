"""Ridge and logistic regression against scikit-learn."""

import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.preprocessing import StandardScaler
from support.small_data import clouds

from vitrail.explain.probes.linear import PENALTIES, Logistic, Moments


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0])
def test_ridge_in_batches_is_scikit_learns(penalty):
    (x, y), (new, _) = clouds(300, seed=0), clouds(100, seed=1)
    moments, rest = Moments(), Moments()
    for some, of in zip(x[:200].split(64), y[:200].split(64), strict=True):
        moments.update(some, F.one_hot(of, 4))
    rest.update(x[200:], F.one_hot(y[200:], 4))
    moments.merge(rest)
    scaler = StandardScaler().fit(x.double().numpy())
    peer = RidgeClassifier(alpha=penalty * 300).fit(scaler.transform(x.double().numpy()), y.numpy())
    theirs = peer.decision_function(scaler.transform(new.double().numpy()))
    ours = moments.solve().predict(new, penalty)
    # Its targets are +1 and -1, ours are 1 and 0.
    assert (2 * ours - 1).numpy() == pytest.approx(theirs, abs=1e-6)


def test_a_constant_column_has_no_weight():
    x, y = clouds(200, seed=0)
    moments, plain = Moments(), Moments()
    moments.update(torch.cat([x, torch.full((200, 1), 7.0)], dim=1), F.one_hot(y))
    plain.update(x, F.one_hot(y))
    new = torch.cat([x, torch.randn(200, 1)], dim=1)
    assert torch.allclose(moments.solve().predict(new, 0.1), plain.solve().predict(x, 0.1), atol=1e-7)


@pytest.mark.parametrize("penalty", [1e-3, 1e-1])
def test_logistic_regression_is_scikit_learns(penalty):
    (x, y), (new, _) = clouds(300, seed=0), clouds(100, seed=1)
    scaler = StandardScaler().fit(x.double().numpy())
    peer = LogisticRegression(C=1 / (penalty * 300), tol=1e-8, max_iter=2000)
    peer.fit(scaler.transform(x.double().numpy()), y.numpy())
    theirs = peer.predict_proba(scaler.transform(new.double().numpy()))
    ours = Logistic.fit(x, y, 4, [1.0, penalty])[-1].predict(new).softmax(dim=1)
    assert ours.numpy() == pytest.approx(theirs, abs=1e-4)


def test_numbers_are_scikit_learns() -> None:
    (x, _), (new, _) = clouds(300, seed=0), clouds(100, seed=1)
    y = torch.stack([x[:, 0] * 3 + x[:, 5], x[:, 2].square()], dim=1)
    moments = Moments()
    for some, of in zip(x.split(64), y.split(64), strict=True):
        moments.update(some, of)
    scaler = StandardScaler().fit(x.double().numpy())
    peer = Ridge(alpha=0.01 * 300).fit(scaler.transform(x.double().numpy()), y.double().numpy())
    theirs = peer.predict(scaler.transform(new.double().numpy()))
    assert moments.solve().predict(new, 0.01).numpy() == pytest.approx(theirs, rel=1e-6)


def test_penalties_rise() -> None:
    assert list(PENALTIES) == sorted(PENALTIES)
