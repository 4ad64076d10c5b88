"""Files of the authors of DINOv2, DINOv3 and MAE, by the names that these give to tensors."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.compare import randomise
from support.peers import timm
from torch import Tensor, nn

import vitrail
from vitrail.errors import ChosenNotice

SMALL = {"depth": 3, "embed_dim": 64, "num_heads": 1, "num_classes": 0}
State = dict[str, Tensor]


def built(name: str, **changes: Any) -> nn.Module:
    return randomise(timm.create_model(name, **SMALL | changes)).double()


def renamed(state: State, names: dict[str, str]) -> State:
    """The tensors by names in which each pattern is replaced."""
    out = {}
    for name, tensor in state.items():
        for pattern, new in names.items():
            name = re.sub(pattern, new, name)  # noqa: PLW2901
        out[name] = tensor
    return out


def dinov2(model: nn.Module) -> State:
    """As dinov2_vitb14_pretrain.pth: the class token has a position, the registers have none."""
    gated = {r"mlp\.fc1": "mlp.w12", r"mlp\.fc2": "mlp.w3"} if "giant" in model.pretrained_cfg["architecture"] else {}
    state = renamed(dict(model.state_dict()), {"reg_token": "register_tokens"} | gated)
    state["mask_token"] = torch.zeros(1, 64)
    if "register_tokens" in state:
        position = torch.randn(1, 1, 64, dtype=torch.float64)
        state |= {"cls_token": state["cls_token"] - position}
        state |= {"pos_embed": torch.cat([position, state["pos_embed"]], dim=1)}
    return state


def dinov3(model: nn.Module, *, masked: bool = True) -> State:
    """As dinov3_vitb16_pretrain_lvd1689m.pth: one bias for queries, keys and values, that of the keys masked."""
    state = renamed(
        dict(model.state_dict()),
        {
            "reg_token": "storage_tokens",
            r"gamma_([12])": r"ls\1.gamma",
            r"mlp\.fc1_g": "mlp.w1",
            r"mlp\.fc1_x": "mlp.w2",
            r"mlp\.fc2": "mlp.w3" if any("fc1_g" in name for name in model.state_dict()) else "mlp.fc2",
        },
    )
    state |= {"mask_token": torch.zeros(1, 64), "rope_embed.periods": torch.ones(16)}
    state |= {"local_cls_norm.weight": torch.ones(64)}
    for index in range(SMALL["depth"]):
        attention = f"blocks.{index}.attn"
        q, v = (state.pop(f"{attention}.{part}_bias", torch.zeros(64)) for part in "qv")
        keys = torch.full((64,), 5.0) if masked and q.any() else torch.zeros(64)
        state[f"{attention}.qkv.bias"] = torch.cat([q, keys, v])
        state[f"{attention}.qkv.bias_mask"] = torch.cat([torch.ones(64), torch.zeros(64), torch.ones(64)])
        state.pop(f"{attention}.k_bias", None)
    return state


def mae(model: nn.Module) -> State:
    """As the full file of MAE's pre-training, decoder included."""
    state = dict(model.state_dict())
    state |= {"mask_token": torch.zeros(1, 1, 32), "decoder_pos_embed": torch.zeros(1, 197, 32)}
    state |= {"decoder_embed.weight": torch.zeros(32, 64), "decoder_blocks.0.norm1.weight": torch.zeros(32)}
    return state | {"decoder_norm.bias": torch.zeros(32), "decoder_pred.weight": torch.zeros(768, 32)}


DINOV2, GATED = {"img_size": 70}, {"img_size": 70, "mlp_ratio": 4}
DINOV3 = {"img_size": 64, "dynamic_img_size": False}
FILES: dict[str, tuple[str, dict[str, Any], Any, int]] = {
    "DINOv2": ("vit_small_patch14_dinov2", DINOV2, dinov2, 70),
    "DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", DINOV2, dinov2, 70),
    "DINOv2 giant": ("vit_giant_patch14_dinov2", GATED, dinov2, 70),
    "DINOv2 giant with registers": ("vit_giant_patch14_reg4_dinov2", GATED, dinov2, 70),
    "DINOv3": ("vit_small_patch16_dinov3", DINOV3, dinov3, 64),
    "DINOv3 with biases": ("vit_small_patch16_dinov3_qkvb", DINOV3, dinov3, 64),
    "DINOv3 gated": ("vit_huge_plus_patch16_dinov3", DINOV3, dinov3, 64),
    "MAE": ("vit_base_patch16_224", {}, mae, 224),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["", "in chunks"])
@pytest.mark.parametrize("name", FILES)
def test_the_same_features_as_timm(name: str, chunked: bool, tmp_path: Path) -> None:
    architecture, changes, write, size = FILES[name]
    theirs = built(architecture, **changes)
    state = write(theirs)
    if chunked:
        state = renamed(state, {r"^blocks\.(\d)\.": r"blocks.0.\1."})
    torch.save({"model": state} if name == "MAE" else state, tmp_path / "original.pth")
    hint = vitrail.create(
        "vit_base_patch16" if name == "MAE" else architecture,
        dim=64,
        depth=3,
        num_heads=1,
        image_size=size,
        num_classes=0,
    ).config
    ours = vitrail.load(tmp_path / "original.pth", model=hint, image_size=size, dtype=torch.float64)
    images = torch.randn(2, 3, size, size, dtype=torch.float64)
    with torch.no_grad():
        found, expected = ours.features(images), theirs.eval().forward_features(images)
    tokens = torch.cat([found.prefix, found.patches], dim=1)
    torch.testing.assert_close(tokens, expected, atol=1e-5, rtol=1e-5)  # tables of rope are float32 there


def test_a_training_checkpoint_of_dinov2(tmp_path: Path) -> None:
    theirs = built("vit_small_patch14_reg4_dinov2", **DINOV2 | {"embed_dim": 384, "num_heads": 6})
    plain = renamed(dict(theirs.state_dict()), {"reg_token": "register_tokens"})
    plain["pos_embed"] = torch.cat([torch.zeros(1, 1, 384), plain["pos_embed"]], dim=1)
    state = renamed(plain, {"^": "backbone."})
    torch.save({"teacher": state | {"dino_head.mlp.0.weight": torch.zeros(2)}}, tmp_path / "teacher_checkpoint.pth")
    with pytest.warns(ChosenNotice, match="dino_head"):
        ours = vitrail.load(tmp_path / "teacher_checkpoint.pth")
    assert (ours.config.registers, ours.config.num_heads, ours.config.image_size) == (4, 6, (70, 70))
