"""A forward pass on shapes only: correct shapes and MACs, and the model is not changed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.counted import framework_macs, small
from torch import nn

import vitrail
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.profiling import cost
from vitrail.profiling.dry_run import FusedKernels, Shapes


def dry(function, *tensors):
    """The result on shapes, and the MACs."""
    macs = []
    with Shapes(macs.append), FusedKernels(macs.append):
        return function(*tensors), sum(macs)


@pytest.mark.parametrize(
    ("function", "shapes", "macs"),
    [
        (torch.mm, [(2, 3), (3, 5)], 30),
        (torch.matmul, [(7, 2, 3), (3, 5)], 210),
        (torch.bmm, [(7, 2, 3), (7, 3, 5)], 210),
        (torch.mv, [(2, 3), (3,)], 6),
        (torch.dot, [(3,), (3,)], 3),
        (F.linear, [(4, 2, 3), (5, 3), (5,)], 120),
        (torch.baddbmm, [(7, 2, 5), (7, 2, 3), (7, 3, 5)], 210),
        (lambda a, b: torch.einsum("bnd,bmd->bnm", a, b), [(7, 2, 3), (7, 4, 3)], 168),
        (F.scaled_dot_product_attention, [(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 8)], 2 * 3 * 5 * 6 * (4 + 8)),
        (torch.add, [(2, 3), (3,)], 0),
        (lambda a: a.view(3, 2).t(), [(2, 3)], 0),
        (lambda a: F.rms_norm(a, (3,)), [(2, 3)], 0),
        (lambda a: F.dropout(a, 0.5), [(2, 3)], 0),
    ],
)
def test_shapes_are_those_of_a_real_run(function, shapes, macs):
    tensors = [torch.randn(shape) for shape in shapes]
    for _ in range(2):  # the second time from memory
        found, counted = dry(lambda *given: (function(*given), function(*given))[1], *tensors)
        real = function(*tensors)
        assert found.is_meta
        assert (found.shape, found.stride(), found.dtype) == (real.shape, real.stride(), real.dtype)
        assert counted == 2 * macs


def test_convolutions_by_hand():
    class Convolutions(Backbone):
        def __init__(self):
            super().__init__(BackboneConfig(image_size=(8, 8)))
            self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1)
            self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)

        def forward(self, images):
            return self.up(self.depthwise(self.down(images)))

    model = Convolutions()
    assert cost(model).macs == 16 * 8 * 27 + 16 * 8 * 9 + 16 * 8 * 4 * 4
    assert cost(model).macs == framework_macs(model.to("meta"))


def test_describing_leaves_the_model_as_it_was():
    model = small(dropout=0.1).eval()
    model.blocks[0].train()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    state, flags = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    random = torch.get_rng_state()
    vitrail.describe(model)
    assert [module.training for module in model.modules()] == flags
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["head.weight"]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(tensor.device.type == "cpu" for tensor in model.state_dict().values())
    assert torch.equal(random, torch.get_rng_state())
    assert model(torch.randn(1, 3, 32, 32)).device.type == "cpu"


def test_running_statistics_are_not_touched():
    class Normed(Backbone):
        def __init__(self):
            super().__init__(BackboneConfig(image_size=(8, 8)))
            self.norm = nn.BatchNorm2d(3)

        def forward(self, images):
            return self.norm(images)

    model = Normed()
    vitrail.describe(model, batch=2)
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(model.norm.running_mean, torch.zeros(3))
