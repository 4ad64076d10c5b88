"""How timm names the tensors of a plain ViT, in each of the layouts that its classes have."""

from collections.abc import Container
from typing import NamedTuple, Self

from vitrail.models.checkpoint.dialect import Rule, linear, rule

_BLOCK = "blocks.{i}"


class Layout(NamedTuple):
    """Where timm's classes differ in how they keep the same tensors."""

    separate_qkv: bool = False  # q_proj, k_proj, v_proj instead of qkv
    separate_gate: bool = False  # fc1_g, fc1_x instead of one fc1
    gammas: bool = False  # gamma_1 instead of ls1.gamma
    shared_relative: bool = False  # one table of relative positions for all blocks

    @classmethod
    def of(cls, names: Container[str]) -> Self:
        """The layout that a list of names has."""
        return cls(
            separate_qkv="blocks.0.attn.q_proj.weight" in names,
            separate_gate="blocks.0.mlp.fc1_g.weight" in names,
            gammas="blocks.0.gamma_1" in names,
            shared_relative="rel_pos_bias.relative_position_bias_table" in names,
        )


def rules(layout: Layout) -> list[Rule]:
    """All rules of a layout but those of patches; a model uses those whose tensors it has."""
    return [
        rule("prefix.class_token", "cls_token", lead=1),
        rule("prefix.distillation_token", "dist_token", lead=1),
        rule("prefix.registers", "reg_token", lead=1),
        rule("position.0.table", "pos_embed", lead=1),
        *linear("embed_norm", "norm_pre"),
        *linear(f"{_BLOCK}.norm1", f"{_BLOCK}.norm1"),
        *_attention(layout),
        *linear(f"{_BLOCK}.norm2", f"{_BLOCK}.norm2"),
        *_mlp(layout),
        rule(f"{_BLOCK}.scale1.gain", f"{_BLOCK}.gamma_1" if layout.gammas else f"{_BLOCK}.ls1.gamma"),
        rule(f"{_BLOCK}.scale2.gain", f"{_BLOCK}.gamma_2" if layout.gammas else f"{_BLOCK}.ls2.gamma"),
        *linear("norm", "norm"),
        rule("pool.query", "attn_pool.latent", lead=1),
        *linear("pool.q", "attn_pool.q"),
        *linear("pool.kv", "attn_pool.kv"),
        *linear("pool.projection", "attn_pool.proj"),
        *linear("pool.norm", "attn_pool.norm"),
        *linear("pool.mlp.fc1", "attn_pool.mlp.fc1"),
        *linear("pool.mlp.fc2", "attn_pool.mlp.fc2"),
        *linear("pool_norm", "fc_norm"),
        *linear("head", "head"),
        *linear("distillation_head", "head_dist"),
    ]


def _attention(layout: Layout) -> list[Rule]:
    ours, theirs = f"{_BLOCK}.attention", f"{_BLOCK}.attn"
    maps = [f"{theirs}.{name}_proj" for name in "qkv"] if layout.separate_qkv else [f"{theirs}.qkv"]
    biases = [f"{theirs}.{name}_proj.bias" if layout.separate_qkv else f"{theirs}.{name}_bias" for name in "qv"]
    table = "rel_pos_bias" if layout.shared_relative else theirs
    return [
        *linear(f"{ours}.qkv", *maps),
        rule(f"{ours}.qv_bias", *biases, stack=True),
        *linear(f"{ours}.q_norm", f"{theirs}.q_norm"),
        *linear(f"{ours}.k_norm", f"{theirs}.k_norm"),
        rule(f"{ours}.relative.table", f"{table}.relative_position_bias_table"),
        *linear(f"{ours}.norm", f"{theirs}.norm"),
        *linear(f"{ours}.projection", f"{theirs}.proj"),
    ]


def _mlp(layout: Layout) -> list[Rule]:
    maps = ("fc1_g", "fc1_x") if layout.separate_gate else ("fc1",)
    return [
        *linear(f"{_BLOCK}.mlp.fc1", *(f"{_BLOCK}.mlp.{name}" for name in maps)),
        *linear(f"{_BLOCK}.mlp.norm", f"{_BLOCK}.mlp.norm"),
        *linear(f"{_BLOCK}.mlp.fc2", f"{_BLOCK}.mlp.fc2"),
    ]
