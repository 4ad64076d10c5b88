"""Boxes of very many images as COCO's JSON: a data set that `vitrail train` and pycocotools read, and its results.

`boxes.json` has images, categories and annotations with a score; `boxes.results.json` is the list that evaluations take
(`COCO.loadRes`). File names are relative to the folder of the file, boxes are x, y, width, height in pixels of the
picture. What is not part of the format is in `info`: the model, and the images that could not be read.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitrail.deploy.bulk.image_files import ImageFile
from vitrail.deploy.bulk.table_files import Form, Row, part_of, row_of
from vitrail.errors import ConfigError, DataError
from vitrail.files import read_text, write_atomically
from vitrail.strict_json import from_json, to_json
from vitrail.tasks.answer import Prediction
from vitrail.tasks.detect.detect_answer import COLUMNS, BoxesAnswer

SUFFIX = ".json"
RESULTS = ".results.json"
_LIMIT = 1 << 32  # bytes of a file that is continued


class CocoFile(Form):
    """The rows of a detector with these classes; the id of a category is its number, from 1."""

    reasons = "`info.errors` says why"

    columns = COLUMNS

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = tuple(classes)

    def row(self, prediction: Prediction, image: ImageFile, columns: Sequence[str]) -> Row:
        """The row of the boxes, where the answer has other parts, too."""
        return row_of(part_of(prediction, BoxesAnswer.kind), columns)

    def check(self, out: Path) -> None:
        """ConfigError for another suffix, or for results of others, which would be overwritten."""
        if out.suffix != SUFFIX or out.name.endswith(RESULTS):
            raise ConfigError(f"{out} is not a name for COCO's JSON; use one such as boxes.json")
        results = _results(out)
        if results.exists() and not (out.exists() or out.with_name(f"{out.name}.partial").exists()):
            raise ConfigError(f"{results} exists, and {out} does not: it is of something else; choose another name")

    def begin(self, rows: Sequence[Row], new: Iterable[str]) -> None:
        """Any name has a place."""

    def read(self, path: Path, columns: Sequence[str]) -> tuple[Sequence[str], list[Any]]:
        """The rows of a file that `write` wrote."""
        try:
            data = from_json(read_text(path, _LIMIT))
            model, errors = data["info"]["model"], data["info"]["errors"]
            names = {one["id"]: one["name"] for one in data["categories"]}
            if not all(isinstance(why, str) for why in errors.values()):
                raise ValueError("an error that is not a text")
            if not set(names.values()) <= set(self.classes):
                raise ValueError("it has other classes")
            boxes: dict[int, list[list[Any]]] = {one["id"]: [] for one in data["images"]}
            for one in data["annotations"]:
                x, y, width, height = one["bbox"]
                corners = [x, y, round(x + width, 2), round(y + height, 2)]
                boxes[one["image_id"]].append([names[one["category_id"]], float(one["score"]), *corners])
            known: Row = dict.fromkeys(columns) | {"model": model}
            rows = [{**known, "path": name, "error": why} for name, why in errors.items()]
            for one in data["images"]:
                size = {"width": int(one["width"]), "height": int(one["height"])}
                rows.append({**known, **size, "path": one["path"], "boxes": boxes[one["id"]]} | _best(boxes[one["id"]]))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{path} is not a table of boxes that vitrail wrote ({error!r:.200}); name another file"
            ) from error
        return columns, rows

    def write(self, rows: Sequence[Row], path: Path, columns: Sequence[str]) -> None:
        """The results, then the data set."""
        read = [row for row in rows if row["error"] is None]
        images = [
            {"id": number, "file_name": _relative(row["path"], path), "width": int(row["width"]),
             "height": int(row["height"]), "path": row["path"]}
            for number, row in enumerate(read, start=1)
        ]  # fmt: skip
        found = list(self._annotations(read))
        results = [{key: one[key] for key in ("image_id", "category_id", "bbox", "score")} for one in found]
        info = {
            "description": "boxes found by a model, not by people",
            "model": rows[0]["model"] if rows else None,
            "errors": {row["path"]: row["error"] for row in rows if row["error"] is not None},
        }
        categories = [{"id": number, "name": name} for number, name in enumerate(self.classes, start=1)]
        whole = {"info": info, "images": images, "annotations": found, "categories": categories}
        _write(_results(path), results)
        _write(path, whole)

    def _annotations(self, rows: Sequence[Row]) -> Iterator[Mapping[str, Any]]:
        """Boxes with an area; those that are outside of the picture have none."""
        number = 0
        for image, row in enumerate(rows, start=1):
            for label, score, *corners in row["boxes"]:
                x1, y1, x2, y2 = (round(float(value), 2) for value in corners)
                box = [x1, y1, round(x2 - x1, 2), round(y2 - y1, 2)]
                if box[2] > 0 and box[3] > 0:
                    number += 1
                    yield {
                        "id": number, "image_id": image, "category_id": self.classes.index(label) + 1, "bbox": box,
                        "area": round(box[2] * box[3], 2), "iscrowd": 0, "score": round(float(score), 6),
                    }  # fmt: skip


def _results(out: Path) -> Path:
    """The file of the results, beside the data set."""
    return out.with_name(out.name.removesuffix(SUFFIX) + RESULTS)


def _best(boxes: Sequence[Sequence[Any]]) -> Row:
    """The columns of a row that follow from its boxes."""
    label, score = boxes[0][:2] if boxes else (None, None)
    return {"count": len(boxes), "label": label, "score": score}


def _relative(name: str, out: Path) -> str:
    """The path of an image, from the folder of the file."""
    return os.path.relpath(name, out.parent)


def _write(path: Path, data: Any) -> None:
    write_atomically(path, lambda new: new.write_text(to_json(data, ascii_only=True), encoding="utf-8"))
