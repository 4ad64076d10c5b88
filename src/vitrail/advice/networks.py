"""The networks that are advised: built to be measured on this machine, for the time and memory of an answer."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.advice.rows import Row
from vitrail.config import from_dict
from vitrail.data.targets import Schema
from vitrail.data.targets.target import schema_to_dict
from vitrail.errors import ConfigError
from vitrail.hardware import autocast, precision
from vitrail.models.backbone import Backbone
from vitrail.models.checkpoint import load
from vitrail.models.registry import create
from vitrail.packaged import NAMES, find_packaged
from vitrail.recipes import read_recipe
from vitrail.runs.trained import open_model
from vitrail.strict_json import to_json
from vitrail.tasks import TaskConfig
from vitrail.timing import Spread, interleaved, machine, synchronised

_ROUNDS, _WARM = 15, 2
_SECONDS = 60.0  # that all measurements may take
BUSY = 0.5  # other processes for each core from which on the fastest pass is taken, not the median
_LONGEST = 120  # seconds that a process may take to measure its memory
_CHILD = (
    "import json, sys\n"
    "from vitrail.advice.networks import network, peak\n"
    "from vitrail.data.targets.target import schema_from_dict\n"
    "found = schema_from_dict(json.loads(sys.argv[2]))\n"
    "network(sys.argv[1], schema=found, recipe=json.loads(sys.argv[3]))()\n"
    "print(peak())\n"
)


def network(
    name: str, *, schema: Schema | None = None, device: torch.device | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Callable[[], object]:  # fmt: skip
    """A forward pass of one image through a network: packaged weights, the model of a recipe, or a named model.

    `NAME@SIZE` is a network for images of another size. A `recipe` says what a name stands for: a task around packaged
    weights (`start`) at an `image_size`.
    """
    where = device or torch.device("cpu")
    if recipe is not None:
        backbone = load(find_packaged(recipe["start"]), image_size=tuple(recipe["image_size"]), num_classes=0)
        return _around(backbone, dict(recipe["task"]), schema or {}, where)
    if name in NAMES:
        model: Any = open_model(name).backbone.to(where)
        return _pass(model, model.config, where)
    name, _, size = name.partition("@")
    if name in NAMES:
        resized = load(find_packaged(name), image_size=int(size)).to(where)
        return _pass(resized, resized.config, where)
    found: Mapping[str, Any] = {"model": name} if name.startswith(("vit", "effi")) else read_recipe(name)
    options = dict(found.get("options", {}))
    if size or found.get("image_size"):
        options["image_size"] = int(size) if size else found["image_size"]
    task = dict(found.get("task", {}))
    if not schema or task.get("kind", "classify") == "classify":
        model = create(str(found["model"]), **options).to(where)
        return _pass(model, model.config, where)
    return _around(create(str(found["model"]), **{"num_classes": 0, **options}), task, schema, where)


def _around(backbone: Backbone, task: dict[str, Any], schema: Schema, device: torch.device) -> Callable[[], object]:
    """The outputs of a task around a backbone, for one image."""
    config = from_dict(TaskConfig.kinds[str(task.pop("kind"))], task)
    assert isinstance(config, TaskConfig)  # noqa: S101  (registered as such)
    if outputs := config.num_outputs(schema):
        backbone.reset_head(outputs)
    built = config.build(backbone, config.learns(schema)).to(device).eval()
    return _pass(built.outputs, backbone.config, device)


def _pass(run: Any, config: Any, device: torch.device) -> Callable[[], object]:
    """One image through a model, without gradients, in the precision that is usual on the device."""
    image = torch.zeros(1, config.channels, *config.image_size, device=device)
    if isinstance(run, torch.nn.Module):
        run.eval()
    return synchronised(partial(_answered, run, image, device), device)


def _answered(run: Callable[[Tensor], object], image: Tensor, device: torch.device) -> object:
    with torch.inference_mode(), autocast(device, precision("auto", device)[0]):
        return run(image)


def measure(
    names: Sequence[str], *, device: torch.device, schema: Schema | None = None,
    recipes: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Row]:  # fmt: skip
    """The time of an answer of each network, measured in turns here and now, for up to a minute.

    It is the median of the passes, and the fastest where other processes keep the machine busy: they can make the
    median ten times as long, and not the same for all networks.
    """
    known = recipes or {}
    passes = {
        name: network(name, schema=schema, device=device, recipe=known.get(name)) for name in dict.fromkeys(names)
    }
    began = time.perf_counter()
    for run in passes.values():
        run()
    once = max(time.perf_counter() - began, 1e-6)
    rounds = max(3, min(_ROUNDS, int(_SECONDS / once) - _WARM))
    taken = interleaved(passes, rounds=rounds, warm=_WARM)
    rows, load = {}, other_load()
    for name, seconds in taken.items():
        spread = Spread.of([1000 * one for one in seconds])
        fastest = 1000 * min(seconds)
        middle, low = (spread.median, spread.low) if load <= BUSY else (fastest, fastest)
        values = {"ms": middle, "low": low, "high": spread.high, "device": device.type, "load": load}
        rows[name] = Row(
            kind="here", of=name, values=values, hardware=machine(), versions=f"torch {torch.__version__}",
            command="vitrail advise",
        )  # fmt: skip
    return rows


def other_load() -> float:
    """How many processes for each core waited in the last minute, this one left out; 0 where it is not known."""
    try:
        return max(os.getloadavg()[0] - 1, 0.0) / (os.cpu_count() or 1)
    except (AttributeError, OSError):  # Windows has none
        return 0.0


def peak() -> int:
    """The most memory that this process has held, in bytes.

    On Linux it is not that of getrusage, which counts the process that started this one, too.
    """
    status = Path("/proc/self/status")
    if status.is_file() and (found := re.search(r"VmHWM:\s*(\d+) kB", status.read_text())) is not None:
        return 1024 * int(found[1])
    import resource  # noqa: PLC0415  (Windows has none)

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory(name: str, schema: Schema, recipe: Mapping[str, Any] | None = None) -> Row:
    """The largest memory of a process of its own that opens a network and answers one image on the CPU."""
    try:
        found = subprocess.run(  # noqa: S603  (our own text)
            [sys.executable, "-c", _CHILD, name, to_json(schema_to_dict(schema)), to_json(recipe)],
            capture_output=True,
            text=True,
            check=True,
            timeout=_LONGEST,
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"the memory of {name} could not be measured ({error})") from error
    mib = round(int(found.stdout.split()[-1]) / 2**20)
    return Row(
        kind="memory", of=name, values={"mib": mib}, hardware=machine(),
        versions=f"torch {torch.__version__}", command="vitrail advise --memory",
    )  # fmt: skip
