"""MetaFormers of timm, and PoolFormers of Hugging Face."""

from collections.abc import Iterator

from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.translation import Translation, only, timm_card
from vitrail.models.metaformer import MetaFormerConfig


def _timm_rules(config: MetaFormerConfig) -> Iterator[Rule]:
    yield from linear("stem.0", "stem.conv")
    yield rule("stem.1.layer.weight", "stem.norm.weight")
    for stage, depth in enumerate(config.depths):
        here = f"stages.{stage}"
        yield rule(f"{here}.downsample.0.layer.weight", f"{here}.downsample.norm.weight")
        yield from linear(f"{here}.downsample.1", f"{here}.downsample.conv")
        for index in range(depth):
            yield from _timm_block(f"{here}.blocks.{index}", config.mixers[stage] != "attention")
    for part in ("norm", "pool_norm"):
        yield from linear(part, "head.norm")
    yield from linear("head", "head.fc")
    for part in ("fc1", "norm", "fc2"):
        yield from linear(f"head.{part}", f"head.fc.{part}")


def _timm_block(block: str, maps: bool) -> Iterator[Rule]:
    """A block; where it works on maps, timm's linear maps are convolutions of 1 x 1."""
    trail, mixer = 2 if maps else 0, f"{block}.token_mixer"
    for index in ("1", "2"):
        yield from linear(f"{block}.norm{index}", f"{block}.norm{index}")
        yield rule(f"{block}.scale{index}.gain", f"{block}.layer_scale{index}.scale")
        yield rule(f"{block}.res_scale{index}.gain", f"{block}.res_scale{index}.scale")
        yield rule(f"{block}.mlp.fc{index}.weight", trail=trail)
        yield rule(f"{block}.mlp.fc{index}.bias")
    for part in ("scale", "bias"):
        yield rule(f"{block}.mlp.activation.{part}", f"{block}.mlp.act.{part}")
        yield rule(f"{block}.mixer.activation.{part}", f"{mixer}.act1.{part}")
    yield rule(f"{block}.mixer.expand.weight", f"{mixer}.pwconv1.weight", trail=2)
    yield rule(f"{block}.mixer.filter.weight", f"{mixer}.dwconv.weight")
    yield rule(f"{block}.mixer.project.weight", f"{mixer}.pwconv2.weight", trail=2)
    yield rule(f"{block}.mixer.qkv.weight", f"{mixer}.qkv.weight")
    yield rule(f"{block}.mixer.projection.weight", f"{mixer}.proj.weight")


def _hf_rules(config: MetaFormerConfig) -> Iterator[Rule]:
    encoder = "poolformer.encoder"
    for stage, depth in enumerate(config.depths):
        ours = "stem.0" if stage == 0 else f"stages.{stage}.downsample.1"
        yield from linear(ours, f"{encoder}.patch_embeddings.{stage}.projection")
        for index in range(depth):
            block, theirs = f"stages.{stage}.blocks.{index}", f"{encoder}.block.{stage}.{index}"
            yield from linear(f"{block}.norm1", f"{theirs}.before_norm")
            yield from linear(f"{block}.norm2", f"{theirs}.after_norm")
            for part in ("1", "2"):
                yield rule(f"{block}.scale{part}.gain", f"{theirs}.layer_scale_{part}")
                yield rule(f"{block}.mlp.fc{part}.weight", f"{theirs}.output.conv{part}.weight", trail=2)
                yield rule(f"{block}.mlp.fc{part}.bias", f"{theirs}.output.conv{part}.bias")
    for part in ("norm", "pool_norm"):
        yield from linear(part, "norm")
    yield from linear("head", "classifier")


TIMM = Translation(
    peer="timm",
    family="metaformer",
    marks=("stem.conv.weight", "stages.0.blocks.0.mlp.fc1.weight", "head.norm.weight"),
    rules=_timm_rules,
    options={},
    describe=timm_card,
)
HF = Translation(
    peer="hf",
    family="metaformer",
    marks=("poolformer.encoder.patch_embeddings.0.projection.weight",),
    rules=_hf_rules,
    options={
        "num_channels": "channels",
        "depths": "depths",
        # Hugging Face normalises the last map, as the paper does; timm the pooled vector.
        "hidden_sizes": lambda dims: {"dims": dims, "final_norm": "map"},
        "mlp_ratio": lambda ratio: {"mlp": {"ratio": float(ratio)}},
        "hidden_act": only("hidden_act", "gelu"),
        "use_layer_scale": only("use_layer_scale", True),
        "pool_size": only("pool_size", 3),
        "patch_sizes": only("patch_sizes", [7, 3, 3, 3]),
        "strides": only("strides", [4, 2, 2, 2]),
        "padding": only("padding", [2, 1, 1, 1]),
    },
    kind="poolformer",
    base="poolformer_s12",
)
