"""Probes: each classifier against scikit-learn, every family end to end, splits, memory, bad input."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from registered import one_of_each_family, tiny
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from small_data import Made, photos

from vitrail.data.arrays import Arrays
from vitrail.data.augment import AugmentConfig, Prepare
from vitrail.data.dataset import Found, Relabelled
from vitrail.errors import ConfigError, DataError, InputError, Unsupported
from vitrail.explain import probe
from vitrail.explain.probes_data import divide
from vitrail.explain.probes_knn import Neighbours
from vitrail.explain.probes_linear import PENALTIES, Logistic, Moments
from vitrail.models.backbone import Backbone
from vitrail.report import Report


def clouds(count: int, *, seed: int, width: int = 12, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of several classes that overlap, with columns of very different sizes and far from zero."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(0, classes, (count,), generator=draw)
    features = centres[labels] + 1.2 * torch.randn(count, width, generator=draw)
    return features * torch.logspace(-2, 2, width) + 50, labels


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0])
def test_ridge_in_batches_is_scikit_learns(penalty):
    (x, y), (new, _) = clouds(300, seed=0), clouds(100, seed=1)
    moments, rest = Moments(4), Moments(4)
    for some, of in zip(x[:200].split(64), y[:200].split(64), strict=True):
        moments.update(some, of)
    rest.update(x[200:], y[200:])
    moments.merge(rest)
    scaler = StandardScaler().fit(x.double().numpy())
    peer = RidgeClassifier(alpha=penalty * 300).fit(scaler.transform(x.double().numpy()), y.numpy())
    theirs = peer.decision_function(scaler.transform(new.double().numpy()))
    ours = moments.solve().scores(new, penalty)
    # It learns +1 and -1 where we learn 1 and 0.
    assert (2 * ours - 1).numpy() == pytest.approx(theirs, abs=1e-6)


def test_a_column_that_never_changes_has_no_say():
    x, y = clouds(200, seed=0)
    moments, plain = Moments(4), Moments(4)
    moments.update(torch.cat([x, torch.full((200, 1), 7.0)], dim=1), y)
    plain.update(x, y)
    new = torch.cat([x, torch.randn(200, 1)], dim=1)
    assert torch.allclose(moments.solve().scores(new, 0.1), plain.solve().scores(x, 0.1), atol=1e-7)


@pytest.mark.parametrize("penalty", [1e-3, 1e-1])
def test_logistic_regression_is_scikit_learns(penalty):
    (x, y), (new, _) = clouds(300, seed=0), clouds(100, seed=1)
    scaler = StandardScaler().fit(x.double().numpy())
    peer = LogisticRegression(C=1 / (penalty * 300), tol=1e-8, max_iter=2000)
    peer.fit(scaler.transform(x.double().numpy()), y.numpy())
    theirs = peer.predict_proba(scaler.transform(new.double().numpy()))
    ours = Logistic.fit(x, y, 4, [1.0, penalty])[-1].scores(new).softmax(dim=1)
    assert ours.numpy() == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("k", [1, 20])
def test_neighbours_are_scikit_learns(k):
    (x, y), (new, _) = clouds(300, seed=0), clouds(101, seed=1)
    x, new = x - 50, new - 50
    peer = KNeighborsClassifier(k, metric="cosine", weights=lambda far: np.exp((1 - far) / 0.07), algorithm="brute")
    peer.fit(x.double().numpy(), y.numpy())
    ours = Neighbours(x, y, num_classes=4, k=k, temperature=0.07).scores(new)
    shares = ours / ours.sum(dim=1, keepdim=True)
    assert shares.numpy() == pytest.approx(peer.predict_proba(new.double().numpy()), abs=1e-4)


def test_neighbours_in_parts_are_the_same(monkeypatch):
    (x, y), (new, _) = clouds(50, seed=0), clouds(33, seed=1)
    near = Neighbours(x, y, num_classes=4, k=5, temperature=0.07)
    whole = near.scores(new)
    monkeypatch.setattr("vitrail.explain.probes_knn._PAIRS", 200)
    assert torch.allclose(near.scores(new), whole, atol=1e-4)
    assert near.scores(new[:0]).shape == (0, 4)


def test_no_temperature_is_too_low():
    x, y = clouds(50, seed=0)
    assert Neighbours(x, y, num_classes=4, k=5, temperature=1e-4).scores(x).argmax(dim=1).equal(y)
    with pytest.raises(ConfigError, match="k is 51; there are 50 images to be near to"):
        Neighbours(x, y, num_classes=4, k=51, temperature=0.07)


@pytest.mark.parametrize("name", one_of_each_family())
def test_every_family_tells_dark_from_light(name):
    model = tiny(name).train()
    found = Found(photos(60), test=photos(40))
    report = probe(model, found, batch_size=16, k=5)
    rows = report["By layer"].rows
    assert [row["layer"] for row in rows] == list(range(len(model.blocks)))
    assert rows[0]["linear"] > 0.75
    assert report["Probe"].values["images to learn from"] == 60
    assert report["Probe"].values["images to judge by"] == 40
    assert report["Probe"].values["the most common class alone"] == 0.5
    assert model.training
    assert Report.from_json(report.to_json()) == report
    assert 'aria-label="Accuracy by layer: linear from' in report["By depth"].source


def features(model: Backbone, data: Made) -> list[torch.Tensor]:
    prepare = Prepare(AugmentConfig(), image_size=model.config.image_size, channels=3)
    images = torch.nn.functional.interpolate(data.array, size=model.config.image_size, mode="bicubic", antialias=True)
    with torch.no_grad():
        return [one.patches.mean(dim=1) for one in model.intermediates(prepare(images))]


def test_the_table_holds_what_scikit_learn_finds():
    model = tiny(image_size=(32, 32))
    train, test = noisy(200), noisy(150, seed=1)
    report = probe(model, Found(train, test=test), pool="mean", batch_size=32)
    for row, x, new in zip(report["By layer"].rows, features(model, train), features(model, test), strict=True):
        scaler = StandardScaler().fit(x.double().numpy())
        ridge = RidgeClassifier(alpha=row["penalty"] * 200).fit(scaler.transform(x.double().numpy()), train.labels)
        assert row["linear"] == pytest.approx(ridge.score(scaler.transform(new.double().numpy()), test.labels))
        near = KNeighborsClassifier(20, metric="cosine", weights=lambda far: np.exp((1 - far) / 0.07))
        assert row["k-NN"] == pytest.approx(near.fit(x, train.labels).score(new, test.labels))
        assert 0.5 < row["linear"] < 1.0


def test_arrays_are_kept_as_training_keeps_them():
    """Of 20 pixels, for a model of 32: rounded to whole levels at 32, they would be other images."""
    model, seen = tiny(image_size=(32, 32)), []
    images = np.random.default_rng(0).integers(0, 256, (60, 20, 20, 3), dtype=np.uint8)
    data = Arrays(images, torch.arange(60) % 2, ("a", "b"), name="made")
    prepare = Prepare(AugmentConfig(), image_size=(32, 32), channels=3)
    found = Found(data, val=data, test=data)
    probe(model, found, prepare=lambda some: seen.append(some) or prepare(some), layers=[-1], k=5)
    assert {tuple(some.shape[1:]) for some in seen} == {(3, 20, 20)}
    assert torch.equal(seen[-1], data.array)


def test_broken_images_are_counted_over_all_parts_and_the_whole_is_packed_once(tmp_path, monkeypatch):
    """Parts of other seeds are rows of the same file: nothing is said to be built again, which would be an error."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    data = tmp_path / "photos"
    for name in ("a", "b"):
        (data / name).mkdir(parents=True)
        for number in range(60):
            Image.new("L", (8, 8), number + 100 * (name == "b")).save(data / name / f"{number}.png")
    parts = divide(data, seed=0)
    Path(parts.test.where(3)).write_bytes(b"no picture")  # 1 of 120, but 1 of 24 to judge by
    first, second = (probe(tiny(), data, seed=seed, layers=[-1], k=5)["Probe"].values for seed in (0, 1))
    assert (first["images to learn from"], first["images to judge by"]) == (96, 23)
    assert second["images to learn from"] + second["images to judge by"] == 119
    assert len(list((tmp_path / "cache").rglob("*.pack"))) == 1
    Path(parts.fit.where(0)).write_bytes(b"no picture")
    with pytest.raises(DataError, match="2 or more of 120 images cannot be read"), pytest.warns(match="has changed"):
        probe(tiny(), data, layers=[-1], k=5)


def test_a_part_of_a_part_holds_its_own_images():
    whole = photos(100)
    parts = divide(whole, seed=0)
    assert {part.whole for part in parts[:3]} == {whole}
    assert sorted(index for part in parts[:3] for index in part.indices) == list(range(100))
    assert all(torch.equal(part.labels, whole.labels[part.indices]) for part in parts[:3])


def noisy(count: int, *, seed: int = 0) -> Made:
    """Dark and light images that are hard to tell apart."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    means = 110 + 8 * labels + 12 * torch.randn(count, generator=draw)
    images = means[:, None, None, None] + 20 * torch.randn(count, 3, 32, 32, generator=draw)
    return Made(images.clamp(0, 255).to(torch.uint8), labels)


@pytest.mark.parametrize("linear", ["ridge", "logistic"])
def test_both_linear_probes_learn_and_are_the_same_twice(linear):
    data = Found(noisy(120), test=noisy(60, seed=1))
    first = probe(tiny(), data, linear=linear, layers=[-1], k=5)
    torch.manual_seed(5)
    torch.randn(3)
    assert probe(tiny_again(), data, linear=linear, layers=[-1], k=5, batch_size=50).to_json() == first.to_json()
    (row,) = first["By layer"].rows
    assert row["layer"] == 1
    assert row["linear"] > 0.55


def tiny_again() -> Backbone:
    torch.manual_seed(0)
    return tiny()


def test_the_class_token_is_read_where_there_is_one():
    data = Found(photos(60), test=photos(20))
    reads = [
        probe(tiny(**changes), data, pool=pool, k=5)["By layer"].rows[-1]["reads"]
        for changes, pool in (
            ({}, "auto"),
            ({}, "mean"),
            ({"class_token": False, "pool": "mean", "registers": 2}, "auto"),
        )
    ]
    assert reads == ["class token", "mean of patches", "mean of patches"]
    with pytest.raises(ConfigError, match="not every chosen layer has a class token"):
        probe(tiny("swin_tiny_patch4_window7"), data, pool="class")


def test_memory_limits_the_neighbours_but_not_ridge():
    model, data = tiny(), Found(noisy(100), test=noisy(50, seed=1))
    whole, small = probe(model, data, k=5), probe(model, data, k=5, memory=4 * 2 * 32 * 20)
    assert "of 100," in whole["Probe"].values["k-NN"]
    assert "of 20," in small["Probe"].values["k-NN"]
    assert [row["linear"] for row in small["By layer"].rows] == [row["linear"] for row in whole["By layer"].rows]


def test_parts_are_the_sources_own_or_carved_out():
    train, val, test = photos(100), photos(10), photos(20)
    parts = divide(Found(train, val=val, test=test), seed=0)
    assert [len(part) for part in parts[:3]] == [100, 10, 20]
    parts = divide(Found(train, val=val), seed=0)
    assert [len(part) for part in parts[:3]] == [90, 10, 10]
    assert parts.how == "the validation part of made"
    parts = divide(train, seed=0)
    assert [len(part) for part in parts[:3]] == [72, 8, 20]
    assert divide(train, seed=0).test.indices == parts.test.indices
    assert divide(train, seed=1).test.indices != parts.test.indices


def test_classes_are_matched_by_name():
    train, test = photos(60), photos(40)
    swapped = Relabelled(test, 1 - test.labels, ("light", "dark"))
    report = probe(tiny(), Found(train, test=swapped), k=5)
    assert report["By layer"].rows[0]["linear"] > 0.9


def test_bad_input_is_told():
    model, data = tiny(), photos(60)
    with pytest.raises(ConfigError, match="layer 9 does not exist"):
        probe(model, data, layers=[9])
    with pytest.raises(ConfigError, match="no layers are named"):
        probe(model, data, layers=[])
    with pytest.raises(ConfigError, match="linear is 'svm'"):
        probe(model, data, linear="svm")
    with pytest.raises(ConfigError, match="pool is 'max'"):
        probe(model, data, pool="max")
    with pytest.raises(ConfigError, match="temperature is 0"):
        probe(model, data, temperature=0.0)
    with pytest.raises(Unsupported, match="several labels an image"):
        probe(model, Relabelled(data, torch.zeros(60, 2), data.classes))
    with pytest.raises(DataError, match="one class only, 'dark'"):
        probe(model, Relabelled(data, torch.zeros(60, dtype=torch.long), ("dark",)))
    with pytest.raises(DataError, match="too few images"):
        probe(model, photos(3))
    with pytest.raises(ConfigError, match="memory is too small"):
        probe(model, data, linear="logistic", memory=4 * 64)
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="not finite"):
        probe(model, data)


def test_penalties_rise():
    assert list(PENALTIES) == sorted(PENALTIES)
