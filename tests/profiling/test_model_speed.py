"""The speed of named models, beside timm's."""

import pytest
from support.eight_bits import needs_products
from support.peers import timm

from vitrail import hardware
from vitrail.errors import Unsupported
from vitrail.models.registry import create
from vitrail.profiling import model_speed as module
from vitrail.profiling.model_speed import SpeedConfig, measure_speed, timm_twin


def test_twins_have_the_same_parameters() -> None:
    own = create("vit_tiny_patch16", num_classes=7)
    peer, name = timm_twin("vit_tiny_patch16", own)
    assert peer is not None
    assert name in timm.list_models()
    assert sum(value.numel() for value in peer.parameters()) == sum(value.numel() for value in own.parameters())


def test_models_without_a_twin_say_so() -> None:
    peer, why = timm_twin("vit32_small", create("vit32_small"))
    assert peer is None
    assert "vit32_small" in why


@pytest.mark.parametrize("mode", ["train", "infer"])
def test_both_are_measured(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"dim": 32, "depth": 1, "num_heads": 2}
    monkeypatch.setattr(module, "create", lambda name, **changes: create(name, **small, **changes))
    monkeypatch.setattr(module, "timm_twin", lambda name, own: (create(name, **small), "its_twin"))
    report = measure_speed(["vit32_small"], SpeedConfig(mode=mode, batch=2, rounds=2, peers=True), device="cpu")
    rows = report.sections[0].rows
    assert [row["model"] for row in rows] == ["vit32_small", "timm: its_twin"]
    assert all(row["images/s"] > 0 for row in rows)
    assert rows[0]["times as fast as the first"].startswith("1.00")


@needs_products
def test_fp8_is_asked_for_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="compute capability"):
        measure_speed(["vit32_small"], SpeedConfig(precision="fp8"), device="cpu")
    monkeypatch.setattr(hardware, "fp8_works", lambda _: True)
    report = measure_speed(["vit32_small"], SpeedConfig(precision="fp8", batch=1, rounds=1), device="cpu")
    assert "fp8" in report.to_json()
