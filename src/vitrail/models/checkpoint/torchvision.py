"""torchvision's vit_b_16, vit_l_16 and so on."""

from vitrail.errors import Unsupported
from vitrail.layers.mlp import GeluMLPConfig
from vitrail.layers.patch import LinearPatchConfig
from vitrail.models.backbone import Backbone, BackboneConfig
from vitrail.models.checkpoint.dialect import Foreign, Found, depth_of, linear, rule
from vitrail.models.checkpoint.files import Weights
from vitrail.models.checkpoint.shapes import grid_of, patches_of, usual_heads
from vitrail.models.vit import ViTConfig

_BLOCK = "encoder.layers.encoder_layer_{i}"
RULES = [
    *linear("patch.projection", "conv_proj"),
    rule("prefix.class_token", "class_token", lead=1),
    rule("position.0.table", "encoder.pos_embedding", lead=1),
    *linear("blocks.{i}.norm1", f"{_BLOCK}.ln_1"),
    rule("blocks.{i}.attention.qkv.weight", f"{_BLOCK}.self_attention.in_proj_weight"),
    rule("blocks.{i}.attention.qkv.bias", f"{_BLOCK}.self_attention.in_proj_bias"),
    *linear("blocks.{i}.attention.projection", f"{_BLOCK}.self_attention.out_proj"),
    *linear("blocks.{i}.norm2", f"{_BLOCK}.ln_2"),
    *linear("blocks.{i}.mlp.fc1", f"{_BLOCK}.mlp.0"),
    *linear("blocks.{i}.mlp.fc2", f"{_BLOCK}.mlp.3"),
    *linear("norm", "encoder.ln"),
    *linear("head", "heads.head"),
]


class Torchvision:
    """`torchvision.models.vit_*`; its files have no config, so everything is read from the shapes."""

    name = "torchvision"

    def recognises(self, weights: Weights) -> bool:
        """Whether the tensors' names are torchvision's."""
        return {"conv_proj.weight", "encoder.pos_embedding"} <= set(weights.tensors)

    def read(self, weights: Weights, hint: BackboneConfig | None) -> Found:
        """The model of the weights."""
        tensors = {name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3."): tensor
                   for name, tensor in weights.tensors.items()}  # fmt: skip  # the names before torchvision 0.12
        dim, channels, *patch = tensors["conv_proj.weight"].shape
        said = patches_of(weights.image_size, (patch[0], patch[1]))
        rows, columns = grid_of(tensors["encoder.pos_embedding"].shape[1] - 1, weights.path, said=said)
        fc1 = tensors.get(f"{_BLOCK.format(i=0)}.mlp.0.bias")
        config = ViTConfig(
            dim=dim,
            depth=depth_of(tensors, r"encoder\.layers\.encoder_layer_(\d+)\."),
            num_heads=hint.num_heads if isinstance(hint, ViTConfig) else usual_heads(dim, weights.path, rotary=False),
            image_size=(rows * patch[0], columns * patch[1]),
            channels=channels,
            num_classes=len(tensors["heads.head.bias"]) if "heads.head.bias" in tensors else 0,
            patch=LinearPatchConfig(size=(patch[0], patch[1])),
            mlp=GeluMLPConfig(hidden=None if fc1 is None else len(fc1)),
        )
        return Found(family="vit", config=config, tensors=tensors, rules=RULES)

    def write(self, model: Backbone) -> Foreign:
        """Unsupported: torchvision reads no config and has a few fixed sizes only."""
        raise Unsupported("writing torchvision's format is not supported; convert to vitrail, timm or hf")
