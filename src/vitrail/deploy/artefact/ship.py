"""From a trained model to a folder of artefacts with a certificate: `vitrail export`."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from vitrail.checksums import read_checksums, remove_checksums, write_checksums
from vitrail.config import Config
from vitrail.deploy.artefact.card import Card
from vitrail.deploy.artefact.certificate import Certificate, CertifyConfig, at_size, certify
from vitrail.deploy.artefact.engine import Engine, TorchEngine
from vitrail.deploy.artefact.export import to_any_size, to_program, write_onnx, write_openvino, write_torch
from vitrail.deploy.artefact.fingerprint import files_of
from vitrail.deploy.artefact.opening import CERTIFICATE, open_engine
from vitrail.deploy.artefact.pixels import LEAST_STEPS
from vitrail.deploy.int8.quantise import QuantiseConfig, Quantised, quantise
from vitrail.errors import ConfigError, Unsupported, nearest
from vitrail.files import temporary_folder
from vitrail.locks import locked
from vitrail.report import Report, Section, Text
from vitrail.runs.trained import TrainedModel

Target = Literal["torch", "onnx", "openvino"]
TARGETS: tuple[Target, ...] = ("torch", "onnx", "openvino")


@dataclass(frozen=True, kw_only=True)
class ShipConfig(Config):
    """Which artefacts to write, and how they are compared with the model; `force` writes those outside tolerance too.

    With `any_size` the model works at the size of its images, where its family allows it.
    """

    targets: tuple[Target, ...] = TARGETS
    any_size: bool = False
    force: bool = False
    certify: CertifyConfig = CertifyConfig()
    quantise: QuantiseConfig = QuantiseConfig()

    def __post_init__(self) -> None:
        """Checks the names of the targets."""
        super().__post_init__()
        if not self.targets:
            raise ConfigError(f"no export target; give one or more of {', '.join(TARGETS)}")
        if wrong := [word for word in self.targets if word not in TARGETS]:
            raise ConfigError(f"unknown export target {wrong[0]!r}; {nearest(wrong[0], TARGETS)}")


@dataclass(frozen=True, kw_only=True, repr=False)
class Shipped:
    """The artefacts that were written, why others were not, and the certificate as a report."""

    files: tuple[Path, ...]
    refused: Mapping[str, str]
    report: Report

    def __repr__(self) -> str:
        refused = f"; not written: {', '.join(self.refused)}" if self.refused else ""
        return f"Shipped({', '.join(map(str, self.files)) or 'nothing'}{refused})"

    @property
    def refusal(self) -> str | None:
        """What was not written and why, in one sentence: those with the same reason together."""
        by_reason: dict[str, list[str]] = {}
        for name, why in self.refused.items():
            by_reason.setdefault(why, []).append(name)
        reasons = "; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items())
        return f"{len(self.refused)} not written; {reasons}" if reasons else None


def ship(
    trained: TrainedModel, images: Sequence[Tensor], out: Path, config: ShipConfig | None = None, *,
    calibration: Sequence[Tensor] | None = None, truth: Mapping[str, Tensor] | None = None, licence: str | None = None,
) -> Shipped:  # fmt: skip
    """Exports a model, compares each artefact with it on images uint8 C H W, and writes those that pass into a folder.

    With `calibration`, other real images, there are artefacts in int8, too; `truth` are the targets of these images, in
    pixels of the model's input, where they are known.
    """
    config = config or ShipConfig()
    out.mkdir(parents=True, exist_ok=True)
    trained = _on_cpu(trained)
    reference = TorchEngine(trained)
    card = Card.of(trained, licence=licence)
    with locked(out / ".export.lock", what=f"the export to {out}"), temporary_folder(out / "model") as work:
        made, refused, quantised = _make(reference, card, calibration, truth, work, config)
        engines: dict[str, Engine] = {path.name: open_engine(path) for path in made}
        certificate = certify(reference, engines, images, config.certify)
        del engines  # files are moved below
        passed = [path for path in made if config.force or not certificate.problems(path.name)]
        hint = "(--force writes it all the same)"
        refused |= {path.name: f"{certificate.problems(path.name)[0]} {hint}" for path in made if path not in passed}
        known = read_checksums(out)
        remove_checksums(out)
        files = tuple(_moved(path, out) for path in passed)
        more = _more(quantised, refused, forced=_forced(certificate, passed))
        report = certificate.write(out, (Text("Image sizes", _sizes(reference)), *more))
        names = [file.name for path in files for file in files_of(path)]
        write_checksums(out, [*names, CERTIFICATE], kept=known)
    return Shipped(files=files, refused=refused, report=report)


def _on_cpu(trained: TrainedModel) -> TrainedModel:
    """The model itself, or a copy of one on a GPU: graphs are made and run on the CPU."""
    if trained.device.type == "cpu":
        return trained
    task = copy.deepcopy(trained.task).cpu()
    return replace(trained, backbone=task.backbone, head=task)


def _make(  # noqa: PLR0917  (all of one export)
    reference: TorchEngine,
    card: Card,
    calibration: Sequence[Tensor] | None,
    truth: Mapping[str, Tensor] | None,
    work: Path,
    config: ShipConfig,
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
        pixels = [at_size(calibration, size, reference.preprocess) for size in sizes]
        try:
            quantised = quantise(plain, work / "model.int8.onnx", pixels, config.quantise, truth=truth)
        except Unsupported as error:
            refused["model.int8"] = str(error)
    if quantised is not None and not quantised.enough:
        refused["model.int8"] = "int8 failed: no layer could stay in it; see the layers in the certificate"
    sources = [plain, quantised.path] if quantised is not None and quantised.enough else [plain]
    for source in sources:
        if "onnx" in wanted:
            made.append(source)
        if "openvino" in wanted:
            made.append(write_openvino(source, open_engine(source).card, source.with_suffix(".xml")))
    return made, refused, quantised


def _moved(path: Path, out: Path) -> Path:
    """Moves an artefact and the weights beside it to the folder."""
    for beside in (".bin", ".onnx.data"):
        if path.with_suffix(beside).is_file() and path.suffix != ".pt2":
            path.with_suffix(beside).replace(out / path.with_suffix(beside).name)
    return path.replace(out / path.name)


def _sizes(reference: TorchEngine) -> str:
    (height, width), step = reference.image_size, reference.module.pixels.step
    if step is None:
        return f"The model works at {height} x {width}; images of any size are cropped and resized inside of the graph."
    return (
        f"The model works at the size of its images, in multiples of {step} pixels, at least {LEAST_STEPS * step} a "
        f"side; it was trained at {height} x {width}."
    )


def _forced(certificate: Certificate, passed: Sequence[Path]) -> list[str]:
    return [f"{path.name} ({problems[0]})" for path in passed if (problems := certificate.problems(path.name))]


def _more(quantised: Quantised | None, refused: Mapping[str, str], *, forced: Sequence[str]) -> tuple[Section, ...]:
    sections: list[Section] = []
    if refused:
        sections.append(Text("Not written", "; ".join(f"{name}: {why}" for name, why in refused.items()) + "."))
    if forced:
        sections.append(Text("Written by force", "; ".join(forced) + "."))
    return (*sections, *(() if quantised is None else quantised.sections()))
