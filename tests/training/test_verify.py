"""The proof that resuming is exact, and that it would notice if it were not."""

import pytest
import torch
from support.eight_bits import needs_products
from support.small_data import photos, split

import vitrail.training.assemble as assemble_module
import vitrail.training.step as step_module
from vitrail import hardware
from vitrail.errors import ConfigError
from vitrail.layers.fp8 import Fp8Linear, use_fp8
from vitrail.training.verify import compare, same_bits, verify_resume

SMALL = {
    "model": "vit32_small", "image_size": 16, "options": {"dim": 32, "depth": 2, "num_heads": 2}, "batch_size": 16,
    "device": "cpu", "ema": 0.9, "mix": {"cutmix": 1.0},
}  # fmt: skip


def data():
    return split(photos(64, size=16))


@pytest.mark.parametrize(("at", "kind"), [(2, "adamw"), (4, "muon"), (None, "adamw")])
def test_resuming_is_exact(at: int | None, kind: str) -> None:
    report = verify_resume(data(), steps=6, at=at, **SMALL, optimiser={"kind": kind})
    facts = report["Resume"].values
    assert facts["equal"] is True
    assert facts["steps"] == 6
    assert facts["tensors"] > 50
    assert "every bit is the same" in str(report)


def test_resuming_is_exact_with_balanced_sampling_and_weights() -> None:
    uneven = data()
    uneven.train.targets["label"] = (torch.arange(64) % 8 == 0).long()
    report = verify_resume(uneven, steps=6, at=3, **SMALL, sampling="balanced", task={"loss": "focal"})
    assert report["Resume"].values["equal"] is True
    report = verify_resume(uneven, steps=5, at=2, **SMALL, task={"class_weights": "effective"})
    assert report["Resume"].values["equal"] is True


@needs_products
def test_resuming_is_exact_with_products_in_8_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales are those of the moment: nothing has to be remembered."""
    monkeypatch.setattr(hardware, "fp8_works", lambda _: True)
    made = []
    monkeypatch.setattr(assemble_module, "use_fp8", lambda model: made.append(model) or use_fp8(model))
    report = verify_resume(data(), steps=4, at=2, **SMALL, precision="fp8")
    assert report["Resume"].values["equal"] is True
    assert all(isinstance(model.get_submodule("blocks.1.mlp.fc2"), Fp8Linear) for model in made)
    assert made


def test_a_loop_with_a_hidden_state_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = iter(range(1000))
    monkeypatch.setattr(step_module, "step_seed", lambda *_: next(seeds))  # depends on what ran before
    report = verify_resume(data(), steps=4, at=2, **SMALL)
    assert report["Resume"].values["equal"] is False
    assert len(report["Differences"].rows) > 10
    assert "not exact" in str(report)


def test_runs_that_cannot_be_verified_are_refused() -> None:
    with pytest.raises(ConfigError, match="steps is 1"):
        verify_resume(data(), steps=1)
    with pytest.raises(ConfigError, match="at is 4"):
        verify_resume(data(), steps=4, at=4)


def test_bits_are_compared_not_numbers() -> None:
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.double())
    assert not same_bits(zero, torch.zeros(2))


def test_a_difference_is_reported_with_its_size() -> None:
    one, other = {"a": torch.zeros(3), "b": torch.ones(1)}, {"a": torch.tensor([0.0, 0.5, 0.0])}
    rows = compare(one, other, steps=2, at=1)["Differences"].rows
    assert rows[0] == {"tensor": "a", "numbers that differ": 1, "largest difference": 0.5}
    assert rows[1] == {"tensor": "b", "numbers that differ": None, "largest difference": None}
