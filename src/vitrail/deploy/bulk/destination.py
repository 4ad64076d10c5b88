"""Where predictions for very many images go: a table, COCO's JSON for boxes, or a folder of masks or depth maps."""

from pathlib import Path

from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.deploy.bulk.coco_file import SUFFIX, CocoFile
from vitrail.deploy.bulk.pixel_folder import PixelFolder
from vitrail.deploy.bulk.table_files import FORMATS, Form, table_form
from vitrail.errors import ConfigError, nearest
from vitrail.tasks.task import Task

_TABLES = "write a table: predictions.parquet, .csv or .jsonl"


def is_folder(out: Path) -> bool:
    """Whether a path names a folder: it has no suffix, or is one."""
    return out.is_dir() or not out.suffix


def check_destination(out: Path) -> None:
    """ConfigError for a suffix that no form has, before a model is opened."""
    if is_folder(out) or out.suffix == SUFFIX:
        return
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out {out} has no known format; {nearest(out.suffix, (*FORMATS, SUFFIX))}, or a folder")
    table_form(out).check(out)


def destination(out: Path, task: Task) -> Form:
    """The form of predictions of a task; ConfigError where it does not fit the task."""
    kinds = {target.kind: target for target in task.schema.values()}
    dense = [kind for kind in kinds if kinds[kind].dense is not None]
    if is_folder(out):
        if not dense:
            raise ConfigError(f"--out {out} is a folder: for masks and depth, not for {task.config.kind!r}; {_TABLES}")
        kind = next(
            (kind for kind in dense if kind in out.name.lower()), dense[0]
        )  # "depth/", where there are masks too
        return PixelFolder(out, task.columns, kind)
    if out.suffix == SUFFIX:
        boxes = kinds.get("boxes")
        if not isinstance(boxes, BoxesTarget):
            folder = f"; name a folder for files of them: {out.with_suffix('')}/" if dense else ""
            raise ConfigError(f"--out {out} is COCO's JSON, for boxes, not for {task.config.kind!r}{folder}; {_TABLES}")
        return CocoFile(boxes.classes)
    return table_form(out)
