"""The weights inside what training scripts save: under keys beside counters, behind prefixes of names."""

import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vitrail.errors import ChosenNotice

# The keys of the weights in a saved dictionary; the first that is there is taken. Averaged weights come first, and the
# teacher before the student, since they are what is meant to be used.
KEYS = (
    "model_ema",
    "state_dict_ema",
    "ema_state_dict",
    "ema",
    "teacher",
    "target_encoder",
    "model",
    "state_dict",
    "model_state_dict",
    "module",
    "network",
    "net",
    "student",
    "encoder",
    "backbone",
)
PREFIXES = (
    "module.",
    "model_ema.",
    "ema.",
    "teacher.",
    "momentum_encoder.",
    "target_encoder.",
    "model.",
    "network.",
    "net.",
    "student.",
    "base_encoder.",
    "image_encoder.",
    "encoder.",
    "backbone.",
    "vit.",
)
_COMPILED = re.compile(r"(^|(?<=\.))(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_DEEPEST = 3  # prefixes, such as module.teacher.backbone.

Tensors = dict[str, Tensor]


def take_out(content: Any) -> Tensors:
    """The tensors of what `torch.load` returned, by name; empty where there are none. Says what was chosen."""
    if not isinstance(content, Mapping):
        return {}
    there = [key for key in KEYS if isinstance(content.get(key), Mapping)]
    if len(there) > 1:
        message = f"the file holds {', '.join(there)}; {there[0]} was taken"
        warnings.warn(message, ChosenNotice, stacklevel=2)
    if there:
        return take_out(content[there[0]])
    return {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}


def without_wrappers(tensors: Mapping[str, Tensor]) -> Tensors:
    """The same without what torch.compile, FSDP, DataParallel and activation checkpointing add to names."""
    plain = {_COMPILED.sub("", name): tensor for name, tensor in tensors.items()}
    if not plain or not all(name.startswith("module.") for name in plain):
        return plain
    say_prefix(plain, "module.")
    return strip(plain, "module.")


def candidates(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensors]]:
    """The tensors as they are, then behind each prefix that they have, the shortest first: prefix, tensors."""
    prefixes = [""]
    for _ in range(_DEEPEST + 1):
        yield from ((prefix, strip(tensors, prefix)) for prefix in prefixes)
        longer = (first + second for first in prefixes for second in PREFIXES)
        prefixes = [prefix for prefix in longer if any(name.startswith(prefix) for name in tensors)]


def strip(tensors: Mapping[str, Tensor], prefix: str) -> Tensors:
    """The tensors behind a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def say_prefix(tensors: Mapping[str, Tensor], prefix: str) -> None:
    """A notice that a prefix was removed, and what was left out with it."""
    left = [name for name in tensors if not name.startswith(prefix)]
    parts = ", ".join(sorted({name.split(".")[0] for name in left})[:6])
    out = f"; left out: {len(left)} other tensor{'s' * (len(left) != 1)} ({parts})" if left else ""
    warnings.warn(f"using the weights with the prefix {prefix!r}{out}", ChosenNotice, stacklevel=4)
