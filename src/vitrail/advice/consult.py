"""From data, a device and limits to advice: looks at the data, measures the device, and judges what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from vitrail.advice.advise import Advice, advice
from vitrail.advice.choose import Candidate, Evidence, First, Limits, Setting, candidates, judge, ranked, size_of
from vitrail.advice.facts import DataFacts, facts_of, known_task, look
from vitrail.advice.networks import measure, memory
from vitrail.advice.rows import Cell, Row, machines, packaged_rows, rows_of_cells
from vitrail.config import split_names
from vitrail.data.audit.doctor import examine
from vitrail.data.sources.opening import open_data
from vitrail.data.sources.table import Wanted
from vitrail.errors import ConfigError, nearest
from vitrail.hardware import device as choose_device
from vitrail.recipes import list_recipes, read_recipe

_AUDITED = 2000  # images of each split that the doctor looks at
_KINDS = ("cpu", "cuda", "mps")


class Default(Protocol):
    """What a run does where nothing is named."""

    @property
    def about(self) -> str:
        """In words."""

    @property
    def network(self) -> str:
        """What answers."""

    @property
    def recipe(self) -> Mapping[str, Any] | None:
        """How that network is built and trained: `start`, `image_size`, `epochs` and `task`; None for named ones."""


@dataclass(frozen=True)
class Table:
    """What training knows: the sets and settings of the first try, and what a run does by default on which network.

    `default` and `first`, the first try (None where it has none), go by the training images and `device`. `findings`
    gives the rows of claims that were tested.
    """

    cells: Sequence[Cell]
    settings: Mapping[str, Setting]
    default: Callable[..., Default]
    first: Callable[..., First | None]
    findings: Callable[[], Sequence[Row]] = tuple


def consult(
    data: str | Path, limits: Limits, table: Table, *, device: str | None = None, task: str | None = None,
    label: str | Sequence[str] | None = None,
) -> Advice:  # fmt: skip
    """Advice for data."""
    named = device in machines()
    if device is not None and not named and device.partition(":")[0] not in _KINDS:
        raise ConfigError(f"unknown device {device!r}; {nearest(device, [*_KINDS, *machines()])}")
    if named and limits.memory is not None:
        raise ConfigError(f"--memory is measured on this machine; leave it out with --device {device}")
    columns = split_names(label)
    kinds = () if task is None else known_task(task).target_kinds
    splits = open_data(data, wanted=Wanted(columns, kinds, several=not columns))
    seen = look(splits.train)
    audit = examine(splits, limit=_AUDITED, image_size=(seen[0], seen[0]))
    facts = facts_of(str(data), splits, audit, seen, task=task)
    rows = [*rows_of_cells(table.cells), *packaged_rows(), *table.findings()]
    recipes = {name: read_recipe(name) for name in list_recipes()}
    kind = machines()[str(device)] if named else choose_device(device).type
    first = table.first(splits.train, device=torch.device(kind)) if facts.task == "classify" else None
    found = candidates(facts, rows, table.settings, recipes, first)
    known: dict[str, Mapping[str, Any]] = {}
    if facts.task != "classify":
        default = table.default(splits.train, device=torch.device(kind))
        own = default.recipe is not None and default.recipe["task"]["kind"] == facts.task
        known = {default.network: default.recipe} if own and default.recipe is not None else {}
        found += [default_candidate(default, facts, rows)] if own or not found else []
    networks = list(dict.fromkeys(one.network for one in found))
    if named:
        where = str(device)
        speeds = {row.of: row for row in rows if row.kind == "speed" and row.values["machine"] == device}
    else:
        chosen = choose_device(device)
        where = str(chosen)
        speeds = measure(networks, device=chosen, schema=dict(splits.train.schema), recipes=known)
    memories = (
        {} if limits.memory is None else {name: memory(name, splits.train.schema, known.get(name)) for name in networks}
    )
    evidence = Evidence(rows, speeds, memories, kind)
    judged = ranked([judge(one, facts, limits, evidence) for one in found])
    return advice(facts, judged, evidence, limits=limits, device=where, label=columns)


def default_candidate(default: Default, facts: DataFacts, rows: Sequence[Row]) -> Candidate:
    """What training does by default, with what was measured of it."""
    recipe = default.recipe or {}
    own = [
        row for row in rows if row.kind == "result" and (row.of, row.values["task"]) == (default.network, facts.task)
    ]
    return Candidate(
        default.network if own else "default", f"{default.about}, which is what training does by default",
        default.network, (f"vitrail train {{data}} --task {facts.task} --out {{out}}",),
        tuple(sorted(own, key=lambda row: facts.distance(row.values))), recipe.get("epochs"),
        image_size=recipe.get("image_size", size_of(default.network)),
    )  # fmt: skip
