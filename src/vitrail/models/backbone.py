"""The contract of every backbone: images in, `Features` out, logits on call."""

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.config import Config, Count, CountFromZero, apply
from vitrail.errors import ConfigError, InputError, ResampledNotice, Unsupported
from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded
from vitrail.layers.stage import to_map
from vitrail.models.initialise import Scheme, initialise


class Features(NamedTuple):
    """What a backbone saw in a batch of images."""

    patches: Tensor  # B N D, rows first
    grid: Grid  # h w
    prefix: Tensor  # B P D: class, distillation, register tokens; P may be 0
    pyramid: tuple[Tensor, ...]  # B C h w each, fine to coarse; a plain ViT has one level

    @classmethod
    def from_tokens(cls, tokens: Tensor, grid: Grid, *, finer: tuple[Tensor, ...] = ()) -> Self:
        """Splits B P+N D into prefix and patches, which are the last level after the `finer` ones."""
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        prefix, patches = tokens[:, :num_prefix], tokens[:, num_prefix:]
        return cls(patches, grid, prefix, (*finer, to_map(patches, grid)))


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(Config):
    """What every family's config has."""

    image_size: tuple[Count, Count] = (224, 224)
    channels: Count = 3
    num_classes: CountFromZero = 1000
    dynamic_size: bool = False

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse, or an error that names a size that fits."""
        raise NotImplementedError(f"{type(self).__name__}.grids")

    def grid(self, image_size: tuple[int, int]) -> Grid:
        """The grid of the patches for an image size, which is that of the last level."""
        return self.grids(image_size)[-1]


class Backbone(nn.Module):
    """Images B C H W -> logits B K; with `num_classes=0`, the pooled vector instead.

    `checkpointing = True` recomputes each block in the backward pass instead of keeping its activations; `labels`
    names the classes where they are known.
    """

    config: BackboneConfig
    blocks: nn.ModuleList  # in their order, over all levels
    head: nn.Module
    scheme: Scheme = "trunc_normal"  # by which heads begin

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.labels: tuple[str, ...] | None = None
        self.normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # mean, deviation of its images

    @abstractmethod
    def features(self, images: Tensor) -> Features:
        """Images B C H W -> Features."""

    @abstractmethod
    def intermediates(self, images: Tensor, layers: Sequence[int] | None = None) -> list[Features]:
        """Features after the chosen blocks (all by default; negative counts from the end), without the final norm."""

    @abstractmethod
    def pooled(self, features: Features) -> Tensor:
        """Features -> the vector B D that the head reads."""

    @abstractmethod
    def new_head(self) -> nn.Module:
        """A fresh head; where there are no classes, none."""

    def classify(self, features: Features) -> Tensor:
        """Features -> logits B K, or the pooled vector where there is no head."""
        return self.head(self.pooled(features))

    def reset_head(self, num_classes: int) -> None:
        """Replaces the head by a fresh one for another number of classes; 0 takes it away."""
        self.config = apply(self.config, {"num_classes": num_classes})
        self.labels = None
        self.head = self._fresh("head")

    def _fresh(self, name: str) -> nn.Module:
        """A new head, initialised, where the model's weights are and in their type."""
        head = self.new_head().to(next(self.parameters()))
        initialise(head, self.scheme, name=name)
        return head

    @property
    def levels(self) -> Sequence[nn.Module]:
        """The parts of the model that work on the grid of each level, fine to coarse."""
        return (self,)

    def run(self, block: nn.Module, *inputs: Any) -> Tensor:
        """One block, recomputed in the backward pass where `checkpointing` is on."""
        if self.checkpointing and self.training:
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def chosen(self, layers: Sequence[int] | None) -> list[int]:
        """The numbers of the chosen blocks, all by default, from 0; a block that is not there is an error."""
        depth = len(self.blocks)
        wanted = range(depth) if layers is None else layers
        if wrong := [layer for layer in wanted if not -depth <= layer < depth]:
            raise ConfigError(f"layer {wrong[0]} does not exist; the model has {depth} blocks, 0 to {depth - 1}")
        return [layer % depth for layer in wanted]

    def forward(self, images: Tensor) -> Tensor:
        """Images B C H W -> logits B K."""
        return self.classify(self.features(images))

    def check(self, images: Tensor) -> Grid:
        """The grid of a batch that the model can take; otherwise a sentence on what came and what fits."""
        config = self.config
        if not isinstance(images, Tensor):
            raise InputError(
                f"images are a {type(images).__name__}; the model takes a tensor: batch, channels, height, width"
            )
        if images.ndim != 4:
            raise InputError(
                f"images have {images.ndim} dimensions {tuple(images.shape)}; the model takes 4: batch, "
                f"{config.channels} channels, height, width"
                + (" (add one with images[None])" if images.ndim == 3 else "")
            )
        if images.shape[1] != config.channels:
            last = (
                " (channels stand last here: images.permute(0, 3, 1, 2))" if images.shape[3] == config.channels else ""
            )
            raise InputError(f"images have {images.shape[1]} channels; the model takes {config.channels}{last}")
        if not images.is_floating_point():
            raise InputError(f"images are {images.dtype}; the model takes floating point, e.g. images.float() / 255")
        dtype = next(self.parameters()).dtype
        if images.dtype != dtype and not torch.is_autocast_enabled(images.device.type):
            raise InputError(f"images are {images.dtype}, the weights {dtype}; move one of them: images.to({dtype})")
        size = (images.shape[2], images.shape[3])
        if size != config.image_size and not config.dynamic_size:
            config.grid(size)
            raise InputError(
                f"images are {size[0]} x {size[1]}; the model is built for {config.image_size[0]} x "
                f"{config.image_size[1]}. Move it with model.resize({size}), or build it with dynamic_size=True"
            )
        return config.grid(size)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch; tables that are computed, not stored, are computed anew, so that a meta model can be filled."""
        result = super().load_state_dict(state_dict, strict=strict, assign=assign)
        for module in self.modules():
            if isinstance(module, Gridded):
                module.reset_tables(next(self.parameters()))
        return result

    def fuse(self) -> Self:
        """Folds norms and branches into plain layers for inference, where a family is made for it; others say so."""
        raise Unsupported(
            f"{type(self).__name__} has no form of its own for inference: use it as it is, without fuse()"
        )

    def resize(self, image_size: int | tuple[int, int]) -> Self:
        """Moves the model, in place, to another image size: resamples positions and says so."""
        config = apply(self.config, {"image_size": image_size})
        old, size = self.config.image_size, config.image_size
        moved = []
        for part, grid in zip(self.levels, config.grids(size), strict=True):
            moved += [module for module in part.modules() if isinstance(module, Gridded) and module.resized(grid)]
        self.config = config
        if any(True for module in moved for _ in module.parameters(recurse=False)):
            message = f"positions resampled from {old[0]} x {old[1]} to {size[0]} x {size[1]} pixels"
            warnings.warn(message, ResampledNotice, stacklevel=2)
        return self
