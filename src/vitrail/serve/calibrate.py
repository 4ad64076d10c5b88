"""Calibrates a served model on labelled images, such as `vitrail serve --calibrate DATA` names."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vitrail.data.broken import left_out
from vitrail.data.dataset import Dataset
from vitrail.errors import BrokenImage, DataError
from vitrail.serve.logs import log
from vitrail.serve.model import Engine

MAX_IMAGES = 2000  # spread evenly over the data
_BATCH = 32


def calibrate(engine: Engine, data: Dataset) -> None:
    """Fits the calibration of the engine's task to labelled images; skips broken ones and logs their number."""
    step = max(1, -(-len(data) // MAX_IMAGES))
    images, used, broken = range(0, len(data), step), list[int](), list[tuple[str, str]]()
    batches: list[Mapping[str, Tensor]] = []
    for start in range(0, len(images), _BATCH):
        batch: list[Tensor] = []
        for index in images[start : start + _BATCH]:
            try:
                batch.append(engine.preprocess.fit(data.read(index)[None])[0])  # 1 C H W
            except (BrokenImage, OSError) as error:
                broken.append((data.where(index), str(error)))
            else:
                used.append(index)
        if batch:
            batches.append(engine.outputs(torch.cat(batch)))
    if not used:
        raise DataError(f"cannot calibrate on {data.name}: none of its {len(data):,} images can be read")
    if broken:
        log("warning", "broken images skipped in calibration", count=len(broken), text=left_out(broken))
    before = engine.task.state()
    outputs = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    engine.task.calibrate(outputs, {name: values[used] for name, values in data.targets.items()})
    if engine.task.state() == before:
        log("warning", "calibration unchanged", images=len(used), text=engine.task.calibration())
