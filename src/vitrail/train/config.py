"""Everything that a training run can be told: the fields of a recipe."""

from dataclasses import dataclass, field
from typing import Any, Literal

from vitrail.config import Config, Count, CountFromZero, NotNegative, Positive, Rate
from vitrail.data.augment import AugmentConfig, MixConfig


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig(Config):
    """AdamW (arXiv:1711.05101); no decay on norms, biases, positions and tokens.

    `layer_decay` multiplies the rate once more for each block further from the head (arXiv:2106.08254).
    """

    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.05
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    eps: Positive = 1e-8
    layer_decay: Rate | None = None
    clip: Positive | None = 1.0


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """Linear warm-up, then half a cosine down to `final` of the rate."""

    warmup_epochs: NotNegative = 5.0
    final: Rate = 0.01


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """A recipe: model, data treatment, optimisation.

    `batch_size` counts images per optimiser step over all processes and all `accumulate` parts. `options` are changes
    to the model's config, as keywords of `vitrail.create`. `precision` "auto" is bf16 on a GPU, float32 elsewhere.
    """

    model: str = "vit_tiny_patch16"
    options: dict[str, Any] = field(default_factory=dict)
    image_size: tuple[Count, Count] | None = None
    epochs: Count = 30
    batch_size: Count = 256
    accumulate: Count = 1
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    augment: AugmentConfig = AugmentConfig()
    mix: MixConfig = MixConfig()
    label_smoothing: Rate = 0.0
    ema: Rate | None = None
    precision: Literal["auto", "float32", "bf16", "fp16"] = "auto"
    compile: bool = False
    seed: CountFromZero = 0
    early_stop: Count | None = None  # epochs without a better validation metric
    eval_every: Count = 1  # epochs
    save_every: Count = 1  # epochs
    keep: Count = 3  # checkpoints, beside the best
    freeze_until: str | None = None  # a module's name, e.g. "blocks.8": everything before it stays as it is
    lora: Count | None = None  # rank of low-rank updates; all else but the head stays as it is
