"""Weights inside what training scripts save, and what is said about it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.peers import timm
from torch import Tensor

import vitrail
from vitrail.errors import CheckpointError, ChosenNotice
from vitrail.models.checkpoint.unwrap import candidates, take_out, without_wrappers

NAME = "vit_tiny_patch16"


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=3)
    return dict(model.state_dict())


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def other(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor + 1 for name, tensor in state.items()}


WRAPPED: dict[str, Any] = {
    "module.": lambda state: prefixed(state, "module."),
    "model.": lambda state: {"state_dict": prefixed(state, "model.")},
    "encoder.": lambda state: prefixed(state, "encoder."),
    "backbone.": lambda state: prefixed(state, "backbone.") | {"neck.weight": torch.zeros(2)},
    "student.": lambda state: {"model": prefixed(state, "student.")},
    "teacher.": lambda state: prefixed(other(state), "student.") | prefixed(state, "teacher."),
    "module.teacher.backbone.": lambda state: prefixed(state, "module.teacher.backbone.") | {"step": torch.zeros(1)},
    "ema": lambda state: {"model": other(state), "ema": state, "epoch": 3},
    "model_ema": lambda state: {"model": other(state), "model_ema": state},
    "teacher": lambda state: {"student": other(state), "teacher": state},
    "state_dict": lambda state: {"state_dict": state, "optimizer": {}, "student": other(state)},
}


@pytest.mark.parametrize("wrapping", WRAPPED)
def test_wrappings_are_found_and_said(wrapping: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(state, tmp_path / "plain.pth")
    torch.save(WRAPPED[wrapping](state), tmp_path / "wrapped.pth")
    expected = vitrail.load(tmp_path / "plain.pth").state_dict()
    with pytest.warns(ChosenNotice, match=wrapping.rstrip(".")):
        found = vitrail.load(tmp_path / "wrapped.pth").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_what_was_left_out_is_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save(WRAPPED["backbone."](state), tmp_path / "wrapped.pth")
    with pytest.warns(ChosenNotice, match="neck"):
        vitrail.load(tmp_path / "wrapped.pth")


def test_our_own_tensors_may_be_wrapped_too(tmp_path: Path) -> None:
    model = vitrail.create(NAME, depth=1, num_classes=3)
    torch.save({"state_dict": prefixed(model.state_dict(), "model.")}, tmp_path / "wrapped.pth")
    with pytest.warns(ChosenNotice, match=r"'model\.'"):
        found = vitrail.load(tmp_path / "wrapped.pth", model=model.config)
    assert torch.equal(found.state_dict()["norm.weight"], model.state_dict()["norm.weight"])


def test_what_torch_adds_to_names_goes_without_a_word(state: dict[str, Tensor], tmp_path: Path) -> None:
    compiled = {name.replace("blocks.0.", "blocks.0._orig_mod."): tensor for name, tensor in state.items()}
    torch.save(prefixed(compiled, "_orig_mod."), tmp_path / "compiled.pth")
    assert vitrail.load(tmp_path / "compiled.pth").config.num_classes == 3
    assert set(without_wrappers(prefixed(state, "_fsdp_wrapped_module."))) == set(state)


def test_no_prefix_makes_a_model_of_other_tensors(tmp_path: Path) -> None:
    torch.save({"module.encoder.a": torch.zeros(2), "module.b": torch.zeros(2)}, tmp_path / "x.pth")
    with pytest.warns(ChosenNotice), pytest.raises(CheckpointError, match="recognised"):
        vitrail.load(tmp_path / "x.pth")


def test_candidates_end() -> None:
    tensors = {"model." * 9 + "a": torch.zeros(1)}
    assert [prefix for prefix, _ in candidates(tensors)] == ["", "model.", "model.model.", "model.model.model."]


@pytest.mark.parametrize("content", [[1, 2], {}, {"model": {}}, {0: torch.zeros(2)}, {"a": 1}], ids=str)
def test_nothing_to_take_out(content: Any) -> None:
    assert take_out(content) == {}
