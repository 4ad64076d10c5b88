"""The speed of models in training and in use, side by side with timm's, measured in turns on this machine."""

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import nn

from vitrail.config import Alias, Config, Count
from vitrail.hardware import Precision
from vitrail.hardware import device as choose_device
from vitrail.hardware import precision as choose_precision
from vitrail.models.backbone import Backbone
from vitrail.models.registry import create, presets
from vitrail.profiling.training_step import Mode, make_step
from vitrail.report import Report, Table, Text, Value
from vitrail.timing import interleaved, machine, ratios, synchronised

_ABOUT = {
    "train": "A step is a forward pass, a backward pass and AdamW on random images.",
    "infer": "A forward pass without gradients on random images; in bf16, weights are rounded once.",
}


@dataclass(frozen=True, kw_only=True)
class SpeedConfig(Config):
    """What is measured: `peers` adds timm's model of the same architecture where there is one.

    `precision` "fp8" computes the linear maps of blocks in 8 bits, all else in bf16; peers have bf16 then.
    """

    mode: Mode = "infer"
    batch: Count = 16
    image_size: int | tuple[int, int] | None = None
    precision: Annotated[Literal["auto", "float32", "bf16", "fp16", "fp8"], Alias("fp32", "float32")] = "auto"
    compile: bool = False
    rounds: Count = 9
    peers: bool = False


def measure_speed(names: Sequence[str], config: SpeedConfig, *, device: str | torch.device | None = None) -> Report:
    """Images per second of named models, and how many times as fast as the first one each is."""
    where = choose_device(device)
    precision, note = choose_precision(config.precision, where)
    notes = [_ABOUT[config.mode], *([f"{note}."] if note else [])]
    runs: dict[str, Callable[[], object]] = {}
    for name in names:
        own = create(name, **({} if config.image_size is None else {"image_size": config.image_size}))
        images = torch.rand(config.batch, own.config.channels, *own.config.image_size, device=where)
        twins: dict[str, nn.Module] = {name: own}
        if config.peers:
            peer, said = timm_twin(name, own)
            twins |= {} if peer is None else {f"timm: {said}": peer}
            notes += [said] if peer is None else []
        for label, model in twins.items():
            model.to(where)
            if config.compile:
                model.compile()
            own_way: Precision | Literal["fp8"] = "fp8" if config.precision == "fp8" and model is own else precision
            runs[label] = synchronised(make_step(model, images, mode=config.mode, precision=own_way), where)
    taken = interleaved(runs, rounds=config.rounds)
    shown = "fp8 (peers: bf16)" if config.precision == "fp8" else precision
    return _report(taken, config, shown, notes, where, base=next(iter(runs)))


def timm_twin(name: str, own: Backbone) -> tuple[nn.Module | None, str]:
    """The model of timm with the same parameters and image size, and its name; or None, and why there is none."""
    try:
        import timm  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:  # the latter where torchvision does not fit torch
        return None, f"timm cannot be imported: {error}."
    parameters = sum(value.numel() for value in own.parameters())
    for candidate in _candidates(presets()[name][1], timm.list_models()):
        try:
            with torch.device("meta"):
                peer = timm.create_model(candidate, num_classes=own.config.num_classes)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        about: Any = peer.default_cfg
        same_size = tuple(about["input_size"][1:]) == tuple(own.config.image_size)
        if same_size and sum(value.numel() for value in peer.parameters()) == parameters:
            return timm.create_model(candidate, num_classes=own.config.num_classes), candidate
    return None, f"timm has no model with the parameters and image size of {name}."


def _candidates(weights: str, known: Sequence[str]) -> Iterator[str]:
    """The names of timm that fit a pattern such as "timm vit_base_patch16_*; hf ..."."""
    for pattern in re.findall(r"timm (\S+?)(?:;|$)", weights):
        yield from fnmatch.filter(known, pattern.removesuffix(".*"))


def _report(
    taken: dict[str, list[float]], config: SpeedConfig, precision: str, notes: Sequence[str], where: torch.device, *,
    base: str,
) -> Report:  # fmt: skip
    against = ratios(taken, base)
    rows: list[dict[str, Value]] = []
    for label, times in taken.items():
        middle = sorted(times)[len(times) // 2]
        row: dict[str, Value] = {"model": label, "images/s": round(config.batch / middle, 1)}
        rows.append(row | {"ms": round(1000 * middle, 2), "times as fast as the first": str(against[label])})
    columns: dict[str, Any] = dict.fromkeys(rows[0], "")
    how = f"batch {config.batch}, {precision}{', compiled' if config.compile else ''}, {config.rounds} rounds in turns"
    text = Text(
        "", " ".join([*notes, f"Ratios: the median of all rounds and the middle half. {how}; {machine(where)}."])
    )
    title = "Training steps" if config.mode == "train" else "Forward passes"
    return Report(title, (Table("", columns, rows), text))
