"""Calibration: a known temperature is found again, and the error says what it should."""

import pytest
import torch

from vitrail.errors import InputError
from vitrail.tasks.classify.temperature import LEAST, Temperature, calibration_error, fit_temperature


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_a_known_temperature_is_found(temperature: float) -> None:
    torch.manual_seed(0)
    true = 2 * torch.randn(20_000, 5)
    labels = torch.multinomial(true.softmax(dim=1), 1)[:, 0]
    found = fit_temperature(true * temperature, labels)
    assert found.temperature == pytest.approx(temperature, rel=0.05)
    assert found.images == 20_000
    assert found.error_after < 0.02
    if temperature != 1.0:
        assert found.error_before > 3 * found.error_after
        assert "20,000 images" in str(found)


@pytest.mark.parametrize("count", [60, 600])
def test_a_few_pictures_that_are_all_right_make_no_model_sure(count: int) -> None:
    labels = torch.arange(count) % 3
    logits = torch.nn.functional.one_hot(labels, 3).float()
    confidence = (logits / fit_temperature(logits, labels).temperature).softmax(dim=1).amax(dim=1)
    assert confidence.tolist() == pytest.approx([(count + 1) / (count + 2)] * count, abs=1e-4)


def test_the_error_by_hand() -> None:
    logits = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6], [0.4, 0.6]]).log()
    labels = torch.tensor([0, 1, 1, 1])  # confidence 0.8 with half right, 0.6 with all right
    assert calibration_error(logits, labels) == pytest.approx((0.3 + 0.4) / 2, abs=1e-6)


def test_a_temperature_that_was_not_fitted_is_reported() -> None:
    assert str(Temperature()) == "not calibrated"
    with pytest.raises(InputError, match="M K"):
        fit_temperature(torch.zeros(3, 2), torch.zeros(2, dtype=torch.long))


def test_a_few_images_are_too_few() -> None:
    count = LEAST - 1
    with pytest.raises(InputError, match=str(LEAST)):
        fit_temperature(torch.zeros(count, 2), torch.zeros(count, dtype=torch.long))


def test_plain_data_and_back() -> None:
    torch.manual_seed(0)
    found = fit_temperature(torch.randn(LEAST, 3), torch.arange(LEAST) % 3)
    assert Temperature.from_dict(found.to_dict()) == found
