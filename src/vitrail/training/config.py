"""All options of a training run: the fields of a recipe."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from vitrail.config import Alias, Choice, Config, Count, NotNegative, Positive, Range, Rate, apply
from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.errors import ConfigError
from vitrail.tasks import TaskConfig

C = TypeVar("C", bound=Config)


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig(Config):
    """AdamW (arXiv:1711.05101); no decay on norms, biases, positions and tokens.

    "muon" takes orthogonal steps for the matrices of blocks and for convolutions, and AdamW's for the rest.
    `layer_decay` multiplies the rate once more for each block further from the head (arXiv:2106.08254).
    """

    kind: Literal["adamw", "muon"] = "adamw"
    lr: Positive = 1e-3
    weight_decay: NotNegative = 0.05
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    eps: Positive = 1e-8
    layer_decay: Rate | None = None
    clip: Positive | None = 1.0


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Config):
    """Linear warm-up, then down to `final` of the rate: half a cosine, or "poly", (1 - progress)^`power`."""

    warmup_epochs: NotNegative = 5.0
    final: Rate = 0.01
    shape: Literal["cosine", "poly"] = "cosine"
    power: Positive = 0.9  # of "poly"


Compile = bool | Literal["auto", "blocks", "cudagraphs"]


def compiles(wanted: Compile) -> bool:
    """Whether a setting of `compile` runs the compiler; "auto" is decided before."""
    return wanted in (True, "blocks")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Config):
    """A recipe: model, data treatment, optimisation.

    `batch_size` counts images per optimiser step over all processes and all `accumulate` parts. `options` are changes
    to the model's config, as keywords of `vitrail.create`. `preprocess` are changes to the preprocessing: mean, std,
    crop, interpolation, resize. `task` is inferred from the data where it is left out; "mae" learns from the images
    alone and leaves a model without a head, to be fine-tuned. `precision` "auto" is bf16 on a GPU, float32 elsewhere;
    "fp8" is bf16 with linear maps of blocks in 8 bits.
    `compile` "blocks" compiles each distinct block once, which starts sooner; "cudagraphs" compiles nothing, and
    records a step on a GPU once to replay it; "auto" compiles on a GPU where the forecast of the run says that it pays.
    `feed` "packed" decodes all images once into a file, "streamed" decodes them in each epoch; "auto" chooses by size.
    `sampling` "balanced" lets rare classes come more often: a class of n images has a share of an epoch proportional to
    n^(1 - `sampling_power`); 1 is equal shares, 0.5 halfway (by the square root).
    """

    model: str = "vit_tiny_patch16"
    options: dict[str, Any] = field(default_factory=dict)
    task: TaskConfig | None = None  # None: inferred from the data
    preprocess: dict[str, Any] = field(default_factory=dict)
    image_size: tuple[Count, Count] | None = None
    epochs: Count = 30
    batch_size: Count = 256
    accumulate: Count = 1
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    augment: AugmentConfig = AugmentConfig()
    mix: MixConfig = MixConfig()
    ema: Rate | None = None
    precision: Annotated[Literal["auto", "float32", "bf16", "fp16", "fp8"], Alias("fp32", "float32")] = "auto"
    compile: Compile = False
    deterministic: bool = False  # only kernels that give the same bits each time; a resumed GPU run is then exact
    threads: Count | None = None  # of the CPU; None: as torch chooses, and for a resumed run as it began
    feed: Literal["auto", "packed", "streamed"] = "auto"
    sampling: Literal["shuffled", "balanced"] = "shuffled"
    sampling_power: Rate = 1.0
    seed: Annotated[int, Range(0, 2**63 - 1)] = 0
    early_stop: Count | None = None  # epochs without a better validation metric
    eval_every: Count = 1  # epochs
    save_every: Count | None = None  # epochs; None: the first, and each that ends ten seconds or more after a save
    save_steps: Count | None = None  # also save within an epoch, after so many steps
    keep: Count = 3  # checkpoints, beside the best
    freeze_until: str | None = None  # a module's name, e.g. "blocks.8": everything before it stays as it is
    lora: Count | None = None  # rank of low-rank updates; all else but the head stays as it is
    fit_head: bool = False  # the head starts as a linear probe (arXiv:2202.10054) instead of at random
    probe: Literal["linear"] | None = None  # fits the head to frozen features at once, instead of training for epochs

    @property
    def balance(self) -> float | None:
        """The power of balanced sampling; None for each image once."""
        return self.sampling_power if self.sampling == "balanced" else None


# Names that other tools use for a key of a recipe, or for a part of it.
_ELSEWHERE = {
    "accum_iter": "accumulate",
    "arch": "model",
    "auto_augment": "augment.randaugment",
    "bs": "batch_size",
    "class_weight": "task.class_weights",
    "class_weights": "task.class_weights",
    "clip_grad": "optimiser.clip",
    "color_jitter": "augment.colour",
    "drop": "options.dropout",
    "drop_path": "options.drop_path",
    "dropout": "options.dropout",
    "grad_clip": "optimiser.clip",
    "gradient_accumulation_steps": "accumulate",
    "hflip": "augment.flip",
    "img_size": "image_size",
    "input_size": "image_size",
    "learning_rate": "optimiser.lr",
    "max_epochs": "epochs",
    "max_grad_norm": "optimiser.clip",
    "model_ema_decay": "ema",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
    "opt": "optimiser.kind",
    "patience": "early_stop",
    "per_device_train_batch_size": "batch_size",
    "reprob": "augment.erase",
    "resolution": "image_size",
    "scheduler": "schedule",
    "label_smoothing": "task.label_smoothing",
    "mean": "preprocess.mean",
    "smoothing": "task.label_smoothing",
    "std": "preprocess.std",
    "vflip": "augment.flip_vertical",
    "warmup": "schedule.warmup_epochs",
    "wd": "optimiser.weight_decay",
}
# A resumed run may change these: what is kept on disk, and threads, with a note that bits differ.
FREE = ("keep", "save_every", "save_steps", "threads")


def usual_name(name: str) -> str | None:
    """The key of a recipe, such as "optimiser.lr", that other tools call so, or that is called so within its part."""
    inside = [
        f"{part.name}.{field.name}"
        for part in dataclasses.fields(TrainConfig)
        if isinstance(part.default, Config)
        for field in dataclasses.fields(type(part.default))  # type: ignore[arg-type]
        if field.name == name
    ]
    return _ELSEWHERE.get(name) or (inside[0] if len(inside) == 1 else None)


def change(config: C, changes: Mapping[str, Any], where: str = "") -> C:
    """A copy of the config with the changes, those of nested configs and of the model's options merged in."""
    plain = dict(changes)
    direct: dict[str, Any] = {}
    for name, value in changes.items():
        now = getattr(config, name, None)
        path = f"{where}.{name}" if where else name
        if not hasattr(config, name) and (usual := usual_name(name)) not in (None, path):
            raise ConfigError(f"{path} is not an option of {type(config).__name__}; here that is {usual}")
        if isinstance(now, Config) and not isinstance(now, Choice) and not isinstance(value, Config):
            plain[name] = change(now, _mapping(value, path, now), path)
        elif isinstance(now, dict):
            direct[name] = now | dict(_mapping(plain.pop(name), path))
    return dataclasses.replace(apply(config, plain, where), **direct)  # type: ignore[type-var]


def _mapping(value: Any, where: str, config: Config | None = None) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        names = [] if config is None else [f"{where}.{field.name}" for field in dataclasses.fields(config)]  # type: ignore[arg-type]
        known = f": {', '.join(names)}" if names else ""
        raise ConfigError(f"{where} is {repr(value)[:200]}; it must be a mapping of options{known}")
    return value
