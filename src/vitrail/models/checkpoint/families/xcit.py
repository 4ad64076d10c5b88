"""XCiTs of timm."""

from collections.abc import Iterator

from vitrail.models.checkpoint.dialect import Rule, batch_norm, conv_norm, linear, rule
from vitrail.models.checkpoint.translation import Translation, sized_timm_card
from vitrail.models.xcit import XCiTConfig


def _timm(config: XCiTConfig) -> Iterator[Rule]:
    for index in range(config.patch_size.bit_length() - 1):
        yield from conv_norm(f"stem.{index}", f"patch_embed.proj.{2 * index}.0", f"patch_embed.proj.{2 * index}.1")
    yield from linear("stages.0.position.projection", "pos_embed.token_projection")
    yield rule("stages.0.class_token.class_token", "cls_token", lead=1)
    for index in range(config.depths[0]):
        ours, theirs = f"stages.0.blocks.{index}", f"blocks.{index}"
        yield from _branches(ours, theirs, 3)
        yield rule(f"{ours}.attention.temperature", f"{theirs}.attn.temperature")
        yield from linear(f"{ours}.attention.qkv", f"{theirs}.attn.qkv")
        yield from linear(f"{ours}.local.conv1", f"{theirs}.local_mp.conv1")
        yield from batch_norm(f"{ours}.local.norm", f"{theirs}.local_mp.bn")
        yield from linear(f"{ours}.local.conv2", f"{theirs}.local_mp.conv2")
    for index in range(config.class_depth):
        ours, theirs = f"stages.0.class_blocks.{index}", f"cls_attn_blocks.{index}"
        yield from _branches(ours, theirs, 2)
        yield from linear(f"{ours}.attention.q", f"{theirs}.attn.q")
        yield from linear(f"{ours}.attention.kv", f"{theirs}.attn.k", f"{theirs}.attn.v")
    yield from linear("norm", "norm")
    yield from linear("head", "head")


def _branches(ours: str, theirs: str, count: int) -> Iterator[Rule]:
    """What both kinds of blocks have: a norm and a gain a branch, the map after attention, and the MLP."""
    for branch in range(1, count + 1):
        yield from linear(f"{ours}.norm{branch}", f"{theirs}.norm{branch}")
        yield rule(f"{ours}.scale{branch}.gain", f"{theirs}.gamma{branch}")
    yield from linear(f"{ours}.attention.projection", f"{theirs}.attn.proj")
    for part in ("fc1", "fc2"):
        yield from linear(f"{ours}.mlp.{part}", f"{theirs}.mlp.{part}")


TIMM = Translation(
    peer="timm",
    family="xcit",
    marks=("blocks.0.local_mp.conv1.weight", "cls_attn_blocks.0.attn.q.weight"),
    rules=_timm,
    options={
        "embed_dim": lambda dim: {"dims": (dim,)},
        "depth": lambda depth: {"depths": (depth,)},
        "num_heads": lambda count: {"num_heads": (count,)},
        "patch_size": "patch_size",
        "cls_attn_layers": "class_depth",
        "tokens_norm": "norm_all",
        "eta": "layer_scale",
    },
    describe=sized_timm_card,
)
