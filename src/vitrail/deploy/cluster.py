"""Predictions on several machines, through Ray Data: every worker opens the model once and answers a share."""

import importlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitrail.deploy.engine import Engine, open_engine
from vitrail.deploy.pictures import Picture, answer_pictures
from vitrail.errors import ConfigError
from vitrail.tasks.predict import Answer, Prediction

_QUIET = ("RAY_BACKEND_LOG_LEVEL", "fatal")  # else it prints advice to its own developers


class Worker:
    """One model in one process of the cluster."""

    def __init__(self, source: str, way: Mapping[str, Any], top: int) -> None:
        self.engine, self.top = open_engine(source, **way), top

    def __call__(self, rows: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Pictures as JSON -> predictions as JSON: what tables of every version can hold."""
        pictures = [_picture(*json.loads(text)) for text in rows["picture"]]
        return {"said": [json.dumps(asdict(found)) for found in answer_pictures(self.engine, pictures, top=self.top)]}


def answer_by_cluster(
    engine: Engine, pictures: Sequence[Picture], *, top: int = 5, workers: int = 2, together: int = 32,
    threads: int = 1,
) -> Iterator[Prediction]:  # fmt: skip
    """Answers of an artefact, as they come in; joins the cluster that runs already, or starts one on this machine.

    Workers open it as the engine was opened, with bf16 or int8 where that has them. The artefact and the pictures must
    lie where all machines see them, under the same names.
    """
    ray = needs_ray()
    if workers < 1:
        raise ConfigError(f"{workers} workers cannot share the work; it takes 1 or more")
    if not pictures:
        return
    started = not ray.is_initialized()
    if started:
        os.environ.setdefault(*_QUIET)
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="error")
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        rows = [{"picture": json.dumps(_row(picture))} for picture in pictures]
        way = {"threads": threads, "half": engine.half, "dynamic": engine.dynamic}
        shares = max(workers, -(-len(rows) // together))
        found = ray.data.from_items(rows, override_num_blocks=min(shares, len(rows))).map_batches(
            Worker,
            fn_constructor_args=(str(Path(engine.source).resolve()), way, top),
            batch_size=together,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=threads,
        )
        for row in found.iter_rows():
            yield _prediction(json.loads(row["said"]))
    finally:
        if started:
            ray.shutdown()


def needs_ray() -> Any:
    """Ray with its data, or one sentence on how to get it."""
    try:
        importlib.import_module("ray.data")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError("Ray is not installed; it comes with: pip install 'vitrail[ray]'") from error


def _row(picture: Picture) -> list[Any]:
    """Workers have working folders of their own, so the place is absolute and the name as it was given."""
    return [picture.name, str(picture.file.resolve()), picture.start, picture.length]


def _picture(name: str, file: str, start: int, length: int | None) -> Picture:
    return Picture(name, Path(file), start, length)


def _prediction(said: Mapping[str, Any]) -> Prediction:
    return Prediction(said["path"], tuple(Answer(**answer) for answer in said["answers"]), said["error"])
