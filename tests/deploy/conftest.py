"""One export for all tests of shipping: it takes seconds."""

from pathlib import Path

import pytest
from shipped import Opened, opened, photos

from vitrail.deploy.certificate import CertifyConfig
from vitrail.deploy.quantise import QuantiseConfig
from vitrail.deploy.ship import ShipConfig, Shipped, ship

QUICK = CertifyConfig(batches=(1, 3), images=20, rounds=2)


@pytest.fixture(scope="session")
def model() -> Opened:
    return opened()


@pytest.fixture(scope="session")
def shipped(model: Opened, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Shipped]:
    """Everything that can be exported, in a folder, and what was said of it."""
    out = tmp_path_factory.mktemp("dist")
    config = ShipConfig(certify=QUICK, quantise=QuantiseConfig(calibrate=8), force=True)
    return out, ship(model, photos(20), out, config, calibration=photos(40), licence="CC0-1.0", recipe={"epochs": 3})
