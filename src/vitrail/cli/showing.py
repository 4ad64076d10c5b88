"""The verbs that look at models and weights: models, info, verify, convert."""

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vitrail.cli.options import busy, read_changes, show_report
from vitrail.errors import ConfigError
from vitrail.strict_json import to_json

if TYPE_CHECKING:
    from vitrail.models.backbone import Backbone


def models(options: argparse.Namespace) -> None:
    """Lists the models that match a pattern."""
    from rich.table import Table  # noqa: PLC0415

    from vitrail.console import Console  # noqa: PLC0415
    from vitrail.models.registry import list_models, presets  # noqa: PLC0415
    from vitrail.profiling.listed import listed_cost  # noqa: PLC0415

    if options.page is not None:
        from vitrail.profiling.atlas import write  # noqa: PLC0415

        print(write(options.page))  # noqa: T201
        return
    names = list_models(options.pattern)
    if not names:
        raise ConfigError(f"no model matches {options.pattern!r}; `vitrail models` lists all")
    known = presets()
    rows: list[dict[str, Any]] = []
    for name in names:
        config, weights = known[name]
        parameters, macs = listed_cost(name)
        size = list(config.image_size)
        rows.append({"name": name, "parameters": parameters, "macs": macs, "image_size": size, "weights": weights})
    if options.json:
        print(to_json(rows, indent=2))  # noqa: T201
        return
    table = Table("model", "image", "parameters", "GMACs", "weights that fit", box=None, pad_edge=False)
    table.columns[2].justify = table.columns[3].justify = "right"
    table.columns[0].no_wrap, table.columns[4].overflow = True, "fold"
    table.columns[0].min_width = max(len(row["name"]) for row in rows)
    for row in rows:
        height, width = row["image_size"]
        cells = (row["name"], f"{height}x{width}", f"{row['parameters'] / 1e6:.2f} M", f"{row['macs'] / 1e9:.2f}")
        table.add_row(*cells, row["weights"])
    terminal = Console()
    (terminal if terminal.is_terminal else Console(width=200)).print(table)


def info(options: argparse.Namespace) -> None:
    """Describes a model or a checkpoint layer by layer."""
    from vitrail.models.registry import is_known  # noqa: PLC0415
    from vitrail.profiling import describe  # noqa: PLC0415

    model = _model(options)
    report = describe(model, batch=options.batch)
    if not is_known(options.model):
        report = replace(report, title=f"{report.title}, from {options.model}")
    show_report(report, options)


def profile(options: argparse.Namespace) -> None:
    """Says where the time and memory of a training step go."""
    from vitrail.profiling.step_profile import ProfileConfig, profile_step  # noqa: PLC0415

    config = ProfileConfig(
        batch=options.batch, image_size=options.image_size, precision=options.precision, rounds=options.rounds
    )
    with busy(f"profiling {options.model}"):
        found = profile_step(options.model, config, device=options.device)
    show_report(found, options)


def _model(options: argparse.Namespace) -> "Backbone":
    """The model that `info` was asked about: by name without weights, or from a checkpoint."""
    from vitrail.models.checkpoint import load  # noqa: PLC0415
    from vitrail.models.registry import is_known  # noqa: PLC0415
    from vitrail.profiling import sketch  # noqa: PLC0415
    from vitrail.runs.paths import checkpoint_path  # noqa: PLC0415

    if is_known(options.model):
        sizes = {"image_size": options.image_size, "num_classes": options.num_classes}
        changes = {key: value for key, value in sizes.items() if value is not None}
        return sketch(options.model, **(read_changes(options.changes) | changes))
    if options.changes:
        raise ConfigError("--set changes a named model; a checkpoint's config is fixed")
    with busy(f"reading {options.model}"):
        return load(checkpoint_path(options.model), image_size=options.image_size, num_classes=options.num_classes)


def verify(options: argparse.Namespace) -> None:
    """Says what a path is; exit status 1 where it is not whole."""
    from vitrail.api import verify as look  # noqa: PLC0415

    found = look(options.path, accept=options.accept)
    if options.json:
        print(found.to_json())  # noqa: T201
    else:
        found.report().print()
    if not found.ok:
        raise SystemExit(1)


def convert(options: argparse.Namespace) -> None:
    """Rewrites a checkpoint and says what it was and what it became."""
    from vitrail.models.checkpoint import convert as rewrite  # noqa: PLC0415
    from vitrail.runs.paths import checkpoint_path  # noqa: PLC0415

    with busy(f"converting {options.source}"):
        file = rewrite(
            checkpoint_path(options.source),
            options.out,
            to=options.to,
            model=options.model,
            image_size=options.image_size,
            num_classes=options.num_classes,
        )
    print(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB) for {options.to}; read back and equal")  # noqa: T201
