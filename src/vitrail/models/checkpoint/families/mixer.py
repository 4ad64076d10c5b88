"""MLP-Mixers of timm."""

from collections.abc import Iterator

from vitrail.models.checkpoint.dialect import Rule, linear
from vitrail.models.checkpoint.translation import Translation, sized_timm_card
from vitrail.models.mixer import MixerConfig


def _timm(config: MixerConfig) -> Iterator[Rule]:
    yield from linear("stem.patch.projection", "stem.proj")
    for index in range(config.depths[0]):
        ours, theirs = f"stages.0.blocks.{index}", f"blocks.{index}"
        for part in ("1", "2"):
            yield from linear(f"{ours}.norm{part}", f"{theirs}.norm{part}")
            yield from linear(f"{ours}.attention.mlp.fc{part}", f"{theirs}.mlp_tokens.fc{part}")
            yield from linear(f"{ours}.mlp.fc{part}", f"{theirs}.mlp_channels.fc{part}")
    yield from linear("norm", "norm")
    yield from linear("head", "head")


TIMM = Translation(
    peer="timm",
    family="mixer",
    marks=("stem.proj.weight", "blocks.0.mlp_tokens.fc1.weight", "blocks.0.mlp_channels.fc1.weight"),
    rules=_timm,
    options={},
    describe=sized_timm_card,
)
