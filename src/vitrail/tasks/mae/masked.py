"""Masked autoencoding: a model learns to see by rebuilding the patches that were hidden from it (arXiv:2111.06377)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from vitrail.config import Count, Range
from vitrail.data.dataset import Batch, Targets
from vitrail.data.targets import Schema
from vitrail.errors import ConfigError, DataError, Unsupported
from vitrail.layers.attention import Site, SoftmaxConfig
from vitrail.layers.block import Block
from vitrail.layers.mlp import GeluMLPConfig, SwiGLUConfig
from vitrail.layers.patch import Grid, LinearPatchConfig, PatchConfig, patchify
from vitrail.layers.position import AddedPositionConfig, SinCos2DConfig
from vitrail.models.backbone import Backbone, Features
from vitrail.models.initialise import initialise
from vitrail.models.vit import ViT, ViTConfig
from vitrail.report import Section
from vitrail.tasks.answer import NO_EXAMPLES, Answer, Examples
from vitrail.tasks.mae import mae_report
from vitrail.tasks.task import Arrays, Outputs, Task, TaskConfig

_LEARNS = ("patch", "prefix", "position", "embed_norm", "blocks", "norm")  # of a ViT; what reads its tokens does not
_EPS = 1e-6  # of a patch's variance
_WIDEST, _DEEPEST, _HEAD = 512, 8, 32  # of the paper's decoder: its width, its blocks, and the width of a head


class Size(NamedTuple):
    """How large a decoder is."""

    dim: int
    depth: int
    num_heads: int


@dataclass(frozen=True, kw_only=True)
class MAEConfig(TaskConfig, kind="mae"):
    """The share of patches that is hidden, and the size of the decoder, which is thrown away after training.

    What is left open of it follows the model: two thirds of its width, in heads of 32, and two thirds of its blocks,
    both rounded up, and no more than 512 and 8. So it is the paper's beside ViT-B, L and H, and does not dwarf a small
    model. There decoders 128 wide or one block deep serve fine-tuning as well, but not a linear probe (its table 1).
    `normalise_pixels`: what is rebuilt is each patch less its mean, over its deviation.
    """

    inferred: ClassVar[bool] = False
    mask: Annotated[float, Range(0.0, 1.0, open=True)] = 0.75
    dim: Count | None = None
    depth: Count | None = None
    num_heads: Count | None = None
    normalise_pixels: bool = True

    def size(self, model: ViTConfig) -> Size:
        """The decoder's size beside a model."""
        dim = self.dim or min(_HEAD * _two_thirds(model.dim, _HEAD), _WIDEST)
        depth = self.depth or min(_two_thirds(max(model.depth, 1)), _DEEPEST)
        whole = [heads for heads in range(1, max(dim // _HEAD, 1) + 1) if dim % heads == 0]
        return Size(dim, depth, self.num_heads or whole[-1])

    def build(self, backbone: Backbone | None, schema: Schema) -> "MAE":
        """The task around a model, which learns; whatever head it has does not."""
        if backbone is None:
            raise Unsupported("a model of task 'mae' makes no predictions; fine-tune it first")
        return MAE(self, backbone)

    def num_outputs(self, schema: Schema) -> int:
        """None: the model gets no head."""
        return 0


class MAE(Task):
    """The model sees a few patches of each image, a small decoder rebuilds the pixels of all others.

    An `order` B N shuffles the patches of each image: the first of them are visible, the rest are hidden. Where patches
    reach into each other, as through a stem of convolutions, the hidden pixels are blanked first. Labels are never
    read. Metrics and predictions hide the same patches of every image, so that they can be compared.
    """

    backbone: ViT
    config: MAEConfig
    best_metric = "explained"
    about_metrics = mae_report.METRICS

    def __init__(self, config: MAEConfig, backbone: Backbone) -> None:
        super().__init__(config, {}, _maskable(backbone))
        for name, part in backbone.named_children():
            if name not in _LEARNS:
                part.requires_grad_(False)
        self.grid, self.patch_size = _tiling(self.backbone.config)
        self.blanks = not _apart(self.backbone.config.patch)
        self.count = self.grid[0] * self.grid[1]
        self.visible = round(self.count * (1 - config.mask))
        if not 0 < self.visible < self.count:
            raise ConfigError(
                f"mask {config.mask} leaves {self.visible} of {self.count} patches visible; must be 1 or more, not all"
            )
        self.decoder = Decoder(config, model=self.backbone, grid=self.grid, patch_size=self.patch_size)

    def loss(self, batch: Batch) -> dict[str, Tensor]:
        """The mean squared error of the pixels of the hidden patches, float32."""
        order = self.shuffle(batch.images)
        rebuilt = self.reconstruct(self.encode(batch.images, order), order)
        target = self.target(batch.images)
        return {"loss": (self.hidden(rebuilt, order) - self.hidden(target, order)).square().mean()}

    def shuffle(self, images: Tensor) -> Tensor:
        """A random order of the patches for each image: B C H W -> B N."""
        return torch.rand(len(images), self.count, device=images.device).argsort(dim=1)

    def encode(self, images: Tensor, order: Tensor) -> Tensor:
        """The model on the patches that it may see: B C H W, B N -> B P+V D."""
        tokens, grid = self.backbone.embed(self.blank(images, order) if self.blanks else images)
        every = Features.from_tokens(tokens, grid)
        tokens = torch.cat([every.prefix, pick(every.patches, order[:, : self.visible])], dim=1)
        for block in self.backbone.blocks:
            tokens = self.backbone.run(block, tokens, grid)
        return self.backbone.norm(tokens)

    def blank(self, images: Tensor, order: Tensor) -> Tensor:
        """The images with zeros, the mean colour, wherever a patch is hidden: B C H W, B N -> B C H W."""
        hidden = _hidden(order, self.visible).unflatten(1, (1, *self.grid))  # B 1 h w
        for dim, size in zip((2, 3), self.patch_size, strict=True):
            hidden = hidden.repeat_interleave(size, dim=dim)
        return images.masked_fill(hidden, 0.0)

    def reconstruct(self, tokens: Tensor, order: Tensor) -> Tensor:
        """The pixels of all patches, from the visible ones: B P+V D, B N -> B N (C p q), float32."""
        return self.decoder(tokens, order).float()

    def target(self, images: Tensor) -> Tensor:
        """What should be rebuilt: B C H W -> B N (C p q), float32."""
        pixels = patchify(images.float(), self.patch_size)
        if not self.config.normalise_pixels:
            return pixels
        mean, deviation = _spread(pixels)
        return (pixels - mean) / deviation

    def hidden(self, patches: Tensor, order: Tensor) -> Tensor:
        """The hidden patches: B N F -> B N-V F."""
        return pick(patches, order[:, self.visible :])

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        """Of the hidden pixels of each image: the mean squared error, the mean, the mean square; B 3."""
        order = self.fixed_order(images)
        target = self.hidden(self.target(images), order)
        rebuilt = self.hidden(self.reconstruct(self.encode(images, order), order), order)
        errors = (rebuilt - target).square()
        return {"errors": torch.stack([value.mean(dim=(1, 2)) for value in (errors, target, target.square())], dim=1)}

    def fixed_order(self, images: Tensor) -> Tensor:
        """The same order for every image, at any time and on any device, for metrics: B C H W -> B N."""
        order = torch.randperm(self.count, generator=torch.Generator().manual_seed(0))
        return order.to(images.device).expand(len(images), -1)

    def metrics(self) -> "RebuiltMeter":
        """A fresh meter for one evaluation."""
        return RebuiltMeter()

    def decode(self, outputs: Outputs, *, top: int = 5) -> list[Answer]:
        """There is nothing to answer."""
        raise Unsupported(
            "this model was pre-trained without labels and makes no predictions; fine-tune it first: "
            "vitrail train photos/ --from RUN"
        )

    def errors(self, outputs: Outputs, targets: Targets) -> Tensor:
        """The mean squared error of each image."""
        return outputs["errors"][:, 0]

    def same(self, expected: Arrays, found: Arrays) -> Any:
        """There is nothing to compare."""
        raise Unsupported("a model of task 'mae' is not exported: fine-tune it first")

    def lead(self, results: Mapping[str, Any]) -> str:
        """How much is rebuilt."""
        return mae_report.lead(results)

    def sections(self, results: Mapping[str, Any], examples: Examples = NO_EXAMPLES) -> tuple[Section, ...]:
        """The first images beside what the model rebuilds of them."""
        first, preprocess = examples.first, examples.preprocess
        if not first or preprocess is None:
            return ()
        pixels = torch.stack([example.image for example in first]).to(next(self.parameters()).device)
        images = preprocess(pixels)
        mean, std = preprocess.statistics
        found, names = self.rebuild(images), [example.name for example in first]
        return (mae_report.rebuilt_gallery(images, found["rebuilt"], found["hidden"], names, mean=mean, std=std),)

    @torch.no_grad()
    def rebuild(self, images: Tensor) -> Mapping[str, Tensor]:
        """`rebuilt` B C H W, where patches that are `hidden`, B h w, hold what the model made up.

        Where pixels are normalised, a patch's mean and deviation are not predicted: those of the image are used.
        """
        order = self.fixed_order(images)
        pixels = patchify(images.float(), self.patch_size)  # B N (C p q)
        rebuilt = self.reconstruct(self.encode(images, order), order)
        if self.config.normalise_pixels:
            mean, deviation = _spread(pixels)
            rebuilt = rebuilt * deviation + mean
        hidden = _hidden(order, self.visible)
        whole = unpatchify(torch.where(hidden[..., None], rebuilt, pixels), self.grid, self.patch_size)
        return {"rebuilt": whole, "hidden": hidden.unflatten(1, self.grid)}


class Decoder(nn.Module):
    """Visible tokens, and a mask token for each hidden patch -> the pixels of every patch."""

    def __init__(self, config: MAEConfig, *, model: ViT, grid: Grid, patch_size: tuple[int, int]) -> None:
        super().__init__()
        dim, depth, num_heads = config.size(model.config)
        norm, self.num_prefix = model.config.norm, model.prefix.count
        site = Site(dim=dim, num_heads=num_heads, grid=grid, num_prefix=self.num_prefix, norm=norm)
        self.grid = grid
        self.embed = nn.Linear(model.config.dim, dim)
        self.mask_token = nn.Parameter(torch.zeros(dim))
        self.position = SinCos2DConfig().build(dim, grid=grid, num_prefix=self.num_prefix)
        blocks = (Block(site, attention=SoftmaxConfig(), mlp=GeluMLPConfig()) for _ in range(depth))
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm.build(dim)
        self.pixels = nn.Linear(dim, model.config.channels * patch_size[0] * patch_size[1])
        initialise(self, "paper", name="decoder")
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, tokens: Tensor, order: Tensor) -> Tensor:
        """B P+V D, B N -> B N (C p q)."""
        tokens = self.embed(tokens)
        prefix, seen = tokens[:, : self.num_prefix], tokens[:, self.num_prefix :]
        masks = self.mask_token.expand(len(seen), order.shape[1] - seen.shape[1], -1)  # B N-V D
        patches = pick(torch.cat([seen, masks.to(seen.dtype)], dim=1), order.argsort(dim=1))  # each in its own place
        tokens = self.position(torch.cat([prefix, patches], dim=1), self.grid)
        for block in self.blocks:
            tokens = block(tokens, self.grid)
        return self.pixels(self.norm(tokens[:, self.num_prefix :]))


class RebuiltMeter:
    """The loss of hidden pixels, and `explained`: which share of their variance is rebuilt, at most 1 (R squared).

    0 is what predicting the mean of all of them would reach; less is possible. A higher value is a better one.
    """

    def __init__(self) -> None:
        self.images = 0
        self._sums: Tensor | None = None  # 3: of errors, of values, of squares

    def __getstate__(self) -> dict[str, Any]:
        return {"images": self.images, "_sums": None if self._sums is None else self._sums.cpu()}

    @torch.no_grad()
    def update(self, outputs: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> None:
        """Takes in the outputs of B images, B 3; labels are never read."""
        errors = outputs["errors"]
        errors = errors.cpu() if errors.device.type == "mps" else errors  # which has no float64
        self._add(len(errors), errors.double().sum(dim=0))

    def merge(self, other: Self) -> None:
        """Takes in everything that another meter has seen."""
        if other._sums is not None:
            self._add(other.images, other._sums)

    def _add(self, images: int, sums: Tensor) -> None:
        self.images += images
        self._sums = sums if self._sums is None else self._sums + sums.to(self._sums.device)

    def compute(self) -> Mapping[str, Any]:
        """Numbers: explained, loss, images."""
        if self._sums is None or not self.images:
            raise DataError("no images were evaluated; the data set is empty")
        error, mean, square = (self._sums / self.images).tolist()
        variance = square - mean**2
        return {"explained": 1 - error / max(variance, _EPS), "loss": error, "images": self.images}


def pick(patches: Tensor, places: Tensor) -> Tensor:
    """The patches at some places of each image: B N F, B M -> B M F."""
    return patches.gather(1, places[..., None].expand(-1, -1, patches.shape[2]))


def unpatchify(patches: Tensor, grid: Grid, size: tuple[int, int]) -> Tensor:
    """The image that was cut into patches: B N (C p q) -> B C H W."""
    cut = patches.unflatten(2, (-1, *size)).unflatten(1, grid)  # B h w C p q
    return cut.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


def _two_thirds(number: int, unit: int = 1) -> int:
    """Two thirds of a number in so many units, rounded up."""
    return -(-2 * number // (3 * unit))


def _hidden(order: Tensor, visible: int) -> Tensor:
    """Whether each patch is hidden, where the first of an order are visible: B N."""
    return torch.ones_like(order, dtype=torch.bool).scatter(1, order[:, :visible], False)


def _spread(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each patch, B N 1."""
    variance, mean = torch.var_mean(pixels, dim=2, keepdim=True)
    return mean, (variance + _EPS).sqrt()


def _tiling(config: ViTConfig) -> tuple[Grid, tuple[int, int]]:
    """The grid of patches, and the size of the tiles of the image that are theirs alone."""
    grid = config.patch.grid(config.image_size)
    tile = config.image_size[0] // grid[0], config.image_size[1] // grid[1]
    if (grid[0] * tile[0], grid[1] * tile[1]) != config.image_size:
        raise Unsupported(
            f"masked autoencoding gives each patch a tile of the image, but {grid[0]} x {grid[1]} patches do not tile "
            f"one of {config.image_size[0]} x {config.image_size[1]} pixels"
        )
    return grid, tile


def _apart(patch: PatchConfig) -> bool:
    """Whether no patch reads the pixels of another."""
    return isinstance(patch, LinearPatchConfig) and patch.padding == (0, 0) and patch.stride in (None, patch.size)


def _maskable(backbone: Backbone) -> ViT:
    """The model, if its blocks can run on a part of the patches; else a sentence on why not."""
    if not isinstance(backbone, ViT) or type(backbone).features is not ViT.features:
        raise Unsupported(
            f"masked autoencoding needs a plain ViT, whose blocks take any part of the patches; this is a "
            f"{type(backbone).__name__}"
        )
    config = backbone.config
    if not isinstance(config.attention, SoftmaxConfig):
        raise Unsupported(
            f"masked autoencoding needs softmax attention, which takes any part of the patches; the model has "
            f"{config.attention.kind!r}"
        )
    if not isinstance(config.mlp, GeluMLPConfig | SwiGLUConfig):
        raise Unsupported(
            f"masked autoencoding needs an MLP that reads each patch alone, 'mlp' or 'swiglu'; the model has "
            f"{config.mlp.kind!r}"
        )
    if inside := [position.kind for position in config.position if not isinstance(position, AddedPositionConfig)]:
        raise Unsupported(
            f"masked autoencoding needs positions that are added to tokens, since {inside[0]!r} reads them from the "
            "whole grid; use 'learned' or 'sincos2d'"
        )
    if config.dynamic_size:
        raise Unsupported(
            "masked autoencoding hides a fixed number of patches: build the model with dynamic_size=False "
            "(--set options.dynamic_size=false)"
        )
    return backbone
