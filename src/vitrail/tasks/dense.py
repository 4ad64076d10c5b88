"""What tasks share whose answers have a place in the image: detection, segmentation, depth."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.targets import Schema
from vitrail.tasks.task import TaskConfig


@dataclass(frozen=True, kw_only=True)
class DenseConfig(TaskConfig):
    """The whole picture is resized, so that nothing is cut off, and images are not mixed."""

    preprocess: ClassVar[Mapping[str, Any]] = {"resize": "squash"}

    def num_outputs(self, schema: Schema) -> int:
        """None: the head beside the model reads its maps."""
        return 0

    def adapt(
        self, schema: Schema, augment: AugmentConfig, mix: MixConfig
    ) -> tuple[Schema, AugmentConfig, MixConfig, list[str]]:
        """Without mixtures of images."""
        schema, augment, mix, notes = super().adapt(schema, augment, mix)
        if mix.mixup or mix.cutmix or mix.patch_mixup:
            mix = replace(mix, mixup=0.0, cutmix=0.0, patch_mixup=0.0)
            notes.append(
                f"Mixup and CutMix are off: task {self.kind!r} cannot mix its targets (augment.mosaic and "
                "augment.copy_paste join images)"
            )
        return schema, augment, mix, notes
