"""LeViT of timm and of Hugging Face."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vitrail.errors import CheckpointError, Unsupported
from vitrail.models.checkpoint.dialect import Rule, batch_norm, conv_norm, linear, rule
from vitrail.models.checkpoint.translation import Option, Translation, only
from vitrail.models.levit import LeViTConfig

_HF_MLP, _TIMM_MLP = ("linear_up", "linear_down"), ("ln1", "ln2")


def _linear_norm(ours: str, theirs: str, norm: str) -> Iterator[Rule]:
    """A linear map without a bias and the batch norm after it, which the peer calls `norm`."""
    yield rule(f"{ours}.linear.weight", f"{theirs}.linear.weight")
    yield from batch_norm(f"{ours}.norm", f"{theirs}.{norm}")


def _mlp(ours: str, theirs: str, names: tuple[str, str], norm: str) -> Iterator[Rule]:
    for part, name in zip(("fc1", "fc2"), names, strict=True):
        yield from _linear_norm(f"{ours}.{part}", f"{theirs}.{name}", norm)


def _head(ours: str, theirs: str, norm: str) -> Iterator[Rule]:
    yield from batch_norm(f"{ours}.norm", f"{theirs}.{norm}")
    yield from linear(f"{ours}.linear", f"{theirs}.linear")


def _check(config: LeViTConfig) -> None:
    if config.fused:
        raise Unsupported(
            "a fused LeViT cannot be converted: timm and Hugging Face keep its batch norms; convert it before fuse()"
        )


def _timm_rules(config: LeViTConfig) -> Iterator[Rule]:
    _check(config)
    for index in range(4):
        yield from conv_norm(f"stem.{index}", f"stem.conv{index + 1}.linear", f"stem.conv{index + 1}.bn")
    for stage, depth in enumerate(config.depths):
        down, theirs = f"stages.{stage}.downsample", f"stages.{stage}.downsample.attn_downsample"
        for part, name in {"q": "q.ln", "kv": "kv", "projection": "proj.ln"}.items():
            yield from _linear_norm(f"{down}.attention.{part}", f"{theirs}.{name}", "bn")
        yield rule(f"{down}.attention.bias.table", f"{theirs}.attention_biases")
        yield from _mlp(f"{down}.mlp", f"{down}.mlp", _TIMM_MLP, "bn")
        for index in range(depth):
            block = f"stages.{stage}.blocks.{index}"
            yield from _linear_norm(f"{block}.attention.qkv", f"{block}.attn.qkv", "bn")
            yield from _linear_norm(f"{block}.attention.projection", f"{block}.attn.proj.ln", "bn")
            yield rule(f"{block}.attention.bias.table", f"{block}.attn.attention_biases")
            yield from _mlp(f"{block}.mlp", f"{block}.mlp", _TIMM_MLP, "bn")
    yield from _head("head", "head", "bn")
    yield from _head("distillation_head", "head_dist", "bn")


def _hf_rules(config: LeViTConfig) -> Iterator[Rule]:
    _check(config)
    for index in range(4):
        theirs = f"levit.patch_embeddings.embedding_layer_{index + 1}"
        yield from conv_norm(f"stem.{index}", f"{theirs}.convolution", f"{theirs}.batch_norm")
    for stage, depth in enumerate(config.depths):
        layers = f"levit.encoder.stages.{stage}.layers"
        for index in range(depth):
            block, theirs = f"stages.{stage}.blocks.{index}", f"{layers}.{2 * index}.module"
            yield from _linear_norm(f"{block}.attention.qkv", f"{theirs}.queries_keys_values", "batch_norm")
            yield from _linear_norm(f"{block}.attention.projection", f"{theirs}.projection", "batch_norm")
            yield rule(f"{block}.attention.bias.table", f"{theirs}.attention_biases")
            yield from _mlp(f"{block}.mlp", f"{layers}.{2 * index + 1}.module", _HF_MLP, "batch_norm")
        # There, the attention that leads to the next stage ends this one.
        down, theirs = f"stages.{stage + 1}.downsample", f"{layers}.{2 * depth}"
        for part, name in {"q": "queries", "kv": "keys_values", "projection": "projection"}.items():
            yield from _linear_norm(f"{down}.attention.{part}", f"{theirs}.{name}", "batch_norm")
        yield rule(f"{down}.attention.bias.table", f"{theirs}.attention_biases")
        yield from _mlp(f"{down}.mlp", f"{layers}.{2 * depth + 1}.module", _HF_MLP, "batch_norm")
    yield from _head("head", "classifier", "batch_norm")
    yield from _head("distillation_head", "classifier_distill", "batch_norm")


def _one(ours: str, theirs: str) -> Option:
    """An option that is one number here, and there the same for every stage."""

    def follow(value: Any) -> Mapping[str, Any]:
        each = set(value) if isinstance(value, Sequence) else {value}
        if len(each) > 1:
            raise CheckpointError(f"{theirs} is {value!r}; it must be the same for all stages")
        return {ours: each.pop()}

    return follow


def _timm_card(config: LeViTConfig) -> Mapping[str, Any]:
    """Timm's config.json: the name gives the architecture, model_args the size."""
    args = {
        "img_size": list(config.image_size),
        "in_chans": config.channels,
        "embed_dim": list(config.dims),
        "depth": list(config.depths),
        "num_heads": list(config.num_heads),
        "key_dim": config.head_dim,
        "attn_ratio": config.value_ratio,
        "mlp_ratio": config.mlp_ratio,
        "distilled": config.distilled,
    }
    trained = {"input_size": [config.channels, *config.image_size], "num_classes": config.num_classes}
    card = {"architecture": "levit_128s", "num_classes": config.num_classes, "model_args": args}
    return card | {"pretrained_cfg": trained | {"fixed_input_size": True}}


def _hf_config(config: LeViTConfig) -> Mapping[str, Any]:
    height, width = config.image_size
    if height != width or config.value_ratio % 1 or config.mlp_ratio % 1:
        raise Unsupported("Hugging Face's LeViT supports square images and whole ratios only")
    stages, end = len(config.depths), "ForImageClassification" if config.num_classes else "Model"
    return {
        "model_type": "levit",
        "architectures": [f"Levit{end}{'WithTeacher' if config.distilled and config.num_classes else ''}"],
        "image_size": height,
        "num_channels": config.channels,
        "num_labels": config.num_classes,
        "hidden_sizes": list(config.dims),
        "depths": list(config.depths),
        "num_attention_heads": list(config.num_heads),
        "key_dim": [config.head_dim] * stages,
        "attention_ratio": [int(config.value_ratio)] * stages,
        "mlp_ratio": [int(config.mlp_ratio)] * stages,
    }


TIMM = Translation(
    peer="timm",
    family="levit",
    marks=("stem.conv1.linear.weight", "stages.0.blocks.0.attn.attention_biases", "head.bn.weight"),
    rules=_timm_rules,
    options={
        "embed_dim": "dims",
        "depth": "depths",
        "num_heads": "num_heads",
        "key_dim": "head_dim",
        "attn_ratio": _one("value_ratio", "attn_ratio"),
        "mlp_ratio": _one("mlp_ratio", "mlp_ratio"),
        "distilled": "distilled",
    },
    describe=_timm_card,
)
HF = Translation(
    peer="hf",
    family="levit",
    marks=("levit.patch_embeddings.embedding_layer_1.convolution.weight",),
    rules=_hf_rules,
    options={
        "image_size": "image_size",
        "num_channels": "channels",
        "hidden_sizes": "dims",
        "depths": "depths",
        "num_attention_heads": "num_heads",
        "key_dim": _one("head_dim", "key_dim"),
        "attention_ratio": _one("value_ratio", "attention_ratio"),
        "mlp_ratio": _one("mlp_ratio", "mlp_ratio"),
        "architectures": lambda names: {"distilled": any("WithTeacher" in name for name in names or ())},
        "kernel_size": only("kernel_size", 3),
        "stride": only("stride", 2),
        "padding": only("padding", 1),
        "patch_size": only("patch_size", 16),
    },
    describe=_hf_config,
    kind="levit",
    base="levit_128",
)
