"""timm's plain ViTs in small: every option that changes names, shapes or arithmetic, with random weights throughout."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.peers import timm
from timm.models._hub import save_for_hf
from torch import Tensor, nn

from parity.compare import Case, Outputs, hint, randomise
from vitrail.models.backbone import BackboneConfig

SMALL = {"depth": 2, "embed_dim": 64, "num_heads": 4, "num_classes": 7, "img_size": [64, 96]}


def build(architecture: str, **model_args: Any) -> nn.Module:
    return randomise(timm.create_model(architecture, **model_args))


def save(model: nn.Module, folder: Path, *, model_args: dict[str, Any]) -> None:
    """As timm pushes a model to its hub."""
    save_for_hf(model, folder, model_args=model_args, safe_serialization=True)


def save_tensors(model: nn.Module, folder: Path, *, prefix: str = "", more: dict[str, Tensor] | None = None) -> None:
    """The tensors alone, as `timm.utils.save` and people's scripts do."""
    tensors = {prefix + name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors | (more or {}), folder / "model.safetensors")


@torch.no_grad()
def run(model: nn.Module, images: Tensor) -> Outputs:
    prefixed = bool(model.num_prefix_tokens)
    final, steps = model.forward_intermediates(images, output_fmt="NLC", return_prefix_tokens=prefixed)
    tokens = [torch.cat([step[1], step[0]], dim=1) if prefixed else step for step in steps]
    return Outputs(model(images), tokens, final)


def run_at(model: nn.Module, images: Tensor) -> Outputs:
    """After timm itself has moved the model to the size of the images."""
    model.set_input_size(img_size=tuple(images.shape[2:]))
    return run(model, images)


def case(
    what: str,
    architecture: str,
    *,
    image_size: tuple[int, int] | None = None,
    run: Callable[[nn.Module, Tensor], Outputs] = run,
    **changes: Any,
) -> Case:
    """A small model of an architecture, with its config; `image_size` is one that it was not built for."""
    model_args = SMALL | changes
    return Case(
        name=f"{architecture}, {what}" if what else architecture,
        peer="timm",
        make=functools.partial(build, architecture, **model_args),
        save=functools.partial(save, model_args=model_args),
        run=run,
        image_size=image_size or tuple(model_args["img_size"]),
        load_options={"image_size": image_size} if image_size else {},
        channels=model_args.get("in_chans", 3),
    )


def bare(what: str, architecture: str, *, model: str | None = None, **changes: Any) -> Case:
    """The same without a config: the shapes, or the name that the caller gives, must tell everything."""
    model_args = {"depth": 2, "num_classes": 7, "img_size": 64} | changes
    size = model_args["img_size"]
    return Case(
        name=f"{architecture}, {what}",
        peer="timm",
        make=functools.partial(build, architecture, **model_args),
        save=save_tensors,
        run=run,
        image_size=(size, size),
        load_options={} if model is None else {"model": named(model, model_args)},
    )


def named(model: str, model_args: Mapping[str, Any]) -> BackboneConfig:
    """The named model, as narrow and shallow as the case is."""
    ours = {"embed_dim": "dim", "depth": "depth", "num_heads": "num_heads"}
    return hint(model, **{ours[key]: value for key, value in model_args.items() if key in ours})


def open_clip() -> Case:
    """A SigLIP tower inside open_clip's names, with a text tower beside it."""
    text = {"text.ln_final.weight": torch.ones(4), "logit_scale": torch.ones(1), "text.text_projection": torch.ones(4)}
    architecture, model_args = "vit_base_patch16_siglip_224", SMALL | {"num_classes": 0, "img_size": 64}
    return Case(
        name=f"{architecture}, inside open_clip",
        peer="timm",
        make=functools.partial(build, architecture, **(model_args | {"embed_dim": 192, "num_heads": 12})),
        save=functools.partial(save_tensors, prefix="visual.trunk.", more=text),
        run=run,
        image_size=(64, 64),
        load_options={"model": hint("vit_base_patch16_siglip", dim=192, depth=2)},
    )


PATCH14 = {"img_size": [56, 84]}
CASES: list[Case] = [
    case("", "vit_small_patch16_224"),
    case("one channel, no head", "vit_small_patch16_224", in_chans=1, num_classes=0),
    case("qk-norm", "vit_small_patch16_224", qk_norm=True),
    case("no bias on qkv, no positions", "vit_small_patch16_224", qkv_bias=False, pos_embed="none"),
    case("norms inside", "beit3_base_patch16_224"),
    case("mean, norm over tokens", "vit_small_patch16_224", global_pool="avg", fc_norm=False),
    case("mean, class token", "vit_small_patch16_224", global_pool="avg"),
    case("class token, norm after pooling", "vit_small_patch16_224", fc_norm=True),
    case("no final norm", "vit_intern300m_patch14_448", **PATCH14),
    case("no class token", "vit_medium_patch16_gap_256"),
    case("registers", "vit_base_patch16_reg4_gap_256"),
    case("registers with positions", "vit_small_patch16_224", reg_tokens=3),
    case("RMSNorm", "test_vit4"),
    case("res-post norm", "vit_base_patch16_rpn_224"),
    case("", "deit3_small_patch16_224"),
    case("", "deit_small_distilled_patch16_224"),
    case("", "vit_small_patch14_dinov2", **PATCH14),
    case("", "vit_small_patch14_reg4_dinov2", **PATCH14),
    case("SwiGLU", "vit_giant_patch14_dinov2", mlp_ratio=5.0, **PATCH14),
    case("SiLU", "vit_small_patch16_224", act_layer="silu"),
    case("", "vit_base_patch16_clip_224"),
    case("", "vit_base_patch16_clip_quickgelu_224"),
    case("attention pooling", "vit_base_patch16_siglip_224"),
    case("GELU by tanh", "vit_so400m_patch16_siglip_256"),
    case("attention pooling, registers", "vit_so150m_patch16_reg4_map_256"),
    case("packed SwiGLU", "eva02_tiny_patch14_336", **PATCH14),
    case("separate q k v", "eva02_base_patch14_448", **PATCH14),
    case("norm inside attention", "eva02_base_patch16_clip_224"),
    case("no rope", "eva_giant_patch14_224", **PATCH14),
    case("res-post norm", "eva02_enormous_patch14_clip_224", **PATCH14),
    case("rope, register", "vit_base_patch16_rope_reg1_gap_256"),
    case("rope with bias on keys", "eva02_tiny_patch14_336", attn_type="rope", qkv_fused=False, **PATCH14),
    case("", "vit_small_patch16_dinov3"),
    case("class token, bias on q and v", "vit_base_patch16_dinov3_qkvb", global_pool="token"),
    case("SwiGLU", "vit_small_plus_patch16_dinov3"),
    case("", "beit_base_patch16_224"),
    case("absolute and shared relative", "beitv2_base_patch16_224", use_abs_pos_emb=True, use_rel_pos_bias=False,
         use_shared_rel_pos_bias=True, global_pool="token"),
    # Resampled to a rectangle, by timm and by us.
    case("64x64 at 48x112", "vit_small_patch16_224", img_size=64, dynamic_img_size=True, image_size=(48, 112)),
    case("64x64 at 96x32", "deit3_small_patch16_224", img_size=64, image_size=(96, 32), run=run_at),
    case("64x96 at 112x80, registers", "vit_small_patch16_224", reg_tokens=2, image_size=(112, 80), run=run_at),
    case("56x56 at 42x98", "eva02_base_patch14_448", img_size=56, image_size=(42, 98), run=run_at),
    case("64x64 at 48x112", "vit_small_patch16_dinov3", img_size=64, image_size=(48, 112)),
    # Without a config: the widths of named models.
    bare("no config", "vit_tiny_patch16_224"),
    bare("no config", "deit3_small_patch16_224"),
    bare("no config", "deit_tiny_distilled_patch16_224"),
    bare("no config", "vit_small_patch14_reg4_dinov2", img_size=56),
    bare("no config", "beit_base_patch16_224", embed_dim=96),
    bare("no config, qk-norm", "vit_tiny_patch16_224", embed_dim=80, num_heads=5, qk_norm=True),
    bare("named", "vit_tiny_patch16_224", embed_dim=96, num_heads=12, model="vit_base_patch16"),
    bare("named", "vit_base_patch16_clip_quickgelu_224", embed_dim=192, model="vit_base_patch16_clip_quickgelu"),
    bare("named", "eva02_tiny_patch14_336", img_size=56, model="eva02_tiny_patch14"),
    bare("no config", "vit_small_patch16_dinov3", img_size=224),
    open_clip(),
]  # fmt: skip
