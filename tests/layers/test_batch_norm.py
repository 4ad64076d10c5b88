"""Synchronised batch norms: with one process they equal torch's own; test_distributed runs two processes."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from vitrail.layers.batch_norm import SyncedBatchNorm, freeze_statistics, sync_batch_norms
from vitrail.layers.linear_norm import NormLinear


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("norm", "shape"), [(nn.BatchNorm1d(5), (6, 5)), (nn.BatchNorm2d(5), (4, 5, 3, 2))])
@pytest.mark.usefixtures("group")
def test_one_process_has_the_statistics_of_torch(norm: nn.Module, shape: tuple[int, ...]) -> None:
    usual, together = copy.deepcopy(norm), copy.deepcopy(norm)
    with torch.no_grad():
        usual.weight.uniform_()
        together.load_state_dict(usual.state_dict())
    sync_batch_norms(together)
    assert isinstance(together, SyncedBatchNorm)
    gradients = []
    for one in (usual, together):
        values = (3 + 2 * torch.randn(shape, generator=torch.Generator().manual_seed(0))).requires_grad_()
        found = one(values)
        (found * torch.arange(found.numel()).view(shape)).sum().backward()
        gradients.append((found, values.grad, one.weight.grad, one.bias.grad))
    for first, second in zip(*gradients, strict=True):
        assert torch.allclose(first, second, rtol=1e-4, atol=1e-4)
    assert usual.state_dict().keys() == together.state_dict().keys()
    for name, tensor in usual.state_dict().items():
        assert torch.allclose(tensor, together.state_dict()[name]), name
    assert torch.allclose(usual.eval()(values), together.eval()(values))


@pytest.mark.usefixtures("group")
def test_what_comes_in_half_goes_out_half_and_is_counted_whole() -> None:
    norm = nn.BatchNorm2d(2)
    sync_batch_norms(norm)
    assert norm(torch.full((2, 2, 300, 300), 3.0, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert norm.running_mean.tolist() == pytest.approx([0.3, 0.3])  # 180,000 times 3 is too much for bfloat16


def test_a_process_with_one_vector_counts_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    head = NormLinear(3, 2).train()
    sync_batch_norms(head)
    asked = []
    monkeypatch.setattr(dist, "all_reduce", lambda total: asked.append(total.mul_(2)))  # another one has the same
    head(torch.ones(1, 3))
    assert len(asked) == 2
    assert head.norm.num_batches_tracked == 1


def test_a_frozen_norm_keeps_its_statistics_until_it_is_thawed() -> None:
    frozen, learning = nn.BatchNorm1d(2).requires_grad_(False), nn.BatchNorm1d(2)
    both = nn.Sequential(frozen, learning)
    freeze_statistics(both)
    both.train()(1 + torch.arange(6.0).view(3, 2))
    assert (frozen.running_mean == 0).all()
    assert (learning.running_mean != 0).all()
    frozen.requires_grad_(True)
    both.train()(1 + torch.arange(6.0).view(3, 2))
    assert (frozen.running_mean != 0).all()
