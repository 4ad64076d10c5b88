"""Where transformers keeps the tensors of its plain ViTs: one layout a model type, as its files have always named them.

The classes in memory were renamed in transformers 5, the files were not; `Layout.classic` reads both.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.layers.pool import AttentionPoolConfig, ClassMeanPoolConfig, ClassPoolConfig, MeanPoolConfig, PoolConfig
from vitrail.models.checkpoint.dialect import Rule, expand, linear, rule

_NAMES_OF_5 = [  # what transformers 5 calls a tensor in memory, and what its files call it
    (r"^layers\.(\d+)\.relative_position_bias\.", r"encoder.layer.\1.attention.attention.relative_position_bias."),
    (r"^layers\.", "encoder.layer."),
    (r"^shared_position_bias\.", "encoder.relative_position_bias."),
    (r"(?<=\.)attention\.q_proj\.", "attention.attention.query."),
    (r"(?<=\.)attention\.k_proj\.", "attention.attention.key."),
    (r"(?<=\.)attention\.v_proj\.", "attention.attention.value."),
    (r"(?<=\.)attention\.o_proj\.", "attention.output.dense."),
]
_MLP_OF_5 = [(r"(?<=\.)mlp\.fc1\.", "intermediate.dense."), (r"(?<=\.)mlp\.fc2\.", "output.dense.")]


FinalNorm = Literal["tokens", "pooled", "none"]


@dataclass(frozen=True, kw_only=True)
class End:
    """One of a layout's classes: the tensors that identify it, and what it does with the encoder's tokens."""

    architecture: str
    markers: tuple[str, ...] = ()
    heads: tuple[tuple[str, str], ...] = ()  # ours and theirs
    head_bias: bool = True
    pool: PoolConfig = ClassPoolConfig()
    final_norm: FinalNorm = "tokens"
    family: str = "vit"
    ignored: str = r"(?!)"

    @property
    def rules(self) -> list[Rule]:
        """The rules of the heads."""
        pairs = [each for ours, theirs in self.heads for each in linear(ours, theirs)]
        return [each for each in pairs if self.head_bias or not each.ours.endswith(".bias")]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The names of one model type, and the defaults of its class."""

    kind: str
    prefix: str  # stands before the encoder's names wherever a head stands beside it
    rules: tuple[Rule, ...]
    gated: tuple[Rule, ...] = ()  # instead of the rules of the same tensors, where the MLP is a SwiGLU
    ends: tuple[End, ...]
    eps: float
    activation: str = "gelu"
    num_heads: int = 12
    renamed: tuple[tuple[str, str], ...] = ()
    optional: str = r".*\.(query|key|value)\.bias"  # tensors that the class has or has not, as config.json says
    always_prefixed: bool = False
    ignored: str = r"embeddings\.mask_token|pooler\.dense\..*"

    def choose(self, *, gated: bool) -> list[Rule]:
        """The rules for a model with or without a gated MLP."""
        instead = {each.ours for each in self.gated} if gated else set()
        return [each for each in self.rules if each.ours not in instead] + (list(self.gated) if gated else [])

    def lacking(self, rules: list[Rule], names: Collection[str], depth: int, *, waived: str = r"(?!)") -> list[str]:
        """The tensors that the class always has and that are not among the names."""
        wanted = {name for each in expand(rules, depth) for name in each.theirs}
        optional = rf"{self.optional}|{waived}|embeddings\.register_tokens"  # there may be none
        return sorted(name for name in wanted - set(names) if not re.fullmatch(optional, name))

    def classic(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by the names that files have, without the encoder's prefix."""
        out: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            new = name.removeprefix(f"{self.prefix}.")
            for pattern, classic in self.renamed:
                new = re.sub(pattern, classic, new)
            if new in out:
                raise CheckpointError(f"the checkpoint holds {new} twice, once as {name}")
            out[new] = tensor
        return out

    def prefixed(self, tensors: Mapping[str, Tensor], end: End) -> dict[str, Tensor]:
        """The inverse of `classic`: the prefix stands before all names but the heads'."""
        if not (end.heads or self.always_prefixed):
            return dict(tensors)
        heads = tuple(f"{theirs}." for _, theirs in end.heads)
        return {name if name.startswith(heads) else f"{self.prefix}.{name}": t for name, t in tensors.items()}


def _blocks(
    block: str,
    *,
    norms: tuple[str, str],
    qkv: tuple[str, str, str],
    projection: str,
    mlp: tuple[str, str],
    scales: tuple[str, ...] = (),
) -> list[Rule]:
    return [
        *linear("blocks.{i}.norm1", f"{block}.{norms[0]}"),
        *linear("blocks.{i}.attention.qkv", *(f"{block}.{name}" for name in qkv)),
        *linear("blocks.{i}.attention.projection", f"{block}.{projection}"),
        *linear("blocks.{i}.norm2", f"{block}.{norms[1]}"),
        *linear("blocks.{i}.mlp.fc1", f"{block}.{mlp[0]}"),
        *linear("blocks.{i}.mlp.fc2", f"{block}.{mlp[1]}"),
        *(rule(f"blocks.{{i}}.scale{n}.gain", f"{block}.{name}") for n, name in enumerate(scales, 1)),
    ]


def _embeddings(*, patch: str = "embeddings.patch_embeddings.projection", class_token: bool = True) -> list[Rule]:
    rules = linear("patch.projection", patch)
    return [*rules, rule("prefix.class_token", "embeddings.cls_token", lead=1)] if class_token else rules


_TABLE = rule("position.0.table", "embeddings.position_embeddings", lead=1)
_REGISTERS = rule("prefix.registers", "embeddings.register_tokens", lead=1)
_NORM = linear("norm", "layernorm")
_QKV = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
_VIT = _blocks(
    "encoder.layer.{i}",
    norms=("layernorm_before", "layernorm_after"),
    qkv=_QKV,
    projection="attention.output.dense",
    mlp=("intermediate.dense", "output.dense"),
)
_DINOV2 = _blocks(
    "encoder.layer.{i}",
    norms=("norm1", "norm2"),
    qkv=_QKV,
    projection="attention.output.dense",
    mlp=("mlp.fc1", "mlp.fc2"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
)
_DINOV3 = _blocks(
    "layer.{i}",
    norms=("norm1", "norm2"),
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    projection="attention.o_proj",
    mlp=("mlp.up_proj", "mlp.down_proj"),
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
)
_TOWER = [
    rule("position.0.table", "embeddings.position_embedding.weight"),
    *_blocks(
        "encoder.layers.{i}",
        norms=("layer_norm1", "layer_norm2"),
        qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        projection="self_attn.out_proj",
        mlp=("mlp.fc1", "mlp.fc2"),
    ),
    *linear("norm", "post_layernorm"),
]
_MAP = [
    rule("pool.query", "head.probe", lead=1),
    *linear("pool.q", "head.attention.q"),  # `take_apart` cuts q and kv out of one in_proj
    *linear("pool.kv", "head.attention.kv"),
    *linear("pool.projection", "head.attention.out_proj"),
    *linear("pool.norm", "head.layernorm"),
    *linear("pool.mlp.fc1", "head.mlp.fc1"),
    *linear("pool.mlp.fc2", "head.mlp.fc2"),
]
_RELATIVE = "relative_position_bias.relative_position_bias_table"
SHARED_RELATIVE = rule("blocks.{i}.attention.relative.table", f"encoder.{_RELATIVE}")
_HEAD = ("classifier.weight",)
_CLASS = ClassPoolConfig()
_POOL_NORM = "pooler.layernorm.weight"
_TEXT = r"text_model\..*|text_projection\..*|logit_scale|logit_bias|embeddings\.position_ids"


def _classifier(
    architecture: str,
    *,
    markers: tuple[str, ...] = _HEAD,
    pool: PoolConfig = _CLASS,
    final_norm: FinalNorm = "tokens",
    ignored: str = r"(?!)",
) -> End:
    heads = (("head", "classifier"),)
    return End(
        architecture=architecture, markers=markers, heads=heads, pool=pool, final_norm=final_norm, ignored=ignored
    )


def _vit_like(kind: str, prefix: str, name: str, *, eps: float = 1e-12, pool: PoolConfig = _CLASS) -> Layout:
    return Layout(
        kind=kind,
        prefix=prefix,
        rules=(*_embeddings(class_token=pool.needs_class_token), _TABLE, *_VIT, *_NORM),
        ends=(
            _classifier(f"{name}ForImageClassification", pool=pool),
            End(architecture=f"{name}Model", pool=pool, ignored=r"decoder\..*"),  # masked image modelling
        ),
        eps=eps,
        renamed=(*_NAMES_OF_5, *_MLP_OF_5),
    )


def _dinov2(kind: str, name: str, *between: Rule) -> Layout:
    return Layout(
        kind=kind,
        prefix=kind,
        rules=(*_embeddings(), *between, _TABLE, *_DINOV2, *_NORM),
        gated=(
            *linear("blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.weights_in"),
            *linear("blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.weights_out"),
        ),
        ends=(
            _classifier(f"{name}ForImageClassification", pool=ClassMeanPoolConfig()),
            End(architecture=f"{name}Model"),
        ),
        eps=1e-6,
        renamed=(*_NAMES_OF_5, (r"(?<=\.)mlp\.down_proj\.", "mlp.weights_out.")),
    )


_DEIT = Layout(
    kind="deit",
    prefix="deit",
    rules=(
        *_embeddings(),
        rule("prefix.distillation_token", "embeddings.distillation_token", lead=1),
        rule("prefix.registers", "embeddings.distillation_token", lead=1),  # what no head reads is a register
        _TABLE,
        *_VIT,
        *_NORM,
    ),
    ends=(
        End(
            architecture="DeiTForImageClassificationWithTeacher",
            markers=("distillation_classifier.weight",),
            heads=(("head", "cls_classifier"), ("distillation_head", "distillation_classifier")),
            family="deit",
        ),
        _classifier("DeiTForImageClassification"),
        End(architecture="DeiTModel", family="deit", ignored=r"decoder\..*"),
    ),
    eps=1e-12,
    renamed=(*_NAMES_OF_5, *_MLP_OF_5),
)
_BEIT = Layout(
    kind="beit",
    prefix="beit",
    rules=(
        *_embeddings(),
        _TABLE,
        *(each for each in _VIT if each.ours != "blocks.{i}.attention.qkv.bias"),
        rule("blocks.{i}.attention.qv_bias", *(f"encoder.layer.{{i}}.{n}.bias" for n in _QKV[::2]), stack=True),
        rule("blocks.{i}.attention.relative.table", f"encoder.layer.{{i}}.attention.attention.{_RELATIVE}"),
        rule("blocks.{i}.scale1.gain", "encoder.layer.{i}.lambda_1"),
        rule("blocks.{i}.scale2.gain", "encoder.layer.{i}.lambda_2"),
        *_NORM,
        *linear("pool_norm", "pooler.layernorm"),
    ),
    ends=(  # with mean pooling, the norm stands over the pooled vector
        _classifier(
            "BeitForImageClassification", markers=(*_HEAD, _POOL_NORM), pool=MeanPoolConfig(), final_norm="pooled"
        ),
        _classifier("BeitForImageClassification"),
        End(architecture="BeitModel", markers=(_POOL_NORM,), pool=MeanPoolConfig(), final_norm="pooled"),
        End(architecture="BeitModel", ignored=r"lm_head\..*"),
    ),
    eps=1e-12,
    renamed=(*_NAMES_OF_5, *_MLP_OF_5),
    optional=r".*lambda_[12]|.*relative_position_bias_table|embeddings\.position_embeddings|.*layernorm\.(weight|bias)",
    ignored=r"embeddings\.mask_token|.*\.relative_position_index",
)
_DINOV3_VIT = Layout(
    kind="dinov3_vit",
    prefix="model",
    rules=(
        *_embeddings(patch="embeddings.patch_embeddings"),
        _REGISTERS,
        *_DINOV3,
        rule("blocks.{i}.attention.qv_bias", *(f"layer.{{i}}.attention.{n}_proj.bias" for n in "qv"), stack=True),
        *linear("norm", "norm"),
    ),
    gated=tuple(linear("blocks.{i}.mlp.fc1", "layer.{i}.mlp.gate_proj", "layer.{i}.mlp.up_proj")),
    ends=(End(architecture="DINOv3ViTModel"),),
    eps=1e-5,
    num_heads=6,
    optional=r".*\.[qkv]_proj\.bias",
)
_CLIP = Layout(
    kind="clip_vision_model",
    prefix="vision_model",
    rules=(
        rule("patch.projection.weight", "embeddings.patch_embedding.weight"),
        rule("prefix.class_token", "embeddings.class_embedding", stack=True),
        *linear("embed_norm", "pre_layrnorm"),  # their spelling
        *_TOWER,
    ),
    ends=(
        End(
            architecture="CLIPVisionModelWithProjection",
            markers=("visual_projection.weight",),
            heads=(("head", "visual_projection"),),
            head_bias=False,
        ),
        _classifier(  # it reads the patches before any norm
            "CLIPForImageClassification", pool=MeanPoolConfig(), final_norm="none", ignored=r"post_layernorm\..*"
        ),
        End(architecture="CLIPVisionModel"),
    ),
    eps=1e-5,
    activation="quick_gelu",
    optional=r"(?!)",
    always_prefixed=True,
    ignored=_TEXT,
)
_SIGLIP = Layout(
    kind="siglip_vision_model",
    prefix="vision_model",
    rules=(*linear("patch.projection", "embeddings.patch_embedding"), *_TOWER, *_MAP),
    ends=(
        _classifier("SiglipForImageClassification", pool=MeanPoolConfig(), ignored=r"head\..*"),
        End(architecture="SiglipVisionModel", markers=("head.probe",), pool=AttentionPoolConfig()),
        End(architecture="SiglipVisionModel", pool=MeanPoolConfig()),  # vision_use_head: false
    ),
    eps=1e-6,
    activation="gelu_pytorch_tanh",
    optional=r"head\..*",
    always_prefixed=True,
    ignored=_TEXT,
)
LAYOUTS: dict[str, Layout] = {
    each.kind: each
    for each in (
        _vit_like("vit", "vit", "ViT"),
        _vit_like("vit_mae", "vit", "ViTMAE"),
        _vit_like("vit_msn", "vit", "ViTMSN", eps=1e-6),
        _vit_like("ijepa", "ijepa", "IJepa", pool=MeanPoolConfig()),
        _DEIT,
        _BEIT,
        _dinov2("dinov2", "Dinov2"),
        _dinov2("dinov2_with_registers", "Dinov2WithRegisters", _REGISTERS),
        _DINOV3_VIT,
        _CLIP,
        _SIGLIP,
    )
}
LAYOUTS |= {"clip": _CLIP, "siglip": _SIGLIP}  # both towers in one file


def take_apart(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Reshapes tensors that rules cannot: classic names in, the names of the rules out."""
    out = {name: tensor for name, tensor in tensors.items() if tensor.numel()}  # no registers: an empty tensor
    for part in ("weight", "bias"):
        if f"head.attention.in_proj_{part}" in out:
            q, k, v = out.pop(f"head.attention.in_proj_{part}").chunk(3)
            out[f"head.attention.q.{part}"], out[f"head.attention.kv.{part}"] = q, torch.cat([k, v])
        if kind.startswith("dinov2"):  # transformers 5 in memory: the gate and the value apart
            for gate in [name for name in out if name.endswith(f".mlp.gate_proj.{part}")]:
                block = gate.removesuffix(f".gate_proj.{part}")
                up = out.pop(f"{block}.up_proj.{part}", out[gate][:0])
                out[f"{block}.weights_in.{part}"] = torch.cat([out.pop(gate), up])
    table = out.get("embeddings.position_embeddings")
    if kind == "dinov2_with_registers" and table is not None and "embeddings.cls_token" in out:
        # The registers stand between the class token and the patches and have no position, so that the class token
        # takes its own along. In double precision the sum is exact.
        out["embeddings.cls_token"] = out["embeddings.cls_token"].double() + table[:, :1].double()
        out["embeddings.position_embeddings"] = table[:, 1:]
    return out


def put_together(kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `take_apart`, with the constant tensors that a class requires."""
    out = dict(tensors)
    for part in ("weight", "bias"):
        if f"head.attention.q.{part}" in out:
            halves = [out.pop(f"head.attention.{half}.{part}") for half in ("q", "kv")]
            out[f"head.attention.in_proj_{part}"] = torch.cat(halves)
    if kind in ("dinov2", "dinov2_with_registers", "dinov3_vit"):
        token = out["embeddings.cls_token"]  # 1 1 D
        out["embeddings.mask_token"] = torch.zeros_like(token if kind == "dinov3_vit" else token[0])
        if kind != "dinov2":
            out.setdefault("embeddings.register_tokens", token[:, :0])
        if kind == "dinov2_with_registers" and "embeddings.position_embeddings" in out:
            patches = out["embeddings.position_embeddings"]
            out["embeddings.position_embeddings"] = torch.cat([torch.zeros_like(token), patches], dim=1)
    return out
