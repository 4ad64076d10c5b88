"""Pre-norm blocks in a row: each residual connection and the norm after it are one kernel, across blocks too."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vitrail.layers import kernels
from vitrail.layers.attention import SoftmaxAttention
from vitrail.layers.block import Block
from vitrail.layers.fp8 import Rows, multiplied, without_bias
from vitrail.layers.mlp import MLP
from vitrail.layers.patch import Grid
from vitrail.layers.reduce import ReducibleBlock
from vitrail.layers.residual import DropPath, LayerScale


def joinable(blocks: Sequence[nn.Module], tokens: Tensor) -> bool:
    """Whether `run_joined` computes what these blocks compute, and faster: in training, where nothing looks inside."""
    return (
        torch.is_grad_enabled()
        and kernels.suits(tokens)
        and len(blocks) > 0
        and all(_plain(block) for block in blocks)
        and tokens.shape[-1] <= kernels.NORMED
        and tokens.numel() >= kernels.LARGE  # sizes last: a graph may leave them open
    )


def run_joined(blocks: Sequence[nn.Module], tokens: Tensor, grid: Grid, wanted: Collection[int]) -> dict[int, Tensor]:
    """Runs blocks that are `joinable`: B P+N D -> the tokens after the wanted ones and the last, B P+N D each."""
    chain, kind = [cast("Block", block) for block in blocks], tokens.dtype
    found: dict[int, Tensor] = {}
    if kernels.STREAM and torch.is_autocast_enabled(tokens.device.type):
        tokens = tokens.to(torch.get_autocast_dtype(tokens.device.type))
    normed = chain[0].norm1(tokens)
    for index, block in enumerate(chain):
        attention, mlp = cast("SoftmaxAttention", block.attention), cast("MLP", block.mlp)
        branch = _Branch(attention.projection, block.scale1, block.drop_path)
        tokens, normed = branch.added(tokens, attention.inner(normed, grid), None, block.norm2)
        branch = _Branch(mlp.fc2, block.scale2, block.drop_path)
        if index + 1 < len(chain):
            tokens, normed = branch.added(tokens, *mlp.inner(normed), chain[index + 1].norm1)
        else:
            tokens = tokens + block.drop_path(block.scale2(multiplied(mlp.fc2, *mlp.inner(normed))))
        if index in wanted or index + 1 == len(chain):
            found[index] = tokens.to(kind)
    return found


class _Branch(NamedTuple):
    """The end of a residual branch."""

    last: nn.Linear
    scale: nn.Module
    drop_path: DropPath

    def added(self, tokens: Tensor, inner: Tensor, rows: Rows | None, norm: nn.Module) -> tuple[Tensor, Tensor]:
        """The tokens with the branch added, and their norm: B P+N D and the input of `last` -> B P+N D each.

        `rows` are that input in 8 bits, where a kernel wrote them.
        """
        branch = without_bias(self.last, inner, rows)
        gain = self.scale.gain if isinstance(self.scale, LayerScale) else None
        keep = self.drop_path.factors(branch)
        return kernels.add_norm(tokens, branch, self.last.bias, cast("nn.LayerNorm", norm), gain=gain, keep=keep)


def _plain(block: nn.Module) -> bool:
    """Whether a block is norm, attention, norm, MLP, without hooks on what is left out or dropout after a branch."""
    if type(block) not in (Block, ReducibleBlock):
        return False
    block = cast("Block", block)
    if block.norm_placement != "pre":
        return False
    attention, mlp = block.attention, block.mlp
    if type(attention) is not SoftmaxAttention or type(mlp) is not MLP:
        return False
    if any(drop.training and drop.p > 0 for drop in (attention.drop, mlp.drop)):
        return False
    if not all(_ends(linear) for linear in (attention.projection, mlp.fc2)):
        return False
    if not all(_normalises(norm) for norm in (block.norm1, block.norm2)):
        return False
    left_out = block, attention, mlp, attention.drop, mlp.drop, block.scale1, block.scale2, block.drop_path
    scales = all(type(scale) in (nn.Identity, LayerScale) for scale in (block.scale1, block.scale2))
    return scales and type(block.drop_path) is DropPath and all(map(kernels.unhooked, left_out))


def _ends(linear: nn.Module) -> bool:
    """Whether the bias of a linear layer can be added elsewhere."""
    return kernels.plain(linear) and kernels.unhooked(linear) and linear.bias is not None


def _normalises(norm: nn.Module) -> bool:
    """Whether a norm is LayerNorm over the last axis, with weight and bias."""
    return (
        type(norm) is nn.LayerNorm
        and kernels.unhooked(norm)
        and len(norm.normalized_shape) == 1
        and norm.elementwise_affine
        and norm.bias is not None
    )
