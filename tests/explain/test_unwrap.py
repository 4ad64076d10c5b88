"""The backbone inside tasks and wrappers, and its mode."""

import pytest
import torch
from support.registered import tiny
from support.small_tasks import as_task
from torch import nn

from vitrail.errors import InputError
from vitrail.explain.unwrap import backbone_of, eval_mode, is_compiled, unwrapped


def test_the_backbone_is_found_inside_a_task_and_its_wrappers() -> None:
    model = tiny()
    assert backbone_of(model) is model
    assert backbone_of(as_task(model)) is model
    for name in ("_orig_mod", "module"):  # the names that torch.compile and distributed training use
        wrapped = nn.ModuleDict({name: model})
        assert unwrapped(wrapped) is model
        assert backbone_of(wrapped) is model


def test_compiled_parts_are_found() -> None:
    model = tiny()
    assert not is_compiled(model)
    assert is_compiled(torch.compile(model, backend="eager"))
    model.blocks[0].compile(backend="eager")
    assert is_compiled(model)


@pytest.mark.parametrize("wrong", [nn.Linear(2, 2), "vit_tiny"])
def test_what_has_no_backbone(wrong: object) -> None:
    with pytest.raises(InputError, match=type(wrong).__name__):
        backbone_of(wrong)  # type: ignore[arg-type]


def test_eval_mode_restores_every_part() -> None:
    training, evaluating = tiny().train(), tiny().eval()
    training.blocks[0].eval()
    before = [module.training for module in training.modules()]
    with pytest.raises(RuntimeError), eval_mode(training, evaluating):
        assert not any(module.training for module in training.modules())
        raise RuntimeError
    assert [module.training for module in training.modules()] == before
    assert not evaluating.training
