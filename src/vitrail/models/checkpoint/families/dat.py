"""DAT as its authors keep it, in the code of 2022: no registry has it."""

from collections.abc import Iterator

from vitrail.models.checkpoint.dialect import Rule, linear, rule
from vitrail.models.checkpoint.translation import Translation
from vitrail.models.dat import DATConfig


def _rules(config: DATConfig) -> Iterator[Rule]:
    yield from linear("stem.patch.projection", "patch_proj.0")
    yield from linear("stem.norm", "patch_proj.1.norm")
    for stage, depth in enumerate(config.depths):
        ours, theirs = f"stages.{stage}", f"stages.{stage}"
        if stage > 0:
            yield rule(f"{ours}.downsample.patch.projection.weight", f"down_projs.{stage - 1}.0.weight")
            yield from linear(f"{ours}.downsample.norm", f"down_projs.{stage - 1}.1.norm")
        for index in range(depth):
            block, moves = f"{ours}.blocks.{index}", config.deformable[stage] and index % 2 == 1
            yield from linear(f"{block}.norm1", f"{theirs}.layer_norms.{2 * index}.norm")
            yield from (_points if moves else _windows)(f"{block}.attention", f"{theirs}.attns.{index}")
            yield from linear(f"{block}.norm2", f"{theirs}.layer_norms.{2 * index + 1}.norm")
            yield from linear(f"{block}.mlp.fc1", f"{theirs}.mlps.{index}.chunk.linear1")
            yield from linear(f"{block}.mlp.fc2", f"{theirs}.mlps.{index}.chunk.linear2")
    yield from linear("norm", "cls_norm.norm")
    yield from linear("head", "cls_head")


def _windows(ours: str, theirs: str) -> Iterator[Rule]:
    yield from linear(f"{ours}.qkv", f"{theirs}.proj_qkv")
    yield from linear(f"{ours}.projection", f"{theirs}.proj_out")
    yield rule(f"{ours}.relative.table", f"{theirs}.relative_position_bias_table")


def _points(ours: str, theirs: str) -> Iterator[Rule]:
    parts = {"q": ["proj_q"], "kv": ["proj_k", "proj_v"], "projection": ["proj_out"]}
    for name, parts_of in parts.items():
        yield rule(f"{ours}.{name}.weight", *(f"{theirs}.{part}.weight" for part in parts_of), trail=2)
        yield rule(f"{ours}.{name}.bias", *(f"{theirs}.{part}.bias" for part in parts_of))
    yield from linear(f"{ours}.offsets.0", f"{theirs}.conv_offset.0")
    yield from linear(f"{ours}.offsets.1.layer", f"{theirs}.conv_offset.1.norm")
    yield rule(f"{ours}.offsets.3.weight", f"{theirs}.conv_offset.3.weight")
    yield rule(f"{ours}.relative.table", f"{theirs}.rpe_table")


AUTHORS = Translation(
    peer="authors",
    family="dat",
    marks=("patch_proj.1.norm.weight", "cls_norm.norm.weight", "stages.2.attns.1.rpe_table"),
    rules=_rules,
    options={},
    ignored=r".*\.(relative_position_index|attn_mask)",  # computed
)
