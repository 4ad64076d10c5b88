"""The names that the authors of DINOv2 (arXiv:2304.07193) and DINOv3 (arXiv:2508.10104) use, as timm's."""

import re
from collections.abc import Mapping

from torch import Tensor

# Of pre-training alone: the token in place of hidden patches, the decoder of MAE (arXiv:2111.06377), the norm of small
# crops; and tables that follow from the sizes.
PRETRAINING = r"mask_token|decoder_\w+(\..*)?|local_cls_norm\..*|rope_embed\.periods|blocks\.\d+\.attn\.qkv\.bias_mask"
_CHUNK = re.compile(r"^blocks\.\d+\.(\d+)\.")


def as_timm(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Tensors of DINOv2 or DINOv3 by timm's names; all others as they are."""
    if any(_CHUNK.match(name) for name in tensors):  # blocks in chunks, each counted from the first of all
        tensors = {_CHUNK.sub(r"blocks.\1.", name): tensor for name, tensor in tensors.items()}
    if "register_tokens" in tensors:
        tensors = _with_registers(tensors)
    if "storage_tokens" in tensors:
        tensors = _dinov3(tensors)
    renamed = {}
    for name, tensor in tensors.items():
        gated = re.sub(r"\.mlp\.w12\.", ".mlp.fc1.", name)
        renamed[re.sub(r"^(blocks\.\d+)\.mlp\.w3\.", r"\1.mlp.fc2.", gated)] = tensor
    return renamed


def _with_registers(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """DINOv2 adds a position to the class token; timm has it in the token itself."""
    rest = {name: tensor for name, tensor in tensors.items() if name != "register_tokens"}
    table, token = tensors.get("pos_embed"), tensors.get("cls_token")
    if table is not None and token is not None:
        rest |= {"cls_token": token + table[:, :1], "pos_embed": table[:, 1:]}
    return rest | {"reg_token": tensors["register_tokens"]}


def _dinov3(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """DINOv3's registers, layer scales, gates and biases; biases that are zero everywhere are left out, as in timm."""
    names = {"storage_tokens": "reg_token"}
    masked = any(name.endswith(".qkv.bias_mask") for name in tensors)
    biased = any(bool(tensor.any()) for name, tensor in tensors.items() if name.endswith(".attn.qkv.bias"))
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(".attn.qkv.bias") and (masked or not biased):
            if biased:  # that of the keys is masked
                queries, _, values = tensor.chunk(3)
                renamed |= {name.replace("qkv.bias", "q_bias"): queries, name.replace("qkv.bias", "v_bias"): values}
            continue
        new = names.get(name, name)
        new = re.sub(r"^(blocks\.\d+)\.ls([12])\.gamma$", r"\1.gamma_\2", new)
        new = re.sub(r"^(blocks\.\d+)\.mlp\.w1\.", r"\1.mlp.fc1_g.", new)
        renamed[re.sub(r"^(blocks\.\d+)\.mlp\.w2\.", r"\1.mlp.fc1_x.", new)] = tensor
    return renamed
