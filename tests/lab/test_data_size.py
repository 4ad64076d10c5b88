import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from vitrail.lab.data_size import DataSize, _model, early_lead, kept_bytes, ratio
from vitrail.lab.fitting import Fit
from vitrail.lab.small_models import macs, parameters
from vitrail.lab.small_training import Labelled


@pytest.mark.parametrize(("settings", "channels", "side"), [(DataSize.quick, 1, 28), (DataSize.full, 3, 32)])
def test_cnns_are_as_large_or_as_costly_as_the_vit(settings: object, channels: int, side: int) -> None:
    images = Labelled(torch.rand(10, channels, side, side), torch.arange(10))
    vit, costly, large = (_model(name, settings, images) for name in ("vit", "cnn_macs", "cnn_parameters"))  # type: ignore[arg-type]
    shape = (channels, side, side)
    assert math.isclose(macs(costly, shape), macs(vit, shape), rel_tol=0.15)
    assert math.isclose(parameters(large), parameters(vit), rel_tol=0.15)


def test_the_ratio_of_images_is_read_between_sizes() -> None:
    found = {"images": [10, 100, 1000], "vit": {"accuracy": [0.2, 0.4, 0.6]}, "cnn": {"accuracy": [0.5, 0.6, 0.7]}}
    assert math.isclose(ratio(found, "cnn"), 10**1.5, rel_tol=1e-6)
    found["cnn"] = {"accuracy": [0.9, 0.9, 0.9]}
    assert ratio(found, "cnn") == math.inf
    found["cnn"] = {"accuracy": [0.1, 0.9, 0.9]}
    assert math.isclose(ratio(found, "cnn"), 1)


def test_an_early_lead_is_that_after_a_tenth_of_the_training() -> None:
    steps = list(range(1, 31))
    found = {"steps": steps, "cnn": {"looks": [0.1 * step for step in steps]}, "vit": {"looks": [0.0] * 30}}
    assert math.isclose(early_lead(found, "cnn"), 0.3)
    assert math.isclose(early_lead({**found, "steps": [10, 20], "vit": {"looks": [0, 0]}}, "cnn"), 0.1)


def test_a_vit_that_never_reaches_the_cnn_needs_more_than_100_times_the_images() -> None:
    results = DataSize().false_case()
    for found in results[0].values():
        found["cnn_macs"] = found["cnn_macs"] | {"accuracy": [0.95] * 4}
    (check,) = [
        check for check in DataSize().verdict(results).checks if "10 to 100" in check.text and "MACs" in check.text
    ]
    assert check.status == "fails"


@pytest.mark.parametrize(("key", "value"), [("fitted", [0.9]), ("half", 0.4)])
def test_models_that_did_not_train_long_enough_decide_nothing(key: str, value: object) -> None:
    for results in (DataSize().true_case(), DataSize().false_case()):
        for found in results[0].values():
            found["cnn_macs"] = found["cnn_macs"] | {key: value}
        verdict = DataSize().verdict(results)
        assert verdict.outcome == "undecided"
        assert "not tested" in verdict.text


def test_kept_bytes_by_hand() -> None:
    """The second map keeps its input, 5 numbers of 4 bytes, which is also what ReLU keeps; the first keeps 3."""
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    assert kept_bytes(model, torch.rand(7, 3)) == 4 * (3 + 5)


def test_a_tiny_run() -> None:
    torch.manual_seed(0)
    settings = replace(
        DataSize.quick, train=80, validation=20, test=20, shares=(0.5, 1.0), rates=(1e-3, 1e-2), tuning=1, looks=2,
        dim=16, depth=1, equal_macs=(4, 4, 4), equal_parameters=(4, 4, 4), steps=(1, 2), how=Fit(batch=16),
    )  # fmt: skip
    found = DataSize().measure(settings, seed=0, device=torch.device("cpu"))["demo"]
    assert found["images"] == [30, 60]
    for name in ("vit", "cnn_macs", "cnn_parameters"):
        assert len(found[name]["accuracy"]) == len(found[name]["looks"]) == len(found[name]["fitted"]) == 2
        assert 0 <= found[name]["half"] <= 1
        assert found[name]["rate"]["chosen"] in (1e-3, 1e-2)
        assert len(found[name]["rate"]["scores"]) == 2
        assert found[name]["speed"] > 0
