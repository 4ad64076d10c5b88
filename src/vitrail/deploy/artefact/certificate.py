"""The certificate of an export: how close artefacts are to the eager model on real images, and how fast.

For each artefact, batch and size of images: the largest error, the least cosine, the share of images with the same
answer, and the speed relative to the eager model, measured in turns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import Config, Count
from vitrail.data.preprocess import Preprocess
from vitrail.deploy.artefact.engine import Array, Engine, in_batches
from vitrail.deploy.artefact.fingerprint import file_bytes
from vitrail.deploy.artefact.opening import CERTIFICATE
from vitrail.deploy.artefact.trial import KEY as TRIAL
from vitrail.deploy.artefact.trial import Trial, trial_of
from vitrail.errors import DataError
from vitrail.files import write_atomically
from vitrail.report import Facts, Report, Section, Table, Text, Unit, Value
from vitrail.strict_json import to_json
from vitrail.timing import Spread, interleaved, machine, ratios

CLOSE = 0.5  # percent of the images that int8 may answer differently


class Tolerance(NamedTuple):
    """What an artefact of some precision may differ by; errors are relative to the largest output."""

    error: float
    cosine: float
    agreement: float


TOLERANCES = {
    "float32": Tolerance(1e-3, 0.99999, 0.999),
    "int8": Tolerance(float("inf"), 0.95, 1 - CLOSE / 100),
}
DENSE = Tolerance(float("inf"), -1.0, 0.8)  # of int8 that was judged by a metric, or by all boxes, pixels and depths


@dataclass(frozen=True, kw_only=True)
class CertifyConfig(Config):
    """What artefacts are compared on: batches, image sizes, number of images, and rounds of timing."""

    batches: tuple[Count, ...] = (1, 16)
    scales: tuple[float, ...] = (1.0, 1.5)  # sides of the images, as multiples of the model's
    images: Count = 200
    rounds: Count = 5

    def sizes(self, own: tuple[int, int]) -> list[tuple[int, int]]:
        """The sizes of images, height and width, for a model of some size."""
        return [(max(1, round(own[0] * scale)), max(1, round(own[1] * scale))) for scale in self.scales]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One artefact at one batch and size, beside the eager model."""

    artefact: str
    precision: str
    batch: int
    size: tuple[int, int]
    error: float
    cosine: float
    agreement: float
    speed: Spread
    problem: str | None  # what is outside the tolerance

    @property
    def verdict(self) -> str:
        """In two words; the numbers stand beside it."""
        return "passed" if self.problem is None else f"failed: {self.problem.split()[0]}"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The rows of all artefacts, and what they were measured on."""

    rows: tuple[Row, ...]
    about: str
    images: int
    bytes: Mapping[str, int]  # of each artefact's files
    trials: Mapping[str, Trial]  # what each artefact computed for the trial picture

    def problems(self, artefact: str) -> list[str]:
        """What is outside the tolerance of an artefact; none where it passed."""
        return [row.problem for row in self.rows if row.artefact == artefact and row.problem is not None]

    def report(self, more: Sequence[Section] = ()) -> Report:
        """The certificate as a page, followed by more sections."""
        facts: dict[str, Value] = {"model": self.about, "machine": machine(), "images": self.images}
        facts |= self.bytes
        units: dict[str, Unit] = dict.fromkeys(self.bytes, "bytes")
        rows: list[dict[str, Value]] = [
            {
                "artefact": row.artefact, "batch": row.batch, "image": f"{row.size[0]}x{row.size[1]}",
                "error": float(f"{row.error:.1e}"), "cosine": round(row.cosine, 5), "same answer": row.agreement,
                "times eager": str(row.speed), "verdict": row.verdict,
            }
            for row in self.rows
        ]  # fmt: skip
        return Report(
            "Certificate",
            (
                Facts("Measured on", facts, units),
                _part("Artefacts beside the eager model", ("error", "cosine", "same answer", "verdict"), rows),
                _part("Speed", ("times eager",), rows),
                Text("How to read it", _LEGEND),
                *more,
            ),
        )

    def write(self, folder: Path, more: Sequence[Section] = ()) -> Report:
        """certificate.html and certificate.json in a folder."""
        report = self.report(more)
        report.to_html(folder / "certificate.html")
        text = report.to_json().rstrip().removesuffix("}").rstrip()  # the trials follow its last key, a line each
        trials = ",\n".join(f"    {to_json(name)}: {to_json(numbers)}" for name, numbers in self.trials.items())
        whole = f'{text},\n  "{TRIAL}": {{\n{trials}\n  }}\n}}\n'
        write_atomically(folder / CERTIFICATE, lambda new: new.write_text(whole, encoding="utf-8"))
        return report


def _part(title: str, shown: Sequence[str], rows: Sequence[Mapping[str, Value]]) -> Table:
    """Some columns of the rows: as many as fit into a narrow terminal."""
    columns: dict[str, Unit] = dict.fromkeys(("artefact", "batch", "image", *shown), "")
    columns |= {"same answer": "share"} if "same answer" in shown else {}
    return Table(title, columns, [{name: row[name] for name in columns} for row in rows])


_LEGEND = (
    "Every artefact and the eager float32 model ran on the same real images. Error is the largest difference of "
    "outputs over the largest output; cosine is the least of all images; same answer is the share of images with the "
    "same answer, or of boxes and pixels where an answer has many. Speed is the eager model's time over the artefact's "
    "in the same round: the median, and the range of the middle half; both include the preprocessing. An artefact "
    "outside its tolerance is not written unless forced. Running a file in another precision than its own (OpenVINO's "
    "bf16, int8 without calibration) is not covered: `vitrail bench` measures its speed and its answers, and never "
    "chooses one with different answers."
)


def certify(
    reference: Engine, artefacts: Mapping[str, Engine], images: Sequence[Tensor], config: CertifyConfig | None = None
) -> Certificate:
    """Compares each artefact with the eager model on images uint8 C H W; see `Certificate`."""
    config = config or CertifyConfig()
    used = list(images[: config.images])
    if not used:
        raise DataError("a certificate needs images; there are none")
    rows = []
    for size in config.sizes(reference.image_size):
        pixels = at_size(used, size, reference.preprocess)
        expected = in_batches(reference, pixels, max(config.batches))
        for batch in config.batches:
            speeds = _speeds({"eager": reference, **artefacts}, pixels, batch, config.rounds)
            for name, engine in artefacts.items():
                found = in_batches(engine, pixels, batch)
                rows.append(_row(name, engine, (batch, size), (expected, found), speeds[name]))
    order = {name: index for index, name in enumerate(artefacts)}
    return Certificate(
        rows=tuple(sorted(rows, key=lambda row: order[row.artefact])),
        about=reference.about,
        images=len(used),
        bytes={name: file_bytes(engine.source) for name, engine in artefacts.items()},
        trials={
            name: trial_of(engine)
            for name, engine in artefacts.items()
            if all(row.problem is None for row in rows if row.artefact == name)
        },
    )


def at_size(images: Sequence[Tensor], size: tuple[int, int], preprocess: Preprocess) -> Array:
    """Images of any size as one array uint8 B H W C: fitted where it is the model's size, stretched otherwise."""
    if size == preprocess.image_size:
        made = [preprocess.fit(image[None])[0][0] for image in images]
    else:
        made = [F.interpolate(image[None], size=size, mode="bicubic", antialias=True)[0] for image in images]
    channels = max(preprocess.channels, *(image.shape[0] for image in made))
    return np.ascontiguousarray(
        np.stack([image.expand(channels, -1, -1).permute(1, 2, 0).numpy() for image in made])  # B H W C
    )


def _row(
    name: str, engine: Engine, at: tuple[int, tuple[int, int]],
    outputs: tuple[Mapping[str, Array], Mapping[str, Array]], speed: Spread,
) -> Row:  # fmt: skip
    expected, found = outputs
    error, cosine, agreement = engine.task.agreement(expected, found)
    precision = engine.card.precision
    allowed = DENSE if precision == "int8" and engine.task.int8_loss is not None else TOLERANCES[precision]
    problem = None
    if not all(np.isfinite(values).all() for values in found.values()):
        problem = "outputs that are not finite"
    elif not error <= allowed.error:
        problem = f"error {error:.1e}, allowed {allowed.error:.0e}"
    elif not cosine >= allowed.cosine:
        problem = f"cosine {cosine:.5f}, at least {allowed.cosine}"
    elif not agreement >= allowed.agreement:
        problem = _disagreement(agreement, allowed.agreement, len(next(iter(found.values()))))
    return Row(
        artefact=name, precision=precision, batch=at[0], size=at[1], error=error, cosine=cosine,
        agreement=agreement, speed=speed, problem=problem,
    )  # fmt: skip


def _disagreement(agreement: float, allowed: float, images: int) -> str:
    """How many answers differ; and, where one is too many of so few images, how many images it takes."""
    different = round((1 - agreement) * images)
    text = f"answers differ on {different} of {images} images: {100 * agreement:.1f} %, at least {100 * allowed:.1f} %"
    if (enough := fewest(allowed)) <= images:
        return text
    return f"{text}; {images} images are few: use {enough:,} or more, by --images and --count {enough}"


def fewest(agreement: float) -> int:
    """The fewest images of which one may get another answer where so large a share must get the same."""
    return ceil(round(1 / (1 - agreement), 6))


def _speeds(engines: Mapping[str, Engine], pixels: Array, batch: int, rounds: int) -> dict[str, Spread]:
    count = -(-batch // len(pixels))
    images = np.concatenate([pixels] * count)[:batch]
    runs = {name: partial(engine.run, images) for name, engine in engines.items()}
    return ratios(interleaved(runs, rounds=rounds), "eager")
