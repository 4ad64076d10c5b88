"""What the tests of counting share: small models of every kind, and what really happens in them."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from vitrail.layers.patch import LinearPatchConfig
from vitrail.models.backbone import Backbone
from vitrail.models.registry import list_models, resolve
from vitrail.models.vit import ViTConfig
from vitrail.profiling.count import blank_images, count

NAMES = list_models()
PLAIN = [
    name
    for name in NAMES
    if isinstance(config := resolve(name)[1], ViTConfig) and isinstance(config.patch, LinearPatchConfig)
]
SMALL = {"dim": 32, "depth": 2, "num_heads": 2, "image_size": 32, "num_classes": 5}
VARIANTS = {
    "plain": ("vit_tiny_patch16", {}),
    "swiglu": ("vit_tiny_patch16", {"mlp": {"kind": "swiglu", "hidden": 48, "inner_norm": True}}),
    "narrow heads": ("vit_tiny_patch16", {"attention": {"head_dim": 8, "bias": "none"}}),
    "qk_norm": ("vit_tiny_patch16", {"attention": {"qk_norm": True, "inner_norm": True}}),
    "rope": ("vit_tiny_patch16", {"position": "rope", "registers": 3, "attention": {"qk_norm": True}}),
    "factored": ("vit_tiny_patch16", {"position": "factored", "pool": "class_mean", "layer_scale": 0.1}),
    "clip": ("vit_base_patch16_clip_quickgelu", {}),
    "siglip": ("vit_base_patch16_siglip", {}),
    "eva": ("eva02_base_patch14", {"image_size": 28, "mlp": {"hidden": 48}}),
    "rms": ("vit_tiny_patch16", {"norm": "rms", "position": "sincos2d"}),
    "no head": ("vit_tiny_patch16", {"num_classes": 0, "pool": "mean", "class_token": False}),
    "distilled": ("deit_tiny_distilled_patch16", {}),
}


def small(variant: str = "plain", **changes) -> Backbone:
    name, own = VARIANTS[variant]
    return vitrail.create(name, **{**SMALL, **own, **changes})


def framework_macs(model) -> int:
    """torch's own count of a forward pass, without a fused kernel, on a batch without data."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(blank_images(model, None, 1))
    return counter.get_total_flops() // 2


def really_kept(model, images) -> int:
    """Bytes of all storages that a real forward pass in training saves, without the weights."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.train()(images)
    return sum(storage.nbytes() for storage in kept.values())


def kept(model, *, batch=1, image_size=None) -> int:
    return count(model, blank_images(model, image_size, batch)).total[2]


def rows(report) -> dict:
    return {row["layer"]: row for row in report["Layers"].rows}
