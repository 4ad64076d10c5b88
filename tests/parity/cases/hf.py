"""Models of transformers and torchvision to hold ours against: tiny, every parameter random."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from support.peers import torchvision, transformers
from torch import Tensor, nn

from parity.compare import Case, Outputs, hint, randomise

TINY = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 99,
        "bos_token_id": 1, "eos_token_id": 2, "projection_dim": 24}  # fmt: skip
MAE = {
    "decoder_hidden_size": 32,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 64,
}
RELATIVE = {"use_relative_position_bias": True, "drop_path_rate": 0.0}

Run = Callable[[nn.Module, Tensor], Outputs]


def build(architecture: str, options: dict[str, Any], *, tower: str = "", attention: str = "sdpa") -> nn.Module:
    """A model of transformers, random throughout; `tower` nests the options as those of an image tower."""
    config_class = getattr(transformers, architecture).config_class
    if tower:
        vision = TINY | {key: value for key, value in options.items() if key in ("hidden_act", "layer_norm_eps")}
        rest = {key: value for key, value in options.items() if key not in vision}
        config = config_class(vision_config=vision, text_config=TEXT, **rest)
    else:
        config = config_class(**(TINY | options))
    config._attn_implementation = attention
    return randomise(getattr(transformers, architecture)(config))


def save(model: nn.Module, folder: Path) -> None:
    model.save_pretrained(folder)


def classifier(model: nn.Module, images: Tensor) -> Outputs:
    """A model with a head: its logits."""
    out = model(pixel_values=images, output_hidden_states=True)
    return Outputs(out.logits, list(out.hidden_states[1:]))


def encoder(model: nn.Module, images: Tensor, pooled: Callable[[Any], Tensor] | None = None) -> Outputs:
    """A model without: all tokens, and the class token, or what `pooled` says, for the pooled vector."""
    out = model(pixel_values=images, output_hidden_states=True)
    vector = out.last_hidden_state[:, 0] if pooled is None else pooled(out)
    return Outputs(vector, list(out.hidden_states[1:]), out.last_hidden_state)


def mae(model: nn.Module, images: Tensor) -> Outputs:
    """A masked autoencoder that masks nothing and shuffles nothing."""
    inner = getattr(model, "vit", model)
    noise = torch.arange(16.0).expand(images.shape[0], -1)
    out = inner(pixel_values=images, noise=noise, output_hidden_states=True)
    return Outputs(out.last_hidden_state[:, 0], list(out.hidden_states[1:]), out.last_hidden_state)


def clip(model: nn.Module, images: Tensor) -> Outputs:
    """An image tower whose last tokens are not normalised: the projected vector, or the pooled one."""
    inner = getattr(model, "vision_model", model)
    out = inner(pixel_values=images, output_hidden_states=True)
    vector = model.visual_projection(out.pooler_output) if hasattr(model, "visual_projection") else out.pooler_output
    return Outputs(vector, list(out.hidden_states[1:]))


def siglip(model: nn.Module, images: Tensor) -> Outputs:
    """An image tower that pools by attention."""
    return encoder(getattr(model, "vision_model", model), images, lambda out: out.pooler_output)


def _hf(name: str, architecture: str, run: Run, *, tower: str = "", **options: Any) -> Case:
    size = options.get("image_size", TINY["image_size"])
    return Case(
        name=name,
        peer="hf",
        make=partial(build, architecture, options, tower=tower),
        save=save,
        run=run,
        image_size=(size, size) if isinstance(size, int) else tuple(size),
        channels=options.get("num_channels", 3),
    )


def _torchvision(**options: Any) -> nn.Module:
    tiny = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 3, "hidden_dim": 48, "mlp_dim": 80}
    return randomise(torchvision.models.VisionTransformer(**(tiny | options)))


def _save_torchvision(model: nn.Module, folder: Path) -> None:
    torch.save(model.state_dict(), folder / "vit.pth")


def _run_torchvision(model: nn.Module, images: Tensor) -> Outputs:
    blocks: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda _, __, out: blocks.append(out)) for layer in model.encoder.layers]
    final: list[Tensor] = []
    hooks.append(model.encoder.ln.register_forward_hook(lambda _, __, out: final.append(out)))
    logits = model(images)
    for hook in hooks:
        hook.remove()
    return Outputs(logits, blocks, final[0])


def _tv(name: str, **options: Any) -> Case:
    return Case(
        name=name,
        peer="torchvision",
        make=partial(_torchvision, **options),
        save=_save_torchvision,
        run=_run_torchvision,
        image_size=(options.get("image_size", 32),) * 2,
        # no shape tells the three heads
        load_options={"model": hint("vit_tiny_patch16", dim=48, depth=2, patch={"size": 8}, image_size=32)},
    )


LABELS = {"id2label": {0: "cat", 1: "dog", 2: "owl"}, "label2id": {"cat": 0, "dog": 1, "owl": 2}}
ODD = {
    "image_size": [24, 32],
    "patch_size": [4, 8],
    "num_channels": 1,
    "qkv_bias": False,
    "hidden_act": "gelu_new",
    "layer_norm_eps": 1e-3,
}
ATTEND = {"use_mean_pooling": False, "layer_scale_init_value": 0.0, "use_absolute_position_embeddings": True}

CASES = [
    _hf("ViT, classifier", "ViTForImageClassification", classifier, **LABELS),
    _hf("ViT, encoder with a pooler", "ViTModel", encoder),
    _hf("ViT, rectangles, grey, gelu_new", "ViTForImageClassification", classifier, **ODD),
    _hf("ViT, masked image modelling", "ViTForMaskedImageModeling", lambda m, x: encoder(m.vit, x)),
    _hf("ViT-MSN, classifier", "ViTMSNForImageClassification", classifier),
    _hf("I-JEPA, classifier", "IJepaForImageClassification", classifier),
    _hf("DeiT, two heads", "DeiTForImageClassificationWithTeacher", classifier),
    _hf("DeiT, one head", "DeiTForImageClassification", classifier),
    _hf("DeiT, encoder", "DeiTModel", partial(encoder, pooled=lambda out: out.last_hidden_state[:, :2].mean(1))),
    _hf("MAE, encoder", "ViTMAEModel", mae, mask_ratio=0.0),
    _hf("MAE, with its decoder", "ViTMAEForPreTraining", mae, mask_ratio=0.0, **MAE),
    _hf("DINOv2, classifier", "Dinov2ForImageClassification", classifier, layerscale_value=0.5),
    _hf("DINOv2, SwiGLU", "Dinov2Model", encoder, use_swiglu_ffn=True),
    _hf("DINOv2 with registers", "Dinov2WithRegistersModel", encoder, num_register_tokens=4),
    _hf("DINOv2 with registers, classifier", "Dinov2WithRegistersForImageClassification", classifier),
    _hf("DINOv3", "DINOv3ViTModel", encoder, num_register_tokens=4),
    replace(
        _hf(
            "DINOv3, gated, rectangular",
            "DINOv3ViTModel",
            encoder,
            use_gated_mlp=True,
            hidden_act="silu",
            key_bias=True,
            num_register_tokens=1,
        ),
        image_size=(24, 32),
        load_options={"image_size": (24, 32)},
    ),
    _hf("CLIP, image tower", "CLIPVisionModel", clip),
    _hf("CLIP, projection, gelu", "CLIPVisionModelWithProjection", clip, hidden_act="gelu", projection_dim=24),
    _hf("CLIP, both towers", "CLIPModel", clip, tower="clip", projection_dim=24, layer_norm_eps=1e-4),
    _hf("CLIP, classifier", "CLIPForImageClassification", classifier, tower="clip"),
    _hf("SigLIP, image tower", "SiglipVisionModel", siglip),
    _hf("SigLIP, both towers", "SiglipModel", siglip, tower="siglip", hidden_act="gelu"),
    _hf("SigLIP, classifier", "SiglipForImageClassification", classifier, tower="siglip"),
    _hf("BEiT, classifier", "BeitForImageClassification", classifier, **RELATIVE),
    _hf("BEiT, one table for all blocks", "BeitModel", siglip, use_shared_relative_position_bias=True),
    _hf("BEiT, class token, learned and relative", "BeitForImageClassification", classifier, **RELATIVE, **ATTEND),
    _tv("torchvision ViT"),
    _tv("torchvision ViT, 48 pixels, 7 classes", image_size=48, num_classes=7),
]
