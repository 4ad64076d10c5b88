"""From a run to a folder of artefacts, each with its proof: `vitrail export`."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitrail.config import Config
from vitrail.deploy.calibration import Calibration
from vitrail.deploy.card import Card, Opened
from vitrail.deploy.certificate import Certificate, CertifyConfig, at_size, certify
from vitrail.deploy.engine import Engine, TorchEngine, open_engine
from vitrail.deploy.export import to_any_size, to_program, write_onnx, write_openvino, write_torch
from vitrail.deploy.quantise import QuantiseConfig, Quantised, quantise
from vitrail.deploy.servable import LEAST_STEPS
from vitrail.errors import ConfigError, Unsupported
from vitrail.report import Report, Section, Text

Target = Literal["torch", "onnx", "openvino"]
TARGETS: tuple[Target, ...] = ("torch", "onnx", "openvino")


@dataclass(frozen=True, kw_only=True)
class ShipConfig(Config):
    """Which artefacts, and how they are proved; `force` writes those outside tolerance as well.

    With `any_size` the model works at the size of its pictures, where its family allows it.
    """

    targets: tuple[Target, ...] = TARGETS
    any_size: bool = False
    force: bool = False
    certify: CertifyConfig = CertifyConfig()
    quantise: QuantiseConfig = QuantiseConfig()


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """The artefacts that were written, why others were not, and the certificate as a report."""

    files: tuple[Path, ...]
    refused: Mapping[str, str]
    report: Report


def ship(
    opened: Opened, images: Sequence[Tensor], out: Path, config: ShipConfig, *,
    calibration: Sequence[Tensor] | None = None, confidence: Calibration | None = None, licence: str | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Shipped:  # fmt: skip
    """Exports a run, proves each artefact on real images uint8 C H W, and writes those that pass into a folder.

    With `calibration`, other real images, there are artefacts in int8, too; `confidence` goes into their cards.
    """
    if not config.targets:
        raise ConfigError(f"nothing to export to; name some of {', '.join(TARGETS)}")
    out.mkdir(parents=True, exist_ok=True)
    reference = TorchEngine("eager", opened)
    card = Card.of(opened, calibration=confidence, licence=licence, recipe=recipe)
    with tempfile.TemporaryDirectory(dir=out, prefix=".making-") as folder:
        work = Path(folder)
        made, refused, quantised = _make(reference, card, calibration, work, config)
        engines: dict[str, Engine] = {path.name: open_engine(path) for path in made}
        certificate = certify(reference, engines, images, config.certify)
        del engines  # files are moved below
        passed = [path for path in made if config.force or not certificate.faults(path.name)]
        hint = "(--force writes it all the same)"
        refused |= {path.name: f"{certificate.faults(path.name)[0]} {hint}" for path in made if path not in passed}
        files = tuple(_moved(path, out) for path in passed)
    told = _more(quantised, refused, forced=_forced(certificate, passed))
    report = certificate.write(out, (Text("Sizes of images", _sizes(reference)), *told))
    return Shipped(files=files, refused=refused, report=report)


def _make(
    reference: TorchEngine, card: Card, calibration: Sequence[Tensor] | None, work: Path, config: ShipConfig
) -> tuple[list[Path], dict[str, str], Quantised | None]:
    """The artefacts asked for, in a working folder; those that cannot be made, with the reason."""
    made: list[Path] = []
    refused: dict[str, str] = {}
    if config.any_size:
        reference.module, program = to_any_size(reference.module)
        card = replace(card, step=reference.module.pixels.step)
    else:
        program = to_program(reference.module)
    wanted = config.targets
    if "torch" in wanted:
        made.append(write_torch(program, card, work / "model.pt2"))
    if "onnx" not in wanted and "openvino" not in wanted:
        if calibration is not None:
            raise ConfigError("int8 artefacts are ONNX and OpenVINO files; export to one of these, too")
        return made, refused, None
    plain = write_onnx(program, card, work / "model.onnx")
    quantised = None
    if calibration is not None:
        sizes = config.certify.sizes(reference.image_size)
        pixels = [at_size(calibration, size, reference) for size in sizes]
        try:
            quantised = quantise(plain, work / "model.int8.onnx", pixels, config.quantise)
        except Unsupported as error:
            refused["model.int8"] = str(error)
    if quantised is not None and not quantised.enough:
        refused["model.int8"] = "int8 failed: no layer could stay in it; see the layers below"
    sources = [plain, quantised.path] if quantised is not None and quantised.enough else [plain]
    for source in sources:
        if "onnx" in wanted:
            made.append(source)
        if "openvino" in wanted:
            made.append(write_openvino(source, open_engine(source).card, source.with_suffix(".xml")))
    return made, refused, quantised


def _moved(path: Path, out: Path) -> Path:
    """An artefact and what stands beside it, in the place where it stays."""
    for beside in (".bin", ".onnx.data"):
        if path.with_suffix(beside).is_file() and path.suffix != ".pt2":
            path.with_suffix(beside).replace(out / path.with_suffix(beside).name)
    return path.replace(out / path.name)


def _sizes(reference: TorchEngine) -> str:
    (height, width), step = reference.image_size, reference.module.pixels.step
    if step is None:
        return f"The model works at {height} x {width}; pictures of any size are cut and resized to it inside."
    return (
        f"The model works at the size of its pictures, in whole steps of {step} pixels, {LEAST_STEPS} or more a side; "
        f"it was trained at {height} x {width}."
    )


def _forced(certificate: Certificate, passed: Sequence[Path]) -> list[str]:
    return [f"{path.name} ({faults[0]})" for path in passed if (faults := certificate.faults(path.name))]


def _more(quantised: Quantised | None, refused: Mapping[str, str], *, forced: Sequence[str]) -> tuple[Section, ...]:
    told: list[Section] = []
    if refused:
        told.append(Text("Not written", "; ".join(f"{name}: {why}" for name, why in refused.items()) + "."))
    if forced:
        told.append(Text("Written by force", "; ".join(forced) + "."))
    return (*told, *(() if quantised is None else quantised.sections()))
