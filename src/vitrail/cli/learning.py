"""The verbs of the main job: train, eval, predict, doctor, demo."""

import argparse
import json
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli import shipping
from vitrail.cli.options import busy, read_changes, show_report
from vitrail.errors import ConfigError, DataError, Notice, nearest
from vitrail.nearby import hint_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from vitrail.tasks.predict import Answer
    from vitrail.training.run import Run

DEMO = Path("runs/demo")


def train(options: argparse.Namespace) -> None:
    """Trains on a source of data, or goes on with a run, and writes its report."""
    from vitrail.training.run import train as start  # noqa: PLC0415

    if options.resume is not None:
        others = {"data": options.data, "--recipe": options.recipe, "--from": options.start, "--out": options.folder}
        others |= {"--teacher": options.teacher, "--val": options.val, "--verify-resume": options.verify_resume}
        if given := [name for name, value in others.items() if value is not None]:
            raise ConfigError(f"--resume goes on with a run as it was begun: leave out {', '.join(given)}")
        if not options.resume.exists():
            hint = hint_at(options.resume, fits=lambda place: (place / "run.json").is_file())
            raise ConfigError(
                f"there is no {options.resume} to go on with; {hint or '--resume names the folder of a run'}"
            )
        where = {"device": options.device, "shard": options.shard}
        _report(start(folder=options.resume, resume=True, sinks=options.log, **where, **_recipe_changes(options)))
        return
    if options.data is None:
        raise ConfigError("train needs data: a folder of images, a table, arrays, or a name such as cifar10")
    what = {"recipe": options.recipe, "start": options.start, "teacher": options.teacher}
    what |= {"val": options.val, "device": options.device}
    if options.verify_resume is not None:
        from vitrail.training.verify import verify_resume  # noqa: PLC0415

        with busy(f"training {options.verify_resume} steps, twice"):
            proof = verify_resume(options.data, steps=options.verify_resume, **what, **_recipe_changes(options))
        proof.print()
        return
    run = start(
        options.data, folder=options.folder, shard=options.shard, sinks=options.log, **what, **_recipe_changes(options)
    )
    _report(run)


def _report(run: "Run") -> None:
    """Writes a run's report, unless it ended with one before, and says where; the first of many processes does it."""
    from vitrail.training.distributed import is_first  # noqa: PLC0415

    if is_first():
        file = run.folder / "report.html"
        if not (run.ended_before and file.is_file()):
            with busy("writing the report"):
                file = run.report()
        print(f"report: {file}")  # noqa: T201


def _recipe_changes(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line changes in a recipe; `--set` reaches every key."""
    plain = {
        "model": options.model,
        "epochs": options.epochs,
        "batch_size": options.batch_size,
        "image_size": options.image_size,
        "seed": options.seed,
        "precision": options.precision,
        "freeze_until": options.freeze_until,
        "lora": options.lora,
        "compile": options.compile or None,
    }
    optimiser = {"lr": options.lr, "layer_decay": options.layer_decay}
    changes = _keys_set(options)
    changes |= {name: value for name, value in plain.items() if value is not None}
    if asked := {name: value for name, value in optimiser.items() if value is not None}:
        changes["optimiser"] = changes.get("optimiser", {}) | asked
    return changes


def _keys_set(options: argparse.Namespace) -> dict[str, Any]:
    """What `--set` changes in a recipe; what is no key of one, such as the folder, has an option of its own."""
    from vitrail.training.config import TrainConfig, usual_name  # noqa: PLC0415

    changes, known = read_changes(options.changes), [field.name for field in fields(TrainConfig)]
    if wrong := [name for name in changes if name not in known]:
        usual = usual_name(wrong[0])
        hint = nearest(wrong[0], known) if usual is None else f"here that is {usual}"
        raise ConfigError(f"--set {wrong[0]}: a recipe has no such key; {hint}")
    return changes


def evaluate(options: argparse.Namespace) -> None:
    """Judges a run or a checkpoint on data."""
    from vitrail.data.batches import Batches  # noqa: PLC0415
    from vitrail.data.cache import pack  # noqa: PLC0415
    from vitrail.data.dataset import Subset  # noqa: PLC0415
    from vitrail.data.source import open_whole  # noqa: PLC0415
    from vitrail.data.stored import stored_size  # noqa: PLC0415
    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.report import Text  # noqa: PLC0415
    from vitrail.training.evaluate import evaluate as judge  # noqa: PLC0415
    from vitrail.training.seen import met_before  # noqa: PLC0415
    from vitrail.training.trained import open_trained  # noqa: PLC0415

    trained = open_trained(options.run)
    task = trained.task.to(device(options.device))
    config = task.backbone.config
    with busy(f"reading {options.data}"):
        images = open_whole(options.data, classes=task.classes, multi_label=trained.multi_label)
        size = stored_size(images, config.image_size, cropped=False)  # as in training, for the same score
        packed = pack(images, size=size, channels=config.channels)
    where = next(task.parameters()).device
    batches = Batches(packed, batch_size=options.batch_size, seed=0, shuffle=False, device=where)
    with busy(f"judging {len(packed):,} images"):
        report = judge(task, batches, prepare=trained.prepare)
    if (told := met_before(options.run, options.data, Subset(images, packed.ids.tolist()))) is not None:
        warnings.warn(told, Notice, stacklevel=1)
        report = replace(report, sections=(Text("Not new to the model", told), *report.sections))
    show_report(report, options)


def predict(options: argparse.Namespace) -> None:
    """Says what is in pictures, by a run, a checkpoint or an exported model."""
    from vitrail.deploy.engine import TorchEngine, is_artefact, open_engine  # noqa: PLC0415
    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.packaged import NAME as PACKAGED  # noqa: PLC0415
    from vitrail.training.trained import names_model, open_trained  # noqa: PLC0415

    _check_asked(options)
    named = is_artefact(options.paths[0]) or names_model(options.paths[0])
    source, paths = (options.paths[0], options.paths[1:]) if named else (PACKAGED, options.paths)
    if is_artefact(source):
        engine = open_engine(source)
    else:
        engine = TorchEngine(source, open_trained(source), device=device(options.device))
    if not paths:
        raise ConfigError(f"{source} is a model; name pictures too: vitrail predict {source} picture.jpg")
    if source == PACKAGED:
        warnings.warn(f"the model is {engine.about}", Notice, stacklevel=1)
    if options.table is not None:
        shipping.into_table(engine, options, paths)
        return
    results = []
    for result in shipping.answers(engine, paths, top=options.top):
        results.append(result)
        whole = json.dumps(result.to_dict(), ensure_ascii=False)
        said = _said(result.answers, several=engine.card.multi_label)
        line = whole if options.json else result.error or f"{result.path}: {said}"
        print(line)  # noqa: T201
    if broken := [result for result in results if result.error is not None]:
        verb = "was" if len(broken) == 1 else "were"
        raise DataError(f"{len(broken)} of {len(results)} pictures {verb} not read, such as {broken[0].path}")


def _check_asked(options: argparse.Namespace) -> None:
    """Refuses what predictions cannot be made for, before a model is opened for it."""
    from vitrail.deploy.bulk import check_table  # noqa: PLC0415

    if options.top < 1:
        raise ConfigError(f"--top is {options.top}; it must be 1 or more")
    if options.table is None:
        if options.ray is not None:
            raise ConfigError("--ray shares the writing of a table; name one: --out predictions.parquet")
        return
    if options.json:
        raise ConfigError(
            "--json prints what --out writes to a table: leave one out, or name a table that is JSON, "
            "as in --out predictions.jsonl"
        )
    check_table(options.table)


def _said(answers: "Sequence[Answer]", *, several: bool) -> str:
    """Classes and how likely they are; of several labels an image first those that are the answer, then the others."""

    def listed(some: "Iterable[Answer]") -> str:
        return ", ".join(f"{answer.label} {100 * answer.probability:.1f} %" for answer in some)

    if not several:
        return listed(answers)
    chosen = listed(answer for answer in answers if answer.chosen)
    others = listed(answer for answer in answers if not answer.chosen)
    return (chosen or "no label") + (f"; not {others}" if others else "")


def doctor(options: argparse.Namespace) -> None:
    """Audits data before training."""
    from vitrail.data.doctor import examine  # noqa: PLC0415
    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.training.trained import training_cost, training_pace  # noqa: PLC0415

    name, size = options.model, options.image_size
    if name is None:
        name, size = _would_take(options)
    cost = training_cost(name, size)
    with busy(f"timing {name}"):
        pace = training_pace(name, size, device=device())
    numbers = replace(cost.numbers, images_per_second=pace)
    with busy(f"examining {options.data}"):
        chosen = {"val": options.val, "seed": options.seed}
        report = examine(options.data, **chosen, image_size=cost.image_size, cost=numbers)
    show_report(report, options)


def _would_take(options: argparse.Namespace) -> tuple[str, tuple[int, int]]:
    """The model that `train` would take for some data, and its image size."""
    from vitrail.data.source import survey  # noqa: PLC0415
    from vitrail.training.plan import make_plan  # noqa: PLC0415

    with busy(f"looking at {options.data}"):
        changes = {} if options.image_size is None else {"image_size": options.image_size}
        plan = make_plan(survey(options.data, val=options.val, seed=options.seed), changes=changes)
    return plan.config.model, plan.backbone_config.image_size


def demo(options: argparse.Namespace) -> None:
    """Trains a small ViT on the embedded images and writes a report."""
    import shutil  # noqa: PLC0415

    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.training.plan import make_plan  # noqa: PLC0415
    from vitrail.training.run import train as start  # noqa: PLC0415

    changes = _keys_set(options)
    if options.folder is None and (DEMO / "run.json").is_file():
        device(options.device)
        make_plan("demo", recipe="demo", changes=changes)  # a mistake is told before anything is lost
        shutil.rmtree(DEMO)  # an earlier demo, and nothing else: run.json says so
    run = start("demo", recipe="demo", folder=options.folder or DEMO, device=options.device, **changes)
    print(f"test accuracy {100 * run.metrics['test_accuracy']:.1f} %; report: {run.report()}")  # noqa: T201
