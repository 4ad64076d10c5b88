"""The operators that have kernels, computed on a CPU by those of PyTorch."""

import types
from contextlib import contextmanager

import torch
import torch.nn.functional as F

from vitrail.layers import kernels
from vitrail.layers.attention.deformable_multiscale import sampled
from vitrail.layers.attention.window import WindowAttention, Windows
from vitrail.layers.fp8 import Rows


def gelu(x, bias, seed=None, rate=0.0):
    """The same as the kernel, but for which numbers are dropped."""
    return (F.gelu(x + bias) * mask_of(x.shape, seed, rate)).to(x.dtype)


def gelu_rows(x, bias, keep):
    out = gelu(x, bias)
    return out if keep else x.new_empty(0), *Rows.of(out)


def mask_of(shape, seed, rate):
    if seed is None:
        return 1.0
    return (torch.rand(shape, generator=torch.Generator().manual_seed(seed.item())) >= rate) / (1 - rate)


def attention(qkv, bias, heads, grid, size, shift, scale, seed=None, rate=0.0):
    """The same as the kernel, with the operators of the layer; outputs are dropped in place of weights."""
    windows = Windows(tuple(grid), tuple(size), tuple(shift), "masked")
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in windows.cut(qkv).chunk(3, dim=-1))
    count = size[0] * size[1]
    bias = qkv.new_zeros(heads, count, count) if bias is None else bias
    layer = types.SimpleNamespace(relative=lambda _: bias, scale=scale)
    mixed = windows.joined(WindowAttention._within(layer, q, k, v, windows, 0))
    return (mixed * mask_of(mixed.shape, seed, rate)).contiguous()


def levels(values, points, shares, rows, columns):
    return sampled(values.transpose(1, 2), points, shares, list(zip(rows, columns, strict=True))).contiguous()


def add_norm(x, branch, bias, gain, keep, weight, norm_bias, eps):
    """The same as the kernel, which keeps other numbers of a row for the backward pass."""
    added = (branch + bias).float()
    added = added if gain is None else added * gain
    added = (x + (added if keep is None else added * keep[:, None, None])).to(x.dtype)
    normed = F.layer_norm(added.float(), added.shape[-1:], weight, norm_bias, eps).to(branch.dtype)
    return added, normed, torch.full((2, x.numel() // x.shape[-1]), eps)


def add_norm_backward(grad, grad_normed, added, statistics, branch, bias, gain, keep, weight):
    """From the sum alone, as the kernel's: the branch is not given where there is no gain."""
    with torch.enable_grad():
        leaf, slope = added.detach().float().requires_grad_(), weight.detach().requires_grad_()
        offset = torch.zeros_like(slope, requires_grad=True)
        normed = F.layer_norm(leaf, leaf.shape[-1:], slope, offset, statistics[0, 0].item())
    passed, *of_norm = torch.autograd.grad(normed, (leaf, slope, offset), grad_normed.float())
    passed = passed if grad is None else passed + grad
    of_branch = passed if keep is None else passed * keep[:, None, None]
    of_gain = [] if gain is None else [(of_branch * (branch + bias)).sum((0, 1))]
    of_branch = of_branch if gain is None else of_branch * gain
    sums = torch.stack([of_branch.sum((0, 1)), *of_norm, *of_gain])
    shared = kernels.same_gradients(added, grad_normed, gain, keep)
    of_branch = of_branch.to(grad_normed.dtype)
    return passed.to(added.dtype), of_branch.new_empty(0) if shared else of_branch, sums


def join_heads(q, k, v):
    joined = torch.cat([part.transpose(1, 2).flatten(2) for part in (q, k, v)], dim=-1)
    return joined, joined.float().sum((0, 1))


def gradients(function, grad, inputs, options=()):
    with torch.enable_grad():
        leaves = [None if one is None else one.detach().requires_grad_() for one in inputs]
        result = function(*leaves, *options)
    found = torch.autograd.grad(result, [leaf for leaf in leaves if leaf is not None], grad)
    found = tuple(one.contiguous() for one in found)
    return (*found, grad.new_empty(0)) if any(leaf is None for leaf in leaves) else found


@contextmanager
def operators_on_cpu(monkeypatch):
    """The operators, computed on the CPU; `suits` is true for all tensors."""
    calls = []

    def counted(name, function):
        def run(*arguments):
            calls.append(name)
            return function(*arguments)

        return run

    with torch.library._scoped_library("vitrail", "IMPL") as library:
        backward = {
            "bias_gelu": gelu,
            "bias_gelu_backward": lambda grad, x, bias, *options: gradients(gelu, grad, (x, bias), options),
            "bias_gelu_rows": gelu_rows,
            "window_attention": attention,
            "window_attention_backward": lambda grad, qkv, bias, *options: gradients(
                attention, grad, (qkv, bias), options
            ),
            "sample_levels": levels,
            "sample_levels_backward": lambda grad, values, points, shares, *sizes: gradients(
                levels, grad, (values, points, shares), sizes
            ),
            "join_heads": join_heads,
            "add_norm": add_norm,
            "add_norm_backward": add_norm_backward,
        }
        for name, function in backward.items():
            library.impl(name, counted(name, function), "CPU")
        monkeypatch.setattr(kernels, "suits", lambda _: True)
        monkeypatch.setattr(kernels, "SAMPLED_WIDTHS", (8, 16, 32, 64))
        monkeypatch.setattr(kernels, "LARGE", 0)
        yield calls
