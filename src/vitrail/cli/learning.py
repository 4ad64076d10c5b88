"""The verbs train, eval, predict, doctor and demo."""

import argparse
import sys
import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli import folds_verb, shipping, tuning_verb
from vitrail.cli.collector import importing
from vitrail.cli.options import busy, model_and_pictures, read_changes, show_report
from vitrail.cli.uneven import with_uneven
from vitrail.config import split_names
from vitrail.errors import ConfigError, DataError, Notice, nearest
from vitrail.printable import printable
from vitrail.strict_json import to_json
from vitrail.suggest import suggest_path

if TYPE_CHECKING:
    from vitrail.runs.predictor import Predictor
    from vitrail.training.ledger import Ledger
    from vitrail.training.run import Run

DEMO = Path("runs/demo")


def train(options: argparse.Namespace) -> None:
    """Trains on a source of data, or goes on with a run, and writes its report."""
    with importing():
        from vitrail.training.ledger import Ledger  # noqa: PLC0415
        from vitrail.training.one_run import check_new_run  # noqa: PLC0415
        from vitrail.training.run import train as start  # noqa: PLC0415

    ledger = Ledger.of_process()
    if options.resume is not None:
        from vitrail.runs.record import is_run  # noqa: PLC0415

        others = {"data": options.data, "--recipe": options.recipe, "--from": options.start, "--out": options.folder}
        others |= {"--teacher": options.teacher, "--val": options.val, "--verify-resume": options.verify_resume}
        others |= {"--task": options.task, "--label": options.label, "--group": options.group, "--folds": options.folds}
        others |= {"--minutes": options.minutes}
        if given := [name for name, value in others.items() if value is not None]:
            raise ConfigError(f"--resume continues a run as it was started: leave out {', '.join(given)}")
        if not options.resume.exists():
            hint = suggest_path(options.resume, fits=is_run)
            raise ConfigError(f"{options.resume} does not exist; {hint or '--resume takes the folder of a run'}")
        for held, go_on in ((folds_verb.is_folds, folds_verb.train_folds), (tuning_verb.is_search, tuning_verb.search)):
            if held(options.resume):
                go_on(options, _recipe_changes(options))
                return
        where = {"device": options.device, "shard": options.shard, "ledger": ledger}
        run = start(folder=options.resume, resume=True, sinks=options.log, **where, **_recipe_changes(options))
        report_run(run, ledger)
        return
    if options.data is None:
        raise ConfigError("train needs data: a folder of images, a table, arrays, or a name such as cifar10")
    what = {"recipe": options.recipe, "start": options.start, "teacher": options.teacher, "group": options.group}
    what |= {"val": options.val, "label": options.label}
    if options.minutes is not None or options.folds is not None:
        many = folds_verb.train_folds if options.minutes is None else tuning_verb.search
        many(options, {**what, **_recipe_changes(options)})
        return
    what["device"] = options.device
    if options.verify_resume is not None:
        from vitrail.training.verify import verify_resume  # noqa: PLC0415

        with busy(f"training {options.verify_resume} steps, twice"):
            proof = verify_resume(options.data, steps=options.verify_resume, **what, **_recipe_changes(options))
        proof.print()
        return
    check_new_run(options.folder)
    run = start(
        options.data, folder=options.folder, shard=options.shard, sinks=options.log, ledger=ledger, **what,
        **_recipe_changes(options),
    )  # fmt: skip
    report_run(run, ledger)


def report_run(run: "Run", ledger: "Ledger") -> None:
    """Writes a run's report, unless it ended with one before, and says where; the first of many processes does it."""
    from vitrail.training.distributed import is_first  # noqa: PLC0415

    if is_first():
        file = run.folder / "report.html"
        if not (run.ended_before and file.is_file()):
            with busy("writing the report"), ledger.phase("report"):
                file = run.report()
            print(ledger.sentence(), file=sys.stderr)  # noqa: T201
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
    if getattr(options, "task", None) is not None:
        changes["task"] = {"kind": options.task, **_task_options(changes.get("task"))}
    changes |= {name: value for name, value in plain.items() if value is not None}
    if asked := {name: value for name, value in optimiser.items() if value is not None}:
        changes["optimiser"] = changes.get("optimiser", {}) | asked
    return with_uneven(changes, options)


def _task_options(task: Any) -> dict[str, Any]:
    """What `--set task...` says, beside --task, which names the kind."""
    if task is None or isinstance(task, dict):
        return task or {}
    raise ConfigError(f"--task and --set task={task} both name a task; leave one out")


def _keys_set(options: argparse.Namespace) -> dict[str, Any]:
    """What `--set` changes in a recipe; what is not a key of one, such as the folder, has an option of its own."""
    from vitrail.training.config import TrainConfig, usual_name  # noqa: PLC0415
    from vitrail.training.task_choice import RENAMED, TASKS_KEY  # noqa: PLC0415

    changes, known = read_changes(options.changes), [*(field.name for field in fields(TrainConfig)), RENAMED, TASKS_KEY]
    if wrong := [name for name in changes if name not in known]:
        usual = usual_name(wrong[0])
        hint = nearest(wrong[0], known) if usual is None else f"here that is {usual}"
        raise ConfigError(f"--set {wrong[0]}: unknown key of a recipe; {hint}")
    return changes


def evaluate(options: argparse.Namespace) -> None:
    """Evaluates a run, a checkpoint or an exported model on data."""
    with importing():
        from vitrail.runs.evaluate import evaluate_on  # noqa: PLC0415

    model = _opened(options.run, options.device, options.image_size)
    if options.precision != "float32":
        if not hasattr(model, "in_precision"):
            raise ConfigError(f"{options.run} is an exported model, whose precision is fixed; leave out --precision")
        model = model.in_precision(options.precision)
    on = f" on {options.data}" if options.data else ""
    with busy(f"evaluating {options.run}{on}"):
        found = evaluate_on(model, options.data, label=options.label, batch_size=options.batch_size, tta=options.tta)
    if found.note is not None:
        warnings.warn(found.note, Notice, stacklevel=1)
    show_report(found.report(), options, page=found.report(pictures=True) if options.html else None)


def _opened(source: str, device: str | None, image_size: Any = None) -> "Predictor":
    """A run or checkpoint on its device, or an exported model."""
    from vitrail.api import open_weights  # noqa: PLC0415
    from vitrail.deploy.artefact.opening import is_artefact, open_engine  # noqa: PLC0415

    return open_engine(source) if is_artefact(source) else open_weights(source, device=device, image_size=image_size)


def predict(options: argparse.Namespace) -> None:
    """Prints or stores answers for pictures, by a run, a checkpoint or an exported model."""
    _check_asked(options)
    source, paths = model_and_pictures("predict", options.paths)
    if options.table is not None:
        from vitrail.deploy.artefact.opening import open_engine  # noqa: PLC0415
        from vitrail.hardware import device  # noqa: PLC0415

        shipping.into_table(open_engine(source, device=device(options.device)), options, paths)
        return
    model = _opened(source, options.device, options.image_size)
    results = []
    for result in shipping.answers(model, paths, top=options.top, tile=options.tile, draw=options.draw):
        results.append(result)
        text = result.error or "" if result.answer is None else f"{result.path}: {result.answer.text()}"
        print(to_json(result.to_dict()) if options.json else printable(text, one_line=True))  # noqa: T201
    if broken := [result for result in results if result.error is not None]:
        verb = "was" if len(broken) == 1 else "were"
        raise DataError(f"{len(broken)} of {len(results)} pictures {verb} not read, such as {broken[0].path}")


def _check_asked(options: argparse.Namespace) -> None:
    """Refuses what predictions cannot be made for, before a model is opened for it."""
    with importing():
        from vitrail.deploy.bulk.destination import check_destination  # noqa: PLC0415

    if options.top < 1:
        raise ConfigError(f"--top is {options.top}; it must be 1 or more")
    if options.tile is not None and options.tile < 1:
        raise ConfigError(f"--tile is {options.tile}; it must be 1 or more pixels")
    if options.table is None:
        if options.ray is not None:
            raise ConfigError("--ray needs a table to write: --out predictions.parquet")
        return
    if options.draw is not None:
        raise ConfigError("--draw and --out cannot be used together; draw some of the pictures in a second call")
    if options.ray is not None and options.tile is not None:
        raise ConfigError("--tile and --ray cannot be used together; leave out one of them")
    if options.json:
        raise ConfigError("--json and --out cannot be used together; for JSON in a file, use --out predictions.jsonl")
    check_destination(options.table)


def doctor(options: argparse.Namespace) -> None:
    """Audits data before training."""
    from vitrail.data.audit.annotation_faults import misfit_problem  # noqa: PLC0415
    from vitrail.data.audit.doctor import examine  # noqa: PLC0415
    from vitrail.data.audit.preview import preview  # noqa: PLC0415
    from vitrail.data.sources.opening import survey  # noqa: PLC0415
    from vitrail.data.sources.table import Wanted  # noqa: PLC0415
    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.report import Text  # noqa: PLC0415
    from vitrail.training.cost import training_cost, training_speed  # noqa: PLC0415
    from vitrail.training.default_cost import default_cost  # noqa: PLC0415
    from vitrail.training.first_dense import first_dense_on  # noqa: PLC0415
    from vitrail.training.first_model import default_model  # noqa: PLC0415
    from vitrail.training.first_try import first_try_on  # noqa: PLC0415

    columns = split_names(options.label)
    wanted = Wanted(columns, several=not columns, group=options.group)
    name, size, cost, first, where = options.model, options.image_size, None, None, device()
    with busy(f"opening {options.data}"):
        splits = survey(options.data, val=options.val, seed=options.seed, wanted=wanted)
    if name is None and size is None:
        with busy(f"timing what training does on {options.data}"):
            first = first_dense_on(splits.train, device=where) or first_try_on(splits.train, device=where)
            cost = None if first is None else default_cost(splits, seed=options.seed, device=where)
    if cost is None:
        if name is None:
            with busy(f"sampling {options.data}"):
                name, size = default_model(splits.train, image_size=size)
        with busy(f"timing {name}"):
            cost = training_cost(name, size)
            speed = training_speed(name, size, device=where)
            cost = cost._replace(numbers=replace(cost.numbers, images_per_second=speed))
    with busy(f"examining {options.data}"):
        report = examine(splits, title=options.data, image_size=cost.image_size, cost=cost.numbers)
    if first is not None:
        report = replace(report, sections=(*report.sections, Text("What train does with nothing named", first.note)))
    show_report(report, options)
    if options.preview is not None:
        with busy(f"drawing {options.data}"):
            options.preview.parent.mkdir(parents=True, exist_ok=True)
            preview(splits).to_html(options.preview)
    if (problem := splits.findings.problem() or misfit_problem(report)) is not None:
        raise DataError(problem)


def demo(options: argparse.Namespace) -> None:
    """Trains a small ViT on the embedded images and writes a report."""
    import shutil  # noqa: PLC0415

    from vitrail.hardware import device  # noqa: PLC0415
    from vitrail.training.distributed import World  # noqa: PLC0415
    from vitrail.training.one_run import one_run  # noqa: PLC0415
    from vitrail.training.plan import make_plan  # noqa: PLC0415
    from vitrail.training.run import train as start  # noqa: PLC0415

    changes = _keys_set(options)
    if options.folder is None and (DEMO / "run.json").is_file():
        where = device(options.device)
        make_plan("demo", recipe="demo", device=where, changes=changes)  # a mistake is reported before anything is lost
        with one_run(DEMO, World()):  # and not one that is running
            shutil.rmtree(DEMO)  # an earlier demo, and nothing else: run.json says so
    run = start("demo", recipe="demo", folder=options.folder or DEMO, device=options.device, **changes)
    print(f"test accuracy {100 * run.metrics['test_accuracy']:.1f} %; report: {run.report()}")  # noqa: T201
