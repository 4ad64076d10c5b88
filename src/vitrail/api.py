"""The public functions that open, evaluate, explain, export and serve models; each a thin entry to one tool."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.config import split_names
from vitrail.errors import BrokenImage, ConfigError, DataError, Notice, Unsupported
from vitrail.runs.trained import TrainedModel, open_model

if TYPE_CHECKING:
    from vitrail.advice.advise import Advice
    from vitrail.advice.rows import Row
    from vitrail.comparison.compare import Comparison
    from vitrail.data.dataset import Dataset, Splits
    from vitrail.deploy.artefact.engine import Engine
    from vitrail.deploy.artefact.ship import Shipped
    from vitrail.deploy.bench import Bench
    from vitrail.deploy.verify import Verification
    from vitrail.explain.page.gallery import Gallery
    from vitrail.report import Report
    from vitrail.runs.evaluate import Evaluation
    from vitrail.runs.predict import Input
    from vitrail.runs.tta import Views
    from vitrail.tasks.answer import Prediction

Model = TrainedModel | str | Path
PACKAGED = "packaged"


def open(source: str | Path = PACKAGED, *, device: str | None = None) -> "TrainedModel | Engine":  # noqa: A001
    """A trained model from a run's folder, a checkpoint of vitrail, timm or Hugging Face, or an exported file.

    With nothing named it is the model that ships with the package.
    """
    from vitrail.deploy.artefact.opening import is_artefact, open_engine  # noqa: PLC0415
    from vitrail.hardware import device as choose_device  # noqa: PLC0415

    if is_artefact(source):
        return open_engine(source)
    return open_model(source).to(choose_device(device))


def predict(
    model: "Model | Engine",
    inputs: "Input | Iterable[Input]",
    *,
    top: int = 5,
    tile: int | None = None,
    draw: str | Path | None = None,
) -> "list[Prediction]":
    """Answers for paths, folders, PIL images, arrays H W [C] and tensors C H W (uint8).

    `tile` finds boxes in large pictures, in tiles of so many pixels; `draw` names a file for one picture with its
    answer, or a folder for several.
    """
    from vitrail.runs.predict import predict as answer  # noqa: PLC0415

    return answer(open(model) if isinstance(model, str | Path) else model, inputs, top=top, tile=tile, draw=draw)


def evaluate(
    model: "Model | Engine", data: "str | Path | Dataset | None" = None, *, label: str | Sequence[str] | None = None,
    batch_size: int = 256, tta: "Views | None" = None,
) -> "Evaluation":  # fmt: skip
    """Metrics of a model on labelled images, as `train` takes them; `.report()` makes tables of it.

    Without `data` they are measured on the run's own test images, or on its validation images where it has no others.
    `tta` "flip" or "views" also measures the mean over test-time views, which the report states apart.
    """
    from vitrail.runs.evaluate import evaluate_on  # noqa: PLC0415

    opened = open(model) if isinstance(model, str | Path) else model
    found = evaluate_on(opened, data, label=label, batch_size=batch_size, tta=tta)
    if found.note is not None:
        warnings.warn(found.note, Notice, stacklevel=2)
    return found


def advise(
    data: str | Path,
    *,
    device: str | None = None,
    latency: float | None = None,
    memory: float | None = None,
    minutes: float | None = None,
    task: str | None = None,
    label: str | Sequence[str] | None = None,
) -> "Advice":
    """What to train on data, from measured rows: model, weights, recipe, expected result, time, export, and commands.

    `device` is measured here for up to a minute, or names a machine of the rows. `latency` is the limit in milliseconds
    an answer, `memory` in MiB, `minutes` of training.
    """
    from vitrail.advice.choose import Limits  # noqa: PLC0415
    from vitrail.advice.consult import Table, consult  # noqa: PLC0415
    from vitrail.training.first_dense import default_on  # noqa: PLC0415
    from vitrail.training.first_try import SETTINGS, first_try_on, measured  # noqa: PLC0415

    limits = Limits(latency=latency, memory=memory, minutes=minutes)
    table = Table(cells=measured(), settings=SETTINGS, default=default_on, first=first_try_on, findings=_findings)
    return consult(data, limits, table, device=device, task=task, label=label)


def _findings() -> "list[Row]":
    """Claims that bear on advice, with the verdicts of the published full runs of the lab.

    A record that this version of an experiment cannot read is left out: advice does not depend on it.
    """
    from vitrail.advice.findings import BEARING, finding  # noqa: PLC0415
    from vitrail.lab import EXPERIMENTS  # noqa: PLC0415
    from vitrail.lab.records import published  # noqa: PLC0415

    rows = []
    for one in EXPERIMENTS:
        if one.name not in BEARING:
            continue
        try:
            if (record := published(one)) is None:
                continue
            verdict = one.conclude(record.results)
        except (DataError, ValueError, LookupError, TypeError, AttributeError):
            continue
        rows.append(finding(one.name, one.claim, verdict.outcome, verdict.text, record))
    return rows


def compare(
    *runs: str | Path,
    data: str | Path | None = None,
    label: str | Sequence[str] | None = None,
    resamples: int | None = None,
    device: str | None = None,
    batch_size: int = 256,
) -> "Comparison":
    """Runs of one task on the same images: settings that differ, whether the difference is real, and what each costs.

    The images are the runs' own test images (else validation images) where they are the same, or those of `data`.
    `resamples` is the number of draws of the bootstrap: by default 1,000, or fewer where that takes over a minute.
    """
    from vitrail.comparison.compare import compare_runs  # noqa: PLC0415
    from vitrail.hardware import device as choose_device  # noqa: PLC0415

    where = choose_device(device)
    return compare_runs(runs, device=where, data=data, label=label, resamples=resamples, batch_size=batch_size)


def explain(
    model: Model,
    pictures: str | Path | Iterable[str | Path],
    *,
    methods: str | Sequence[str] | None = None,
    target: str | None = None,
    box: int | None = None,
    out: str | Path | None = None,
) -> "Gallery":
    """What decided the answers of a model to pictures; `out` names an HTML page to write.

    `methods` are saliency methods, quick ones by default; `target` names a class or number, the answer by default;
    `box` is the number of a detector's box.
    """
    from vitrail.explain.methods.target import target_name  # noqa: PLC0415
    from vitrail.explain.page.gallery import Gallery  # noqa: PLC0415
    from vitrail.explain.page.render import write_page  # noqa: PLC0415
    from vitrail.explain.pictures import read_pictures  # noqa: PLC0415
    from vitrail.explain.views import picture_views  # noqa: PLC0415
    from vitrail.runs.predict import image_files  # noqa: PLC0415

    trained = _trained(model)
    target = target_name(trained.task, target, box=box)
    named = None if methods is None else split_names(methods)
    read = read_pictures(list(image_files(pictures)), trained.preprocess)
    for reason in read.broken.values():
        warnings.warn(f"left out: {reason}", Notice, stacklevel=2)
    if not read.pictures:
        raise BrokenImage(next(iter(read.broken.values()), "no pictures to explain; give one or more image files"))
    views = list(
        picture_views(
            trained.task, trained.preprocess, read.pictures, model=trained.source, methods=named, target=target
        )
    )
    gallery = Gallery(
        title=f"{len(views)} picture{'s' if len(views) != 1 else ''} explained with {trained.source}",
        views=views,
        about={trained.source: trained.about},
    )
    if out is not None:
        write_page(gallery, out)
    return gallery


def export(
    model: Model,
    out: str | Path,
    *,
    to: str | Sequence[str] = ("torch", "onnx", "openvino"),
    images: str | None = None,
    int8: str | None = None,
    **options: Any,
) -> "Shipped":
    """Writes a model as files that need no vitrail, each compared with the model on real images (`certificate.html`).

    `images` names those, by default the run's own; `int8` names other images to calibrate int8 with.
    """
    from vitrail.config import apply  # noqa: PLC0415
    from vitrail.deploy.artefact.ship import ShipConfig, ship  # noqa: PLC0415
    from vitrail.deploy.real_images import images_for_export  # noqa: PLC0415

    trained = _trained(model)
    config = apply(ShipConfig(), {"targets": to, **options})
    found = images_for_export(trained, images=images, int8=int8, count=config.certify.images)
    return ship(trained, found.certificate, Path(out), config, calibration=found.int8, truth=found.truth)


def bench(*models: str | Path, images: str | None = None, count: int = 64, **options: Any) -> "Bench":
    """Speed and agreement of runs, checkpoints and exported files, measured side by side; `.report()` shows it."""
    from vitrail.config import apply  # noqa: PLC0415
    from vitrail.deploy.artefact.certificate import at_size  # noqa: PLC0415
    from vitrail.deploy.bench import BenchConfig  # noqa: PLC0415
    from vitrail.deploy.bench import bench as measure  # noqa: PLC0415
    from vitrail.deploy.contenders import base_of, open_contenders  # noqa: PLC0415
    from vitrail.deploy.real_images import images_for_bench  # noqa: PLC0415

    names = [str(model) for model in models]
    engines, _ = open_contenders(names)
    base = engines[name := base_of(engines)]
    shown = images_for_bench(names, base.task, images=images, count=count)
    pixels = at_size(shown, base.image_size, base.preprocess)
    return measure({name: base, **engines}, pixels, apply(BenchConfig(), options))


def serve(
    model: str | Path = PACKAGED, *, explain: str | None = None, threads: int | None = None, **options: Any
) -> None:
    """Serves a model over HTTP until SIGTERM or Ctrl-C; `options` are those of `vitrail.serve.config.ServeConfig`."""
    from vitrail.serve.config import ServeConfig  # noqa: PLC0415
    from vitrail.serve.opening import Opening  # noqa: PLC0415
    from vitrail.serve.supervisor import serve as start  # noqa: PLC0415

    opening = Opening(
        model=str(model), open_engine=open_engine, open_explainer=open_explainer, explain=explain, threads=threads
    )
    start(opening, ServeConfig(**options))


def open_engine(path: str, threads: int | None) -> "Engine":
    """The engine for an artefact, a run or a checkpoint, as a service opens it: it must agree with its certificate."""
    from vitrail.deploy.artefact.opening import open_engine as open_  # noqa: PLC0415
    from vitrail.deploy.artefact.trial import check_trial  # noqa: PLC0415

    engine = open_(path, threads=threads)
    check_trial(engine)
    return engine


def open_explainer(path: str) -> Any:
    """The explainer of a run or checkpoint with the names of its outputs; None for an artefact or an ensemble."""
    from vitrail.deploy.artefact.opening import is_artefact  # noqa: PLC0415
    from vitrail.explain.explainer import Explainer  # noqa: PLC0415

    if is_artefact(path):
        return None
    trained = open_model(path)
    try:
        return Explainer(trained.task, trained.preprocess), trained.task.output_names
    except Unsupported:
        return None


def doctor(
    data: "Splits | str | Path",
    *,
    label: str | Sequence[str] | None = None,
    preview: str | Path | None = None,
    **options: Any,
) -> "Report":
    """An audit of data before training: broken files, duplicates, uneven or suspicious targets.

    `preview` names an HTML page to write: pictures with their boxes, masks or depth. `title` names the data in the
    report.
    """
    from vitrail.data.audit.doctor import examine  # noqa: PLC0415
    from vitrail.data.audit.preview import preview as draw  # noqa: PLC0415
    from vitrail.data.dataset import Splits  # noqa: PLC0415
    from vitrail.data.sources.opening import survey  # noqa: PLC0415
    from vitrail.data.sources.table import Wanted  # noqa: PLC0415

    columns = split_names(label)
    chosen = {name: options.pop(name) for name in ("val", "seed", "wanted") if name in options}
    if isinstance(data, Splits):
        if named := [*(["label"] if columns else []), *chosen]:
            raise ConfigError(
                f"{' and '.join(named)} cannot be used with splits that were made already; give the name of the data"
            )
        splits = data
    else:
        splits = survey(data, **{"wanted": Wanted(columns, several=not columns), **chosen})
        options = {"title": str(data), **options}
    if preview is not None:
        draw(splits).to_html(preview)
    return examine(splits, **options)


def verify(path: str | Path = PACKAGED, *, accept: bool = False) -> "Verification":
    """What a run, checkpoint, exported model, pack or table of predictions is, and whether it is whole (`.ok`).

    Nothing is loaded for that. `accept` writes new checksums first, for files that were edited on purpose.
    """
    from vitrail.deploy.verify import verify as look  # noqa: PLC0415

    return look(path, accept=accept)


def lab(
    name: str = "all",
    *,
    quick: bool = False,
    seeds: int | None = None,
    device: str | None = None,
    folder: str | Path = "runs/lab",
    out: str | Path | None = None,
) -> "Report":
    """Measures a claim of textbooks, or all of them, and returns the report with the verdict.

    `quick` is the form for a CPU; what `folder` already holds is not measured again; `out` names an HTML page.
    """
    from vitrail.hardware import device as choose_device  # noqa: PLC0415
    from vitrail.lab import chosen  # noqa: PLC0415
    from vitrail.lab.booklet import booklet, page  # noqa: PLC0415
    from vitrail.lab.running import run_experiment  # noqa: PLC0415

    where = choose_device("cpu" if quick and device is None else device)
    findings = [
        run_experiment(experiment, quick=quick, seeds=seeds, device=where, folder=Path(folder))
        for experiment in chosen(name)
    ]
    report = booklet(findings) if name == "all" else page(findings[0])
    if out is not None:
        report.to_html(out)
    return report


def open_weights(
    source: str | Path, *, device: str | None = None, image_size: int | tuple[int, int] | None = None
) -> TrainedModel:
    """A run or checkpoint with its layers, on a device; Unsupported for an exported model, which has none.

    A Notice says which model is the packaged one, and which preprocessing is assumed where no file tells it.
    """
    from vitrail.deploy.artefact.opening import is_artefact  # noqa: PLC0415
    from vitrail.hardware import device as choose_device  # noqa: PLC0415

    if is_artefact(source):
        raise Unsupported(f"{source} is an exported model without layers; use the run or checkpoint it was made from")
    model = open_model(source, image_size=image_size).to(choose_device(device))
    if source == PACKAGED:
        warnings.warn(f"the model is {model.about}", Notice, stacklevel=2)
    elif not model.preprocess_known:
        text = f"no file beside {source} says how images were preprocessed; assumed: {model.preprocess}"
        warnings.warn(text, Notice, stacklevel=2)
    return model


def _trained(model: Model) -> TrainedModel:
    """The model in float32, also of a copy in fewer bits: gradients and files need it."""
    trained = model if isinstance(model, TrainedModel) else open_weights(model)
    return trained.exact or trained
