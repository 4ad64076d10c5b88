"""The interface of all backbones: `features(images)` returns `Features`, a call returns logits."""

import copy
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.config import Config, Count, CountFromZero, apply
from vitrail.data.preprocess import Preprocess
from vitrail.errors import ConfigError, InputError, ResampledNotice, Unsupported
from vitrail.layers.patch import Grid
from vitrail.layers.position import Gridded
from vitrail.layers.stage import to_map
from vitrail.models.initialise import Scheme, initialise


class Features(NamedTuple):
    """The output of a backbone for a batch of images."""

    patches: Tensor  # B N D, row by row
    grid: Grid  # h w
    prefix: Tensor  # B P D: class, distillation, register tokens; P may be 0
    pyramid: tuple[Tensor, ...]  # B C h w each, fine to coarse; a plain ViT has one level

    @classmethod
    def from_tokens(cls, tokens: Tensor, grid: Grid, *, finer: tuple[Tensor, ...] = ()) -> Self:
        """Splits B P+N D into prefix and patches; the patches are the last level, after the `finer` ones."""
        num_prefix = tokens.shape[1] - grid[0] * grid[1]
        prefix, patches = tokens[:, :num_prefix], tokens[:, num_prefix:]
        return cls(patches, grid, prefix, (*finer, to_map(patches, grid)))


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(Config):
    """The options of all families."""

    image_size: tuple[Count, Count] = (224, 224)
    channels: Count = 3
    num_classes: CountFromZero = 1000
    dynamic_size: bool = False

    def grids(self, image_size: tuple[int, int]) -> tuple[Grid, ...]:
        """The grid of each level for an image size, fine to coarse, or an error that names a size that fits."""
        raise NotImplementedError(f"{type(self).__name__}.grids")

    def grid(self, image_size: tuple[int, int]) -> Grid:
        """The grid of the patches, which is that of the last level, for an image size."""
        return self.grids(image_size)[-1]

    @property
    def level_dims(self) -> tuple[int, ...]:
        """The channels of each level of `Features.pyramid`, fine to coarse."""
        staged: tuple[int, ...] = getattr(self, "dims", ())
        return staged or (self.dim,)  # type: ignore[attr-defined]  # plain ones have one width


class Backbone(nn.Module):
    """Images B C H W -> logits B K; with `num_classes=0`, the pooled vector instead.

    `checkpointing = True` recomputes each block in the backward pass instead of storing its activations; `labels` are
    the names of the classes, if known.
    """

    config: BackboneConfig
    blocks: nn.ModuleList  # in order, over all levels
    head: nn.Module
    scheme: Scheme = "trunc_normal"  # initialises new heads

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.labels: tuple[str, ...] | None = None
        self.preprocess: Preprocess | None = None  # how input images are prepared, if known

    @abstractmethod
    def features(self, images: Tensor) -> Features:
        """Images B C H W -> Features."""

    @abstractmethod
    def intermediates(self, images: Tensor, layers: Sequence[int] | None = None) -> list[Features]:
        """Features after the given blocks (default: all; negative numbers count from the end), without final norm."""

    @abstractmethod
    def read(self, images: Tensor, layers: Sequence[int]) -> tuple[Features, list[Features]]:
        """`features` and the `intermediates` of these blocks, in one pass: for several heads."""

    @abstractmethod
    def pooled(self, features: Features) -> Tensor:
        """Features -> the input of the head, B D."""

    @property
    def width_of_means(self) -> int | None:
        """How many inputs of the head, the first ones, are means of the whole image; None if all are."""
        return None

    @abstractmethod
    def new_head(self) -> nn.Module:
        """A new head; the identity if `num_classes` is 0."""

    def classify(self, features: Features) -> Tensor:
        """Features -> logits B K, or the pooled vector if there is no head."""
        return self.head(self.pooled(features))

    def with_outputs(
        self,
        outputs: Callable[[Features], Tensor],
        count: int,
        *,
        features: Callable[[Tensor], Features] | None = None,
    ) -> Self:
        """The same modules in a model whose call gives other outputs of its features, B K with K = `count`.

        A head beside the model makes them; explanations follow them as they would follow logits. `features` replaces
        the method of that name, for a head that reads more than the last features.
        """
        view = copy.copy(self)
        view.config = replace(self.config, num_classes=count)
        view.classify = outputs  # type: ignore[assignment, method-assign]
        if features is not None:
            view.features = features  # type: ignore[assignment, method-assign]
        return view

    def with_head(self, num_classes: int) -> Self:
        """The same modules in a model with a new head of its own; the model itself keeps its head."""
        view = copy.copy(self)
        view._modules = dict(self._modules)
        if num_classes != self.config.num_classes:
            view.reset_head(num_classes)
        return view

    def reset_head(self, num_classes: int) -> None:
        """Replaces the head by a new one for another number of classes; 0 removes it."""
        self.config = apply(self.config, {"num_classes": num_classes})
        self.labels = None
        self.head = self._fresh("head")

    def _fresh(self, name: str) -> nn.Module:
        """A new, initialised head, on the device and in the type of the model."""
        head, own = self.new_head(), next(self.parameters())
        if torch.get_default_device().type != "meta":  # there, only shapes are asked for
            head = head.to(own)
        initialise(head, self.scheme, name=name)
        return head

    @property
    def levels(self) -> Sequence[nn.Module]:
        """The modules of each level, fine to coarse."""
        return (self,)

    def run(self, block: nn.Module, *inputs: Any) -> Tensor:
        """Runs one block; with `checkpointing`, it is recomputed in the backward pass."""
        if self.checkpointing and self.training:
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def chosen(self, layers: Sequence[int] | None) -> list[int]:
        """The indices of the selected blocks, by default all; raises ConfigError for a block that does not exist."""
        depth = len(self.blocks)
        selected = range(depth) if layers is None else layers
        if wrong := [layer for layer in selected if not -depth <= layer < depth]:
            raise ConfigError(f"layer {wrong[0]} does not exist; the model has {depth} blocks, 0 to {depth - 1}")
        return [layer % depth for layer in selected]

    def forward(self, images: Tensor) -> Tensor:
        """Images B C H W -> logits B K."""
        return self.classify(self.features(images))

    def check(self, images: Tensor) -> Grid:
        """The grid of a batch; raises InputError if the model cannot take it."""
        config = self.config
        if not isinstance(images, Tensor):
            raise InputError(f"images must be a tensor (batch, channels, height, width), not {type(images).__name__}")
        if images.ndim != 4:
            raise InputError(
                f"images have {images.ndim} dimensions {tuple(images.shape)}; the model needs 4: batch, "
                f"{config.channels} channels, height, width"
                + (" (for a single image, pass images[None])" if images.ndim == 3 else "")
            )
        if images.shape[1] != config.channels:
            last = (
                " (if channels are last, pass images.permute(0, 3, 1, 2))" if images.shape[3] == config.channels else ""
            )
            raise InputError(f"images have {images.shape[1]} channels; the model needs {config.channels}{last}")
        if not images.is_floating_point():
            raise InputError(f"images are {images.dtype}; the model needs floating point, e.g. images.float() / 255")
        dtype = next(self.parameters()).dtype
        if images.dtype != dtype and not torch.is_autocast_enabled(images.device.type):
            raise InputError(f"images are {images.dtype}, but the weights are {dtype}; pass images.to({dtype})")
        size = (images.shape[2], images.shape[3])
        if size != config.image_size and not config.dynamic_size:
            config.grid(size)
            raise InputError(
                f"images are {size[0]} x {size[1]}; the model is built for {config.image_size[0]} x "
                f"{config.image_size[1]}. Call model.resize({size}), or build the model with dynamic_size=True"
            )
        return config.grid(size)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As in torch; also recomputes tables that are not stored, for models on the device "meta"."""
        result = super().load_state_dict(state_dict, strict=strict, assign=assign)
        for module in self.modules():
            if isinstance(module, Gridded):
                module.reset_tables(next(self.parameters()))
        return result

    def fuse(self) -> Self:
        """Folds norms and branches into plain layers for inference; raises Unsupported for most families."""
        raise Unsupported(f"{type(self).__name__} has no fused form for inference: use it without fuse()")

    def resize(self, image_size: int | tuple[int, int]) -> Self:
        """Changes the image size in place; gives a notice if positions are resampled."""
        config = apply(self.config, {"image_size": image_size})
        old, size = self.config.image_size, config.image_size
        resampled = []
        for part, grid in zip(self.levels, config.grids(size), strict=True):
            resampled += [module for module in part.modules() if isinstance(module, Gridded) and module.resized(grid)]
        self.config = config
        if self.preprocess is not None:
            self.preprocess = replace(self.preprocess, image_size=size)
        if any(True for module in resampled for _ in module.parameters(recurse=False)):
            message = f"positions resampled from {old[0]} x {old[1]} to {size[0]} x {size[1]} pixels"
            warnings.warn(message, ResampledNotice, stacklevel=2)
        return self
