"""One export of a classifier and one of a regression for all tests of artefacts: each takes seconds."""

from pathlib import Path

import pytest
from support.shipped import photos, trained

from vitrail.deploy.artefact.certificate import CertifyConfig
from vitrail.deploy.artefact.ship import ShipConfig, Shipped, ship
from vitrail.deploy.int8.quantise import QuantiseConfig
from vitrail.runs.trained import TrainedModel

QUICK = CertifyConfig(batches=(1, 3), images=20, rounds=2)
CONFIG = ShipConfig(certify=QUICK, quantise=QuantiseConfig(calibrate=8), force=True)


@pytest.fixture(scope="session")
def model() -> TrainedModel:
    return trained(record=True)


@pytest.fixture(scope="session")
def shipped(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Shipped]:
    """Everything that can be exported, in a folder, and the report."""
    out = tmp_path_factory.mktemp("dist")
    return out, ship(model, photos(20), out, CONFIG, calibration=photos(40))


@pytest.fixture(scope="session")
def numbers() -> TrainedModel:
    return trained(kind="numbers", depth=1, patch={"kind": "conv", "halvings": 3})  # with convolutions, norms between


@pytest.fixture(scope="session")
def shipped_numbers(numbers: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Shipped]:
    """The same of a regression."""
    out = tmp_path_factory.mktemp("dist-numbers")
    return out, ship(numbers, photos(20), out, CONFIG, calibration=photos(40))
