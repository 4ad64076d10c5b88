"""Predictions on several machines, through Ray Data: every worker opens the model once and predicts a share."""

import importlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.deploy.artefact.engine import Engine
from vitrail.deploy.artefact.opening import is_artefact, open_engine
from vitrail.deploy.bulk.image_files import ImageFile, predict_images
from vitrail.deploy.bulk.table_files import Row, row_of
from vitrail.errors import ConfigError
from vitrail.strict_json import to_json

_QUIET = ("RAY_BACKEND_LOG_LEVEL", "fatal")  # else it prints advice to its own developers


class Worker:
    """One model in one process of the cluster."""

    def __init__(self, source: str, way: Mapping[str, Any], top: int) -> None:
        self.engine, self.top = open_engine(source, **way), top

    def __call__(self, rows: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Images as JSON -> rows of a table as JSON, which every version of Arrow can hold."""
        images = [_image(*json.loads(text)) for text in rows["image"]]
        columns = self.engine.task.columns
        found = predict_images(self.engine, images, top=self.top)
        return {"row": [to_json(row_of(prediction, columns), ascii_only=True) for prediction in found]}


def predict_on_cluster(
    engine: Engine, images: Sequence[ImageFile], *, top: int = 5, workers: int = 2, batch: int = 32, threads: int = 1
) -> Iterator[Row]:
    """Rows by an artefact, as they come in; joins the cluster that runs already, or starts one on this machine.

    Workers open it as the engine was opened, with bf16 or int8 where that has them. The artefact and the images must
    have the same paths on all machines.
    """
    ray = needs_ray()
    if workers < 1:
        raise ConfigError(f"--ray {workers} is not allowed: must be 1 or more")
    check_source(engine)
    if not images:
        return
    started = not ray.is_initialized()
    if started:
        os.environ.setdefault(*_QUIET)
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        rows = [{"image": to_json(_plain(image), ascii_only=True)} for image in images]
        way = {"threads": threads, "half": engine.half, "dynamic": engine.dynamic}
        shares = max(workers, -(-len(rows) // batch))
        found = ray.data.from_items(rows, override_num_blocks=min(shares, len(rows))).map_batches(
            Worker,
            fn_constructor_args=(str(Path(engine.source).resolve()), way, top),
            batch_size=batch,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=threads,
        )
        for row in found.iter_rows():
            yield json.loads(row["row"])
    finally:
        if started:
            ray.shutdown()


def check_source(engine: Engine) -> None:
    """ConfigError where workers could not open the model: they take artefacts."""
    if not is_artefact(engine.source):
        raise ConfigError(f"--ray takes artefacts, not {engine.source}; write one: vitrail export {engine.source}")


def needs_ray() -> Any:
    """Ray with its data; ConfigError says how to install it."""
    try:
        importlib.import_module("ray.data")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError("Ray is not installed: pip install 'ray[data]'") from error


def _plain(image: ImageFile) -> list[Any]:
    """Workers have working folders of their own, so the path is absolute; the name stays as it was given."""
    return [image.name, str(image.file.resolve()), image.start, image.length]


def _image(name: str, file: str, start: int, length: int | None) -> ImageFile:
    return ImageFile(name, Path(file), start, length)
