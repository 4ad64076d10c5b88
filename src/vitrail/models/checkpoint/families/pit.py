"""PiTs of timm."""

from collections.abc import Iterator

from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.translation import Translation, only, sized_timm_card
from vitrail.models.pit import PiTConfig


def _rules(config: PiTConfig) -> Iterator[Rule]:
    yield from linear("stem.patch.projection", "patch_embed.conv")
    yield rule("stages.0.prefix.class_token", "cls_token", lead=1)
    yield rule("stages.0.position.table", "pos_embed", lead=1)
    for stage, depth in enumerate(config.depths):
        ours, theirs = f"stages.{stage}", f"transformers.{stage}"
        yield from linear(f"{ours}.downsample", f"{theirs}.pool.conv")
        yield from linear(f"{ours}.widen", f"{theirs}.pool.fc")
        for index in range(depth):
            block = f"{theirs}.blocks.{index}"
            for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                yield from linear(f"{ours}.blocks.{index}.{part}", f"{block}.{part}")
            yield from linear(f"{ours}.blocks.{index}.attention.qkv", f"{block}.attn.qkv")
            yield from linear(f"{ours}.blocks.{index}.attention.projection", f"{block}.attn.proj")
    yield from linear("norm", "norm")
    yield from linear("head", "head")


TIMM = Translation(
    peer="timm",
    family="pit",
    marks=("patch_embed.conv.weight", "transformers.0.blocks.0.attn.qkv.weight", "transformers.1.pool.conv.weight"),
    rules=_rules,
    options={
        "depth": "depths",
        "mlp_ratio": lambda ratio: {"mlp": {"ratio": float(ratio)}},
        "distilled": only("distilled", False),
    },
    describe=sized_timm_card,
)
