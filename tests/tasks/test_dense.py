"""Tasks whose answers have a place in the image: nothing is cut off or mixed."""

import pytest

from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.tasks.dense import DenseConfig
from vitrail.tasks.task import TaskConfig

KINDS = [kind for kind in TaskConfig.kinds.values() if issubclass(kind, DenseConfig) and kind.kind != "many"]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_nothing_is_mixed_or_cut_off(kind: type[DenseConfig]) -> None:
    config = kind()
    _, _, mix, notes = config.adapt({}, AugmentConfig(), MixConfig(mixup=0.8, cutmix=1.0))
    assert (mix.mixup, mix.cutmix) == (0, 0)
    assert any("mosaic" in note for note in notes)
    assert not any("Mixup" in note for note in config.adapt({}, AugmentConfig(), MixConfig())[3])
    assert config.num_outputs({}) == 0
    assert config.preprocess["resize"] == "squash"


def test_there_are_three() -> None:
    assert {kind.kind for kind in KINDS} == {"detect", "segment", "depth"}
