"""Probes of every family, against scikit-learn, on classes and numbers; memory, bad input."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import RidgeClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler
from support.registered import one_of_each_family, tiny
from support.small_data import Made, photos

from vitrail.data.dataset import Found, Retargeted
from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget
from vitrail.errors import ConfigError, DataError, InputError, Unsupported
from vitrail.explain import probe
from vitrail.explain.probes.features import divide
from vitrail.models.backbone import Backbone
from vitrail.report import Report


@pytest.mark.parametrize("name", one_of_each_family())
def test_probes_of_every_family_separate_dark_from_light(name):
    model = tiny(name).train()
    found = Found(photos(60), test=photos(40))
    report = probe(model, found, batch_size=16, k=5)
    rows = report["By layer"].rows
    assert [row["layer"] for row in rows] == list(range(len(model.blocks)))
    assert rows[0]["linear"] > 0.75
    assert report["Probe"].values["training images"] == 60
    assert report["Probe"].values["test images"] == 40
    assert report["Probe"].values["the most common class alone"] == 0.5
    assert model.training
    assert Report.from_json(report.to_json()) == report
    assert 'aria-label="accuracy by layer: linear from' in report["By depth"].source


def features(model: Backbone, data: Made) -> list[torch.Tensor]:
    preprocess = Preprocess(image_size=model.config.image_size)
    with torch.no_grad():
        return [one.patches.mean(dim=1) for one in model.intermediates(preprocess(data.array))]


def test_the_table_holds_what_scikit_learn_finds():
    model = tiny(image_size=(32, 32))
    train, test = noisy(200), noisy(150, seed=1)
    report = probe(model, Found(train, test=test), pool="mean", batch_size=32)
    known, truth = train.targets["label"], test.targets["label"]
    for row, x, new in zip(report["By layer"].rows, features(model, train), features(model, test), strict=True):
        scaler = StandardScaler().fit(x.double().numpy())
        ridge = RidgeClassifier(alpha=row["penalty"] * 200).fit(
            scaler.transform(x.double().numpy()), train.targets["label"]
        )
        assert row["linear"] == pytest.approx(
            ridge.score(scaler.transform(new.double().numpy()), test.targets["label"])
        )
        near = KNeighborsClassifier(20, metric="cosine", weights=lambda far: np.exp((1 - far) / 0.07))
        assert row["k-NN"] == pytest.approx(near.fit(x, known).score(new, truth))
        assert 0.5 < row["linear"] < 1.0


def brightness(count: int, *, seed: int = 0) -> Made:
    """Images with their brightness and contrast as targets."""
    draw = torch.Generator().manual_seed(seed)
    numbers = torch.rand(count, 2, generator=draw)
    noise = torch.randn(count, 3, 32, 32, generator=draw) * (10 + 40 * numbers[:, 1, None, None, None])
    images = 60 + 130 * numbers[:, 0, None, None, None] + noise
    schema = {"numbers": NumbersTarget(names=("brightness", "contrast"))}
    return Made(images.clamp(0, 255).to(torch.uint8), {"numbers": numbers}, schema)


def test_numbers_are_probed_with_r2() -> None:
    torch.manual_seed(0)
    model = tiny(image_size=(32, 32))
    report = probe(model, Found(brightness(150), test=brightness(100, seed=1)), k=5)
    rows = report["By layer"].rows
    assert all(0.5 < row["linear"] <= 1 and row["k-NN"] < 1 for row in rows)
    assert report["Probe"].values["numbers"] == "brightness, contrast"
    assert report["By layer"].columns["linear"] == ""
    assert "R2" in report["By depth"].source
    once = probe(model, brightness(120), k=5)["Probe"].values
    assert (once["training images"], once["test images"]) == (100, 20)  # two of each tenth of the first number


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
    assert (first["training images"], first["test images"]) == (96, 23)
    assert second["training images"] + second["test images"] == 119
    assert len(list((tmp_path / "cache").rglob("*.pack"))) == 1
    Path(parts.fit.where(0)).write_bytes(b"no picture")
    with pytest.raises(DataError, match="of 120 images"), pytest.warns(match="has changed"):
        probe(tiny(), data, layers=[-1], k=5)


@pytest.mark.slow
def test_streamed_images_are_probed_alike(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    data, model = tmp_path / "photos", tiny()
    for name in ("a", "b"):
        (data / name).mkdir(parents=True)
        for number in range(30):
            Image.new("L", (8, 8), number + 100 * (name == "b")).save(data / name / f"{number}.png")
    packed = probe(model, data, layers=[-1], k=5)
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr("vitrail.data.feeds.choice.MOST", 0)
    streamed = probe(model, data, layers=[-1], k=5)
    assert not (tmp_path / "cache").exists()
    assert streamed.to_json() == packed.to_json()


def noisy(count: int, *, seed: int = 0) -> Made:
    """Dark and light images that are hard to tell apart."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 2
    means = 110 + 8 * labels + 12 * torch.randn(count, generator=draw)
    images = means[:, None, None, None] + 20 * torch.randn(count, 3, 32, 32, generator=draw)
    return Made(images.clamp(0, 255).to(torch.uint8), {"label": labels})


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
    with pytest.raises(ConfigError, match="class token"):
        probe(tiny("swin_tiny_patch4_window7"), data, pool="class")


def test_memory_limits_the_neighbours_but_not_ridge():
    model, data = tiny(), Found(noisy(100), test=noisy(50, seed=1))
    whole, small = probe(model, data, k=5), probe(model, data, k=5, memory=4 * 2 * 32 * 20)
    assert "of 100," in whole["Probe"].values["k-NN"]
    assert "of 20," in small["Probe"].values["k-NN"]
    assert [row["linear"] for row in small["By layer"].rows] == [row["linear"] for row in whole["By layer"].rows]


def test_classes_are_matched_by_name():
    train, test = photos(60), photos(40)
    swapped = Retargeted(test, {"label": 1 - test.targets["label"]}, {"label": ClassTarget(classes=("light", "dark"))})
    report = probe(tiny(), Found(train, test=swapped), k=5)
    assert report["By layer"].rows[0]["linear"] > 0.9


def test_bad_input_is_refused():
    model, data = tiny(), photos(60)
    with pytest.raises(ConfigError, match="layer 9 does not exist"):
        probe(model, data, layers=[9])
    with pytest.raises(ConfigError, match="empty"):
        probe(model, data, layers=[])
    with pytest.raises(ConfigError, match="linear is 'svm'"):
        probe(model, data, linear="svm")
    with pytest.raises(ConfigError, match="pool is 'max'"):
        probe(model, data, pool="max")
    with pytest.raises(ConfigError, match="temperature is 0"):
        probe(model, data, temperature=0.0)
    labels = {"labels": LabelsTarget(classes=("dark", "light"))}
    with pytest.raises(Unsupported, match="labels"):
        probe(model, Retargeted(data, {"labels": torch.zeros(60, 2)}, labels))
    with pytest.raises(ConfigError, match="logistic"):
        probe(model, brightness(60), linear="logistic")
    with pytest.raises(DataError, match="too few images"):
        probe(model, photos(3))
    with pytest.raises(ConfigError, match="memory is too small"):
        probe(model, data, linear="logistic", memory=4 * 64)
    with torch.no_grad():
        model.blocks[0].mlp.fc1.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="not finite"):
        probe(model, data)
