"""What a parity case is, and how a peer's model and ours are held against each other: in float64, on every block."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import vitrail
from vitrail.config import apply
from vitrail.errors import HeadNotice, ResampledNotice
from vitrail.models.backbone import Backbone, BackboneConfig, Features
from vitrail.models.registry import resolve


class Outputs(NamedTuple):
    """What one model says of a batch of images."""

    logits: Tensor | None  # B K, or the pooled vector B D where there is no head; None: not compared
    intermediates: list[Tensor]  # B P+N D after every block, without the final norm; empty: not compared
    final: Tensor | None = None  # B P+N D after the final norm; None: not compared
    levels: list[Tensor] = []  # noqa: RUF012  # B C h w as the stages left them, fine to coarse; empty: not compared


class Errors(NamedTuple):
    """The largest differences between two models, relative to the largest value of the peer's tensor."""

    logits: float
    features: float  # the worst of all blocks and of the final features

    @property
    def worst(self) -> float:
        return max(self.logits, self.features)


@dataclass(frozen=True)
class Case:
    """One model of a peer's, and how to save and run it."""

    name: str  # e.g. "vit_small_patch16_224, qk-norm"
    peer: str  # "timm" | "hf" | "torchvision"
    make: Callable[[], nn.Module]  # the peer's model, randomised, eval
    save: Callable[[nn.Module, Path], None]  # writes the peer's checkpoint folder as that project does
    run: Callable[[nn.Module, Tensor], Outputs]
    image_size: tuple[int, int]
    load_options: Mapping[str, Any] = field(default_factory=dict)  # extra arguments for vitrail.load
    channels: int = 3


def hint(name: str, **changes: Any) -> BackboneConfig:
    """The config of a named model, changed: what a caller tells of a file that has no config."""
    return apply(resolve(name)[1], changes)


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fills every parameter, norms and biases and scales too, so that two swapped tensors show."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 4
        parameter.copy_(noise * fan_in**-0.5 + (1.0 if parameter.ndim == 1 else 0.0))
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            noise = torch.rand(buffer.shape, generator=generator)
            buffer.copy_(noise + (0.5 if name.endswith("running_var") else 0.0))
    return model.eval()


@torch.no_grad()
def ours(model: Backbone, images: Tensor) -> Outputs:
    """What our model says."""
    features = model.features(images)
    blocks = model.intermediates(images)
    tokens = [_tokens(each) for each in blocks]
    return Outputs(model.classify(features), tokens, _tokens(features), list(blocks[-1].pyramid))


def _tokens(features: Features) -> Tensor:
    return torch.cat([features.prefix, features.patches], dim=1)


@torch.no_grad()
def compare(case: Case, tmp: Path) -> Errors:
    """Saves the peer's model as the peer does, loads it with vitrail, and runs both in float64."""
    peer = case.make().eval()
    case.save(peer, tmp)  # as float32, which float64 holds exactly
    peer = peer.double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResampledNotice)
        warnings.simplefilter("ignore", HeadNotice)
        model = vitrail.load(tmp, dtype=torch.float64, **case.load_options)
    images = torch.randn(2, case.channels, *case.image_size, generator=torch.Generator().manual_seed(1)).double()
    return differences(case.run(peer, images), ours(model, images))


def differences(theirs: Outputs, mine: Outputs) -> Errors:
    """The largest relative errors; a tensor that the peer does not give is not compared."""
    if theirs.intermediates and len(theirs.intermediates) != len(mine.intermediates):
        raise AssertionError(f"{len(theirs.intermediates)} blocks of theirs, {len(mine.intermediates)} of ours")
    if theirs.levels and len(theirs.levels) != len(mine.levels):
        raise AssertionError(f"{len(theirs.levels)} levels of theirs, {len(mine.levels)} of ours")
    pairs = list(zip(theirs.intermediates, mine.intermediates, strict=False))
    pairs += zip(theirs.levels, mine.levels, strict=False)
    if theirs.final is not None and mine.final is not None:
        pairs.append((theirs.final, mine.final))
    logits = 0.0
    if theirs.logits is not None and mine.logits is not None:
        logits = relative_error(theirs.logits, mine.logits)
    return Errors(logits, max((relative_error(a, b) for a, b in pairs), default=0.0))


def relative_error(theirs: Tensor, mine: Tensor) -> float:
    """max |a - b| / max |a|; another shape, or a NaN, does not match."""
    if theirs.shape != mine.shape:
        raise AssertionError(f"theirs has the shape {tuple(theirs.shape)}, ours {tuple(mine.shape)}")
    error = float((theirs - mine).abs().max() / theirs.abs().max())
    return float("inf") if math.isnan(error) else error
