"""What is looked into: the backbone, wherever it stands, left as it was found."""

import pytest
import torch
from registered import tiny
from torch import nn

from vitrail.errors import InputError
from vitrail.explain.subject import at_rest, subject
from vitrail.tasks.classify import Classify


def test_the_backbone_is_found_inside_a_task_and_its_wrappers():
    model = tiny()
    assert subject(model) is model
    assert subject(Classify(model, classes=tuple("abcde"))) is model
    for name in ("_orig_mod", "module"):  # as torch.compile and distributed training call what they wrap
        assert subject(nn.ModuleDict({name: model})) is model


def test_what_has_no_backbone_is_refused():
    with pytest.raises(InputError, match="Linear has no backbone of vitrail inside"):
        subject(nn.Linear(2, 2))


def test_models_rest_and_go_on_in_their_own_mode():
    learning, judging = tiny().train(), tiny().eval()
    with pytest.raises(RuntimeError), at_rest(learning, judging):
        assert not learning.training
        assert not torch.is_grad_enabled()
        raise RuntimeError
    assert learning.training
    assert not judging.training
    assert torch.is_grad_enabled()
