"""Proof that an artefact is the model it was made from: errors, agreement and speed on real images.

For each artefact, batch and size of images: the largest error, the cosine and the top-1 agreement with the eager model,
and how many times as fast it is, measured in turns.
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
from vitrail.deploy.engine import PROOF, Array, Engine
from vitrail.deploy.identity import files_of
from vitrail.deploy.timing import Spread, interleaved, machine, ratios
from vitrail.errors import DataError
from vitrail.report import Facts, Report, Section, Table, Text, Unit, Value

CLOSE = 0.5  # points of top-1 agreement that int8 may lose


class Tolerance(NamedTuple):
    """What an artefact of some precision may differ by; errors are relative to the largest logit."""

    error: float
    cosine: float
    agreement: float


TOLERANCES = {
    "float32": Tolerance(1e-3, 0.99999, 0.999),
    "int8": Tolerance(float("inf"), 0.95, 1 - CLOSE / 100),
}


@dataclass(frozen=True, kw_only=True)
class CertifyConfig(Config):
    """On what an artefact is proved: batches, sizes beside the model's own, images, and rounds of timing."""

    batches: tuple[Count, ...] = (1, 16)
    scales: tuple[float, ...] = (1.0, 1.5)  # sides of the images, as multiples of the model's
    images: Count = 200
    rounds: Count = 5

    def sizes(self, own: tuple[int, int]) -> list[tuple[int, int]]:
        """The sizes of images, height and width, at which a model of some size is proved."""
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
    wrong: str | None  # what is outside the tolerance

    @property
    def verdict(self) -> str:
        """In two words; the numbers stand beside it."""
        return "passed" if self.wrong is None else f"failed: {self.wrong.split()[0]}"


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The rows of all artefacts, and what they were measured on."""

    rows: tuple[Row, ...]
    about: str
    images: int
    bytes: Mapping[str, int]  # of each artefact's files

    def faults(self, artefact: str) -> list[str]:
        """What is outside the tolerance of an artefact; none where it passed."""
        return [row.wrong for row in self.rows if row.artefact == artefact and row.wrong is not None]

    def report(self, more: Sequence[Section] = ()) -> Report:
        """The certificate as a page, with what else a reader should know below."""
        facts: dict[str, Value] = {"model": self.about, "machine": machine(), "images": self.images}
        facts |= self.bytes
        units: dict[str, Unit] = dict.fromkeys(self.bytes, "bytes")
        rows: list[dict[str, Value]] = [
            {
                "artefact": row.artefact, "batch": row.batch, "image": f"{row.size[0]}x{row.size[1]}",
                "error": float(f"{row.error:.1e}"), "cosine": round(row.cosine, 5), "agreement": row.agreement,
                "times eager": str(row.speed), "verdict": row.verdict,
            }
            for row in self.rows
        ]  # fmt: skip
        return Report(
            "Certificate",
            (
                Facts("Measured on", facts, units),
                _part("Artefacts beside the eager model", ("error", "cosine", "agreement", "verdict"), rows),
                _part("How fast they are", ("times eager",), rows),
                Text("How to read it", _LEGEND),
                *more,
            ),
        )

    def write(self, folder: Path, more: Sequence[Section] = ()) -> Report:
        """certificate.html and certificate.json in a folder."""
        report = self.report(more)
        report.to_html(folder / "certificate.html")
        report.to_json(folder / PROOF)
        return report


def _part(title: str, told: Sequence[str], rows: Sequence[Mapping[str, Value]]) -> Table:
    """Some of what is known of each artefact at each batch and size: so many columns fit into a narrow terminal."""
    columns: dict[str, Unit] = dict.fromkeys(("artefact", "batch", "image", *told), "")
    columns |= {"agreement": "share"} if "agreement" in told else {}
    return Table(title, columns, [{name: row[name] for name in columns} for row in rows])


_LEGEND = (
    "Every artefact and the eager float32 model answered the same real images. Error is the largest difference of "
    "logits over the largest logit; cosine is the least of all images; agreement is the share of images with the same "
    "likeliest class. Speed is the eager model's time over the artefact's in the same round: the median, and the "
    "range of the middle half; both include the preprocessing. An artefact outside its tolerance is not written "
    "unless forced. Ways to run a file in another precision than its own (OpenVINO's bf16, int8 without calibration) "
    "are no artefacts: `vitrail bench` measures their speed and agreement, and never chooses one that disagrees."
)


def certify(
    reference: Engine, artefacts: Mapping[str, Engine], images: Sequence[Tensor], config: CertifyConfig | None = None
) -> Certificate:
    """Measures each artefact beside the eager model on images uint8 C H W; see `Certificate`."""
    config = config or CertifyConfig()
    pictures = list(images[: config.images])
    if not pictures:
        raise DataError("a certificate needs pictures to prove an artefact on; there are none")
    rows = []
    for size in config.sizes(reference.image_size):
        pixels = at_size(pictures, size, reference)
        expected = in_batches(reference, pixels, max(config.batches))
        for batch in config.batches:
            speeds = _speeds({"eager": reference, **artefacts}, pixels, batch, config.rounds)
            for name, engine in artefacts.items():
                found = in_batches(engine, pixels, batch)
                rows.append(_row(name, engine, (batch, size), (expected, found), speeds[name]))
    order = {name: place for place, name in enumerate(artefacts)}
    return Certificate(
        rows=tuple(sorted(rows, key=lambda row: order[row.artefact])),
        about=reference.about,
        images=len(pictures),
        bytes={name: file_bytes(engine.source) for name, engine in artefacts.items()},
    )


def at_size(images: Sequence[Tensor], size: tuple[int, int], engine: Engine) -> Array:
    """Pictures as one array uint8 B H W C of a size, in the channels that the model takes."""
    if size == engine.image_size:
        made = [engine.fitted([image])[0] for image in images]
    else:
        made = [_resized(image, size, engine) for image in images]
    return np.ascontiguousarray(np.stack([image.permute(1, 2, 0).numpy() for image in made]))


def _resized(image: Tensor, size: tuple[int, int], engine: Engine) -> Tensor:
    """C H W -> c *size, uint8."""
    pixels = F.interpolate(image[None], size=size, mode="bicubic", antialias=True)[0]
    return pixels.expand(max(pixels.shape[0], engine.card.channels), -1, -1)


def in_batches(engine: Engine, pixels: Array, batch: int) -> Array:
    """The logits of all images, some at a time."""
    return np.concatenate([engine.run(pixels[start : start + batch]) for start in range(0, len(pixels), batch)])


def differences(expected: Array, found: Array) -> tuple[float, float, float]:
    """Largest error over the largest logit, least cosine, and top-1 agreement of logits B K."""
    error = float(np.abs(expected - found).max() / max(np.abs(expected).max(), 1e-12))
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(found, axis=1)
    cosine = float(((expected * found).sum(axis=1) / np.maximum(norms, 1e-12)).min())
    return error, cosine, float((expected.argmax(axis=1) == found.argmax(axis=1)).mean())


def file_bytes(source: str | Path) -> int:
    """The size of an artefact: its file, and the weights that stand beside it."""
    return sum(file.stat().st_size for file in files_of(source))


def _row(name: str, engine: Engine, at: tuple[int, tuple[int, int]], logits: tuple[Array, Array], speed: Spread) -> Row:
    error, cosine, agreement = differences(*logits)
    allowed = TOLERANCES[engine.card.precision]
    wrong = None
    if not np.isfinite(logits[1]).all():
        wrong = "logits that are no numbers"
    elif not error <= allowed.error:
        wrong = f"error {error:.1e}, allowed {allowed.error:.0e}"
    elif not cosine >= allowed.cosine:
        wrong = f"cosine {cosine:.5f}, at least {allowed.cosine}"
    elif not agreement >= allowed.agreement:
        wrong = _disagreement(agreement, allowed.agreement, len(logits[0]))
    return Row(
        artefact=name, precision=engine.card.precision, batch=at[0], size=at[1], error=error, cosine=cosine,
        agreement=agreement, speed=speed, wrong=wrong,
    )  # fmt: skip


def _disagreement(agreement: float, allowed: float, pictures: int) -> str:
    """How far answers differ; and, of so few pictures that one other answer is too many, how many would tell more."""
    others = f"{round((1 - agreement) * pictures)} of {pictures} pictures differ"
    told = f"agreement {100 * agreement:.1f} % ({others}), at least {100 * allowed:.1f} %"
    if (enough := fewest(allowed)) <= pictures:
        return told
    alone = f"with {pictures} pictures one other answer is {100 / pictures:.1f} % already"
    return f"{told}; {alone}: judge on {enough:,} or more, by --images and --count {enough}"


def fewest(agreement: float) -> int:
    """The fewest pictures of which one may get another answer where so large a share must get the same."""
    return ceil(round(1 / (1 - agreement), 6))


def _speeds(engines: Mapping[str, Engine], pixels: Array, batch: int, rounds: int) -> dict[str, Spread]:
    count = -(-batch // len(pixels))
    images = np.concatenate([pixels] * count)[:batch]
    runs = {name: partial(engine.run, images) for name, engine in engines.items()}
    return ratios(interleaved(runs, rounds=rounds), "eager")
