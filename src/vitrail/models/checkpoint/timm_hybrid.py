"""timm's patch embeddings: a linear map of pixels, or of the feature map of a ResNet."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from vitrail.errors import CheckpointError, Unsupported
from vitrail.layers.patch import LinearPatchConfig, PatchConfig
from vitrail.layers.resnet_stem import ResNetPatchConfig
from vitrail.models.checkpoint.dialect import Rule, linear, rule

_BODY = "patch_embed.backbone"
# timm's builders, by the blocks of the ResNet's stages.
_BUILDERS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


def read_patch(tensors: Mapping[str, Tensor], path: Path) -> tuple[PatchConfig, int, tuple[int, int]]:
    """The patch embedding, the channels of images, and the pixels of an image on each side of a patch."""
    weight = tensors["patch_embed.proj.weight"]
    if weight.ndim != 4:
        shape = tuple(weight.shape)
        raise CheckpointError(f"{path}: patch_embed.proj.weight is {shape}; it must be dim, channels, rows, columns")
    _, channels, rows, columns = weight.shape
    if not any(name.startswith(f"{_BODY}.") for name in tensors):
        return (
            LinearPatchConfig(size=(rows, columns), bias="patch_embed.proj.bias" in tensors),
            channels,
            (rows, columns),
        )
    depths = stage_depths(tensors)
    stem = tensors.get(f"{_stem(depths)}.conv.weight")
    if stem is None:
        raise Unsupported(f"{path}: {_BODY} is not a BiT ResNet, the only one that is supported before a ViT")
    config = ResNetPatchConfig(size=(rows, columns), depths=depths, width=stem.shape[0])
    return config, stem.shape[1], (rows * config.scale, columns * config.scale)


def stage_depths(names: Iterable[str]) -> tuple[int, ...]:
    """How many blocks each stage of the ResNet has, from timm's names of tensors."""
    depths: dict[int, int] = {}
    for name in names:
        if match := re.match(rf"{re.escape(_BODY)}\.stages\.(\d+)\.blocks\.(\d+)\.", name):
            depths[int(match[1])] = max(depths.get(int(match[1]), 0), int(match[2]) + 1)
    return tuple(depths[stage] for stage in sorted(depths))


def patch_rules(depths: tuple[int, ...]) -> list[Rule]:
    """The rules of the patch embedding; a model uses those whose tensors it has."""
    rules = [*linear("patch.projection", "patch_embed.proj"), *_layer("patch.stem", _stem(depths), "")]
    for stage, depth in enumerate(depths):
        for block in range(depth):
            ours, theirs = f"patch.stages.{stage}.{block}", f"{_BODY}.stages.{stage}.blocks.{block}"
            for index in range(3):
                rules += _layer(f"{ours}.branch.{index}", theirs, str(index + 1))
            rules += _layer(f"{ours}.shortcut", f"{theirs}.downsample", "")
    return rules


def builder(patch: ResNetPatchConfig) -> str:
    """The name of timm's builder for this ResNet, or Unsupported."""
    if patch.depths not in _BUILDERS or patch.width != 64:
        raise Unsupported(f"timm has no ViT with a ResNet of {patch.depths} blocks and width {patch.width}")
    return _BUILDERS[patch.depths]


def _stem(depths: tuple[int, ...]) -> str:
    return f"{_BODY}.stem" if depths else _BODY


def _layer(ours: str, theirs: str, number: str) -> list[Rule]:
    convolution = rule(f"{ours}.conv.weight", f"{theirs}.conv{number}.weight")
    return [convolution, *linear(f"{ours}.norm", f"{theirs}.norm{number}")]
