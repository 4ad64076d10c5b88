"""PVT of Hugging Face, and PVT v2 of timm and of Hugging Face."""

from collections.abc import Iterator

from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.translation import Option, Translation, only, timm_card
from vitrail.models.pvt import PVTConfig, PVTv2Config


def _embed(stage: int) -> str:
    """Our name of the layer that a stage begins with."""
    return "stem" if stage == 0 else f"stages.{stage}.downsample"


def _hf_rules(config: PVTConfig) -> Iterator[Rule]:
    encoder = "pvt.encoder"
    for stage, depth in enumerate(config.depths):
        here, theirs = f"stages.{stage}", f"{encoder}.patch_embeddings.{stage}"
        yield from linear(f"{_embed(stage)}.projection", f"{theirs}.projection")
        yield from linear(f"{_embed(stage)}.norm", f"{theirs}.layer_norm")
        yield rule(f"{here}.position.table", f"{theirs}.position_embeddings", lead=1)
        yield rule(f"{here}.prefix.class_token", f"{theirs}.cls_token", lead=1)
        for index in range(depth):
            block, theirs = f"{here}.blocks.{index}", f"{encoder}.block.{stage}.{index}"
            yield from _hf_block(block, theirs, f"{theirs}.attention.self")
            yield from linear(f"{block}.attention.reduce", f"{theirs}.attention.self.sequence_reduction")
            yield from linear(f"{block}.attention.projection", f"{theirs}.attention.output.dense")
    yield from linear("norm", f"{encoder}.layer_norm")
    yield from linear("head", "classifier")


def _hf_block(block: str, theirs: str, attention: str) -> Iterator[Rule]:
    """What Hugging Face names alike in both versions."""
    yield from linear(f"{block}.norm1", f"{theirs}.layer_norm_1")
    yield from linear(f"{block}.norm2", f"{theirs}.layer_norm_2")
    yield from linear(f"{block}.attention.q", f"{attention}.query")
    yield from linear(f"{block}.attention.kv", f"{attention}.key", f"{attention}.value")
    yield from linear(f"{block}.attention.norm", f"{attention}.layer_norm")
    yield from linear(f"{block}.mlp.fc1", f"{theirs}.mlp.dense1")
    yield from linear(f"{block}.mlp.fc2", f"{theirs}.mlp.dense2")


def _hf_v2_rules(config: PVTv2Config) -> Iterator[Rule]:
    for stage, depth in enumerate(config.depths):
        layer = f"pvt_v2.encoder.layers.{stage}"
        yield from linear(f"{_embed(stage)}.projection", f"{layer}.patch_embedding.proj")
        yield from linear(f"{_embed(stage)}.norm", f"{layer}.patch_embedding.layer_norm")
        for index in range(depth):
            block, theirs = f"stages.{stage}.blocks.{index}", f"{layer}.blocks.{index}"
            yield from _hf_block(block, theirs, f"{theirs}.attention")
            yield from linear(f"{block}.attention.reduce", f"{theirs}.attention.spatial_reduction")
            yield from linear(f"{block}.attention.projection", f"{theirs}.attention.proj")
            yield from linear(f"{block}.mlp.conv", f"{theirs}.mlp.dwconv.dwconv")
        yield from linear(_stage_norm(config, stage), f"{layer}.layer_norm")
    yield from linear("head", "classifier")


def _segformer_rules(config: PVTv2Config) -> Iterator[Rule]:
    encoder = "segformer.encoder"
    for stage, depth in enumerate(config.depths):
        theirs = f"{encoder}.patch_embeddings.{stage}"
        yield from linear(f"{_embed(stage)}.projection", f"{theirs}.proj")
        yield from linear(f"{_embed(stage)}.norm", f"{theirs}.layer_norm")
        for index in range(depth):
            block, theirs = f"stages.{stage}.blocks.{index}", f"{encoder}.block.{stage}.{index}"
            yield from _hf_block(block, theirs, f"{theirs}.attention.self")
            yield from linear(f"{block}.attention.reduce", f"{theirs}.attention.self.sr")
            yield from linear(f"{block}.attention.projection", f"{theirs}.attention.output.dense")
            yield from linear(f"{block}.mlp.conv", f"{theirs}.mlp.dwconv.dwconv")
        yield from linear(_stage_norm(config, stage), f"{encoder}.layer_norm.{stage}")
    yield from linear("head", "classifier")


def _timm_v2_rules(config: PVTv2Config) -> Iterator[Rule]:
    for stage, depth in enumerate(config.depths):
        here = f"stages.{stage}"
        theirs = f"{here}.downsample" if stage else "patch_embed"
        yield from linear(f"{_embed(stage)}.projection", f"{theirs}.proj")
        yield from linear(f"{_embed(stage)}.norm", f"{theirs}.norm")
        for index in range(depth):
            block = f"{here}.blocks.{index}"
            for part in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                yield from linear(f"{block}.{part}", f"{block}.{part}")
            yield from linear(f"{block}.mlp.conv", f"{block}.mlp.dwconv")
            for part, name in {"q": "q", "kv": "kv", "reduce": "sr", "norm": "norm", "projection": "proj"}.items():
                yield from linear(f"{block}.attention.{part}", f"{block}.attn.{name}")
        yield from linear(_stage_norm(config, stage), f"{here}.norm")
    yield from linear("head", "head")


def _stage_norm(config: PVTv2Config, stage: int) -> str:
    """Our name of the norm at the end of a stage; that of the last is the model's."""
    return "norm" if stage == len(config.depths) - 1 else f"stages.{stage}.norm"


_HF_OPTIONS: dict[str, Option] = {
    "image_size": "image_size",
    "num_channels": "channels",
    "depths": "depths",
    "hidden_sizes": "dims",
    "num_attention_heads": "num_heads",
    "mlp_ratios": "mlp_ratios",
    "layer_norm_eps": lambda eps: {"norm": {"eps": eps}, "embed_norm": {"eps": eps}},
    "qkv_bias": only("qkv_bias", True),
    "hidden_act": only("hidden_act", "gelu"),
    "strides": only("strides", [4, 2, 2, 2]),
}
HF = Translation(
    peer="hf",
    family="pvt",
    marks=("pvt.encoder.patch_embeddings.0.position_embeddings",),
    rules=_hf_rules,
    options=_HF_OPTIONS | {"sequence_reduction_ratios": "reductions", "patch_sizes": only("patch_sizes", [4, 2, 2, 2])},
    kind="pvt",
    base="pvt_tiny",
)
HF_V2 = Translation(
    peer="hf",
    family="pvt_v2",
    marks=("pvt_v2.encoder.layers.0.patch_embedding.proj.weight",),
    rules=_hf_v2_rules,
    options=_HF_OPTIONS
    | {
        "sr_ratios": "reductions",
        "linear_attention": "linear",
        "patch_sizes": only("patch_sizes", [7, 3, 3, 3]),
    },
    kind="pvt_v2",
    base="pvt_v2_b0",
)
# The encoder of SegFormer is a PVT v2 with narrower MLPs and other norms; its config names an eps that it does not use.
HF_SEGFORMER = Translation(
    peer="hf",
    family="pvt_v2",
    marks=("segformer.encoder.patch_embeddings.0.proj.weight",),
    rules=_segformer_rules,
    options={name: option for name, option in _HF_OPTIONS.items() if name not in ("layer_norm_eps", "qkv_bias")}
    | {"sr_ratios": "reductions", "patch_sizes": only("patch_sizes", [7, 3, 3, 3])},
    kind="segformer",
    variant="segformer",
    base="pvt_v2_b0",
    own={"norm": {"eps": 1e-5}, "embed_norm": {"eps": 1e-5}, "mlp_ratios": (4.0, 4.0, 4.0, 4.0)},
)
TIMM_V2 = Translation(
    peer="timm",
    family="pvt_v2",
    marks=("patch_embed.norm.weight", "stages.0.blocks.0.mlp.dwconv.weight", "stages.0.blocks.0.attn.kv.weight"),
    rules=_timm_v2_rules,
    options={
        "embed_dims": "dims",
        "depths": "depths",
        "num_heads": "num_heads",
        "mlp_ratios": "mlp_ratios",
        "sr_ratios": "reductions",
        "linear": "linear",
        "qkv_bias": only("qkv_bias", True),
    },
    describe=timm_card,
)
