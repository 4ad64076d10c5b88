"""FastViTs of timm, in the form in which they learn."""

from collections.abc import Iterator

from vitrail.errors import Unsupported
from vitrail.models.checkpoint.dialect import Rule, batch_norm, conv_norm, linear, rule
from vitrail.models.checkpoint.translation import Translation, only, timm_card
from vitrail.models.fastvit import FastViTConfig


def _timm(config: FastViTConfig) -> Iterator[Rule]:
    if config.fused:
        raise Unsupported("timm folds other layers than vitrail does; convert the model before it is fused")
    for index in range(3):
        yield from _mobile_one(f"stem.{index}", f"stem.{index}")
    for stage, depth in enumerate(config.depths):
        here = f"stages.{stage}"
        for index, size in enumerate(("large", "small")):
            yield from _branch(f"{here}.downsample.0.branches.{index}", f"{here}.downsample.proj.0.{size}_conv")
        yield from _mobile_one(f"{here}.downsample.1", f"{here}.downsample.proj.1")
        yield from linear(f"{here}.downsample.{2 if stage else 0}.conv", f"{here}.pos_emb.pos_enc")
        for index in range(depth):
            yield from _block(f"{here}.blocks.{index}", attention=config.mixers[stage] == "attention")
    yield from _mobile_one("final", "final_conv")
    yield from linear("head", "head.fc")


def _branch(ours: str, theirs: str) -> Iterator[Rule]:
    yield from conv_norm(ours, f"{theirs}.conv", f"{theirs}.bn")


def _rep_conv(ours: str, theirs: str) -> Iterator[Rule]:
    yield from _branch(f"{ours}.branches.0", f"{theirs}.conv_kxk.0")
    yield from _branch(f"{ours}.branches.1", f"{theirs}.conv_scale")
    yield from batch_norm(f"{ours}.identity", f"{theirs}.identity")


def _mobile_one(ours: str, theirs: str) -> Iterator[Rule]:
    yield from _rep_conv(f"{ours}.0", theirs)
    yield from linear(f"{ours}.1.reduce", f"{theirs}.se.fc1")
    yield from linear(f"{ours}.1.expand", f"{theirs}.se.fc2")


def _block(block: str, *, attention: bool) -> Iterator[Rule]:
    if attention:
        yield from batch_norm(f"{block}.mixer.branch.norm", f"{block}.norm")
        yield rule(f"{block}.mixer.branch.mix.attention.qkv.weight", f"{block}.token_mixer.qkv.weight")
        yield from linear(f"{block}.mixer.branch.mix.attention.projection", f"{block}.token_mixer.proj")
    else:
        for part in ("norm", "mixer"):
            yield from _rep_conv(f"{block}.mixer.{part}", f"{block}.token_mixer.{part}")
    gains = ("layer_scale_1", "layer_scale_2") if attention else ("token_mixer.layer_scale", "layer_scale")
    for ours, theirs in zip(("mixer.scale", "scale"), gains, strict=True):
        yield rule(f"{block}.{ours}.layer.gain", f"{block}.{theirs}.gamma", trail=2)
    yield from _branch(f"{block}.mlp.0", f"{block}.mlp.conv")
    yield from linear(f"{block}.mlp.1", f"{block}.mlp.fc1")
    yield from linear(f"{block}.mlp.4", f"{block}.mlp.fc2")


TIMM = Translation(
    peer="timm",
    family="fastvit",
    marks=("stem.0.conv_kxk.0.conv.weight", "stages.1.downsample.proj.0.large_conv.conv.weight", "head.fc.weight"),
    rules=_timm,
    options={
        "layers": "depths",
        "embed_dims": "dims",
        "mlp_ratios": "mlp_ratios",
        "inference_mode": only("inference_mode", False),
    },
    describe=timm_card,
)
