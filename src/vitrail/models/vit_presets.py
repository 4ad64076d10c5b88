"""The named sizes of plain ViTs: those of the paper, 32 px models, and later variants with published weights."""

from dataclasses import replace
from typing import Literal

from vitrail.layers.attention import SoftmaxConfig
from vitrail.layers.conv_stem import ConvStemConfig
from vitrail.layers.mlp import GeluMLPConfig, MLPConfig, SwiGLUConfig
from vitrail.layers.norm import LayerNormConfig
from vitrail.layers.patch import LinearPatchConfig
from vitrail.layers.pool import AttentionPoolConfig, MeanPoolConfig
from vitrail.layers.position import LearnedConfig, SinCos2DConfig
from vitrail.layers.relative import RelativeConfig
from vitrail.layers.rope import RopeConfig
from vitrail.models.family import Family, Preset
from vitrail.models.hybrid_presets import hybrids
from vitrail.models.vit import ViT, ViTConfig

SIZES = {  # dim, depth, heads (arXiv:2010.11929, table 1; tiny and small: arXiv:2012.12877, arXiv:2106.10270)
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "so400m": (1152, 27, 16),  # shape-optimised, arXiv:2305.13035
    "huge": (1280, 32, 16),
}


def _vit(size: str, patch: int) -> ViTConfig:
    dim, depth, num_heads = SIZES[size]
    return ViTConfig(dim=dim, depth=depth, num_heads=num_heads, patch=LinearPatchConfig(size=(patch, patch)))


def _plain() -> dict[str, Preset]:
    torchvision = {
        "base16": "vit_b_16",
        "base32": "vit_b_32",
        "large16": "vit_l_16",
        "large32": "vit_l_32",
        "huge14": "vit_h_14",
    }
    presets = {}
    for size in ("tiny", "small", "base", "large", "huge"):
        for patch in (8, 14, 16, 32):
            weights = f"timm vit_{size}_patch{patch}_*"
            if name := torchvision.get(f"{size}{patch}"):
                weights += f"; torchvision {name}; hf google/vit-{size}-patch{patch}-*"
            presets[f"vit_{size}_patch{patch}"] = Preset(_vit(size, patch), weights)
    return presets


def _pixels32() -> dict[str, Preset]:
    """Models for 32 px images with patch size 4 and dropout 0.1."""
    sizes = {"small": (192, 12, 3), "base": (384, 12, 6), "large": (512, 24, 8)}
    return {
        f"vit32_{name}": Preset(
            ViTConfig(
                dim=dim,
                depth=depth,
                num_heads=num_heads,
                image_size=(32, 32),
                num_classes=10,
                patch=LinearPatchConfig(size=(4, 4)),
                attention=SoftmaxConfig(dropout=0.1),
                dropout=0.1,
                init="trunc_normal",
            )
        )
        for name, (dim, depth, num_heads) in sizes.items()
    }


def _conv32() -> Preset:
    """The small 32 px model with a convolutional stem and two blocks less: the packaged model."""
    return Preset(
        ViTConfig(
            dim=192,
            depth=10,
            num_heads=3,
            image_size=(32, 32),
            num_classes=10,
            patch=ConvStemConfig(halvings=2, convs=4),
            position=(SinCos2DConfig(),),
            class_token=False,
            pool=MeanPoolConfig(),
            init="trunc_normal",
        )
    )


def _simple(size: str) -> Preset:
    """SimpleViT (arXiv:2205.01580): fixed positions, no class token, mean pooling."""
    return Preset(
        replace(_vit(size, 16), position=(SinCos2DConfig(endpoint=True),), class_token=False, pool=MeanPoolConfig())
    )


def _deit(size: str) -> Preset:
    """DeiT without distillation (arXiv:2012.12877): the same model, other weights."""
    weights = f"timm deit_{size}_patch16_*; hf facebook/deit-{size}-patch16-224"
    return Preset(replace(_vit(size, 16), init="trunc_normal"), weights)


def _deit3(size: str, patch: int = 16) -> Preset:
    """DeiT III (arXiv:2204.07118): LayerScale, no position for the class token."""
    config = replace(_vit(size, patch), position=(LearnedConfig(prefix=False),), layer_scale=1e-6, init="trunc_normal")
    return Preset(config, f"timm deit3_{size}_patch{patch}_*")


def _dinov2(size: str, registers: int = 0) -> Preset:
    """DINOv2 (arXiv:2304.07193), with registers (arXiv:2309.16588) or without."""
    giant = ViTConfig(dim=1536, depth=40, num_heads=24, mlp=SwiGLUConfig(hidden=4096))
    config = replace(
        giant if size == "giant" else _vit(size, 14),
        patch=LinearPatchConfig(size=(14, 14)),
        image_size=(518, 518),
        num_classes=0,
        position=(LearnedConfig(prefix=registers == 0),),
        registers=registers,
        layer_scale=1e-5,
        init="trunc_normal",
    )
    tag = "_reg4" if registers else ""
    hf = "-with-registers" if registers else ""
    return Preset(config, f"timm vit_{size}_patch14{tag}_dinov2.*; hf facebook/dinov2{hf}-{size}")


def _dinov3(dim: int, depth: int, num_heads: int, *, mlp: MLPConfig, bias: Literal["qv", "none"] = "none") -> Preset:
    """DINOv3 (arXiv:2508.10104): rotary positions alone, four registers, LayerScale.

    The published biases of queries and values are zeros; timm omits them, except in its `_qkvb` models.
    """
    config = ViTConfig(
        dim=dim,
        depth=depth,
        num_heads=num_heads,
        image_size=(256, 256),
        num_classes=0,
        position=(RopeConfig(theta=100.0, coordinates="centred", pairs="halves"),),
        registers=4,
        attention=SoftmaxConfig(bias=bias),
        mlp=mlp,
        norm=LayerNormConfig(eps=1e-5),
        layer_scale=1e-5,
        pool=MeanPoolConfig(),
        init="trunc_normal",
    )
    tag = "_qkvb" if bias == "qv" else ""
    return Preset(config, f"timm vit_*_patch16_dinov3{tag}.*; hf facebook/dinov3-vit*")


def _all_dinov3() -> dict[str, Preset]:
    sizes: dict[str, tuple[int, int, int, MLPConfig]] = {
        "small": (384, 12, 6, GeluMLPConfig()),
        "small_plus": (384, 12, 6, SwiGLUConfig(hidden=1536)),
        "base": (768, 12, 12, GeluMLPConfig()),
        "large": (1024, 24, 16, GeluMLPConfig()),
        "huge_plus": (1280, 32, 20, SwiGLUConfig(hidden=5120)),
    }
    presets = {}
    for size, (dim, depth, num_heads, mlp) in sizes.items():
        presets[f"vit_{size}_patch16_dinov3"] = _dinov3(dim, depth, num_heads, mlp=mlp)
        presets[f"vit_{size}_patch16_dinov3_qkvb"] = _dinov3(dim, depth, num_heads, mlp=mlp, bias="qv")
    return presets


def _clip(size: str, patch: int, activation: str) -> Preset:
    """CLIP's image tower (arXiv:2103.00020): a norm before the first block, patches without bias."""
    quick = activation == "quick_gelu"
    config = replace(
        _vit(size, patch),
        num_classes=0,
        patch=LinearPatchConfig(size=(patch, patch), bias=False),
        embed_norm=True,
        mlp=GeluMLPConfig(activation="quick_gelu" if quick else "gelu"),
        norm=LayerNormConfig(eps=1e-5),
        init="trunc_normal",
    )
    hf = f"; hf openai/clip-vit-{size}-patch{patch} (vision tower)" if quick else ""
    return Preset(config, f"timm vit_{size}_patch{patch}_clip{'_quickgelu' if quick else ''}_*{hf}")


def _siglip(size: str, patch: int, mlp: MLPConfig | None = None, image_size: int = 224) -> Preset:
    """SigLIP's image tower (arXiv:2303.15343): no class token, attention pooling, exact GELU as in timm."""
    config = replace(
        _vit(size, patch),
        image_size=(image_size, image_size),
        num_classes=0,
        class_token=False,
        mlp=mlp or GeluMLPConfig(),
        pool=AttentionPoolConfig(),
        init="trunc_normal",
    )
    return Preset(config, f"timm vit_{size}_patch{patch}_siglip_*; hf google/siglip-{size}-patch{patch}-*")


def _eva02(size: str, image_size: int, hidden: int) -> Preset:
    """EVA-02 (arXiv:2303.11331): learned and rotary positions, SwiGLU (inner norm from base up), mean pooling."""
    wide = size in ("base", "large")
    config = replace(
        _vit(size, 14),
        image_size=(image_size, image_size),
        position=(LearnedConfig(), RopeConfig(reference=(16, 16))),
        attention=SoftmaxConfig(bias="qv"),
        mlp=SwiGLUConfig(hidden=hidden, inner_norm=wide),
        pool=MeanPoolConfig(),
        final_norm="pooled",
        init="trunc_normal",
    )
    return Preset(config, f"timm eva02_{size}_patch14_{image_size}.*")


def _beit(size: str) -> Preset:
    """BEiT (arXiv:2106.08254): relative positions, LayerScale, no bias on keys, mean pooling."""
    config = replace(
        _vit(size, 16),
        position=(RelativeConfig(),),
        attention=SoftmaxConfig(bias="qv"),
        layer_scale=0.1 if size == "base" else 1e-5,
        pool=MeanPoolConfig(),
        final_norm="pooled",
        init="trunc_normal",
    )
    return Preset(config, f"timm beit_{size}_patch16_*")


VIT = Family(
    name="vit",
    config=ViTConfig,
    module=ViT,
    paper="arXiv:2010.11929",
    idea="The image is cut into patches, which a plain transformer encoder processes like words. Only position "
    "embeddings encode the structure of the image; everything else is learned.",
    use="With pre-trained weights or much data: the most studied family, and the one with the best explanations.",
    presets={
        **_plain(),
        **_pixels32(),
        "vit32_conv": _conv32(),
        **{f"simple_vit_{size}_patch16": _simple(size) for size in ("tiny", "small", "base", "large")},
        **{f"deit_{size}_patch16": _deit(size) for size in ("tiny", "small", "base")},
        **{f"deit3_{size}_patch16": _deit3(size) for size in ("small", "base", "large")},
        "deit3_huge_patch14": _deit3("huge", 14),
        **{f"vit_{size}_patch14_dinov2": _dinov2(size) for size in ("small", "base", "large", "giant")},
        **{f"vit_{size}_patch14_reg4_dinov2": _dinov2(size, 4) for size in ("small", "base", "large", "giant")},
        **_all_dinov3(),
        **{
            f"vit_{size}_patch{patch}_clip": _clip(size, patch, "gelu")
            for size, patch in (("base", 32), ("base", 16), ("large", 14), ("huge", 14))
        },
        **{
            f"vit_{size}_patch{patch}_clip_quickgelu": _clip(size, patch, "quick_gelu")
            for size, patch in (("base", 32), ("base", 16), ("large", 14))
        },
        **{f"vit_{size}_patch16_siglip": _siglip(size, 16) for size in ("base", "large")},
        "vit_large_patch16_siglip_512": _siglip("large", 16, GeluMLPConfig(activation="gelu_tanh"), 512),
        "vit_so400m_patch14_siglip": _siglip("so400m", 14, GeluMLPConfig(hidden=4304)),
        "eva02_tiny_patch14": _eva02("tiny", 336, 512),
        "eva02_small_patch14": _eva02("small", 336, 1024),
        "eva02_base_patch14": _eva02("base", 448, 2048),
        "eva02_large_patch14": _eva02("large", 448, 2730),
        **{f"beit_{size}_patch16": _beit(size) for size in ("base", "large")},
        **hybrids(),
    },
)
