"""Engines for the files that `vitrail export` writes: a .pt2, an .onnx or an OpenVINO .xml."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.checksums import check_file
from vitrail.deploy.artefact.card import KEY, Card
from vitrail.deploy.artefact.engine import Array, Engine, quiet
from vitrail.deploy.artefact.onnx_check import LIMIT, check_onnx
from vitrail.deploy.artefact.openvino_check import check_openvino
from vitrail.deploy.artefact.pt2_archive import safe_archive
from vitrail.deploy.artefact.signature import TensorInfo, check_signature
from vitrail.deploy.int8.dynamic import with_dynamic_int8
from vitrail.errors import CheckpointError, ConfigError
from vitrail.files import open_regular, read_bytes
from vitrail.hardware import CAP, bf16_works, room_for_signals

_TYPES = {"tensor(uint8)": "uint8", "tensor(float)": "float32", "u8": "uint8", "f32": "float32"}
_FORMAT = "session.load_model_format"
_BESIDE = "session.model_external_initializers_file_folder_path"


class ExportedEngine(Engine):
    """A .pt2 of torch.export."""

    def __init__(self, path: Path) -> None:
        check_file(path)
        with open_regular(path) as file:
            archive, card = safe_archive(file, path)
        with quiet():
            try:
                program = torch.export.load(archive)
                self.program, (inputs, outputs) = program.module(), _signature_of_program(program)
            except Exception as error:  # of many types, where a graph is not whole
                raise CheckpointError(f"{path} is not a program of torch.export, or is damaged: {error}") from error
        super().__init__(path, Card.from_json(card, name=str(path)))
        check_signature(path, inputs, outputs, task=self.task)

    @property
    def backend(self) -> str:
        """Library and precision."""
        return f"torch {torch.__version__}, exported {self.card.precision}"

    @torch.inference_mode()
    def run(self, images: Array) -> dict[str, Array]:
        """Uint8 B H W C -> B ... by name."""
        return {name: values.numpy() for name, values in self.program(torch.from_numpy(images)).items()}


class OnnxEngine(Engine):
    """An .onnx in ONNX Runtime, on the CPU; `dynamic` runs one of float32 in int8 without calibration."""

    def __init__(self, path: Path, *, threads: int | None = None, dynamic: bool = False) -> None:
        self.dynamic, runtime = dynamic, needs("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        options.add_session_config_entry(_FORMAT, "ONNX")  # what was checked; one file can be of two formats at once
        if threads is not None:
            options.intra_op_num_threads = threads
        data = read_artefact(path)
        found = check_onnx(data, path)
        for name in (path.name, *found.external_files):
            check_file(path.with_name(name), data=data if name == path.name else None)
        if found.external_files:  # which the runtime looks for in this folder, as it gets the graph alone
            options.add_session_config_entry(_BESIDE, str(path.parent.absolute()))
        try:
            graph = with_dynamic_int8(needs("onnx"), data, path.parent) if dynamic else data
            self.session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except ConfigError:
            raise
        except Exception as error:  # the runtime's own errors have no common base
            raise CheckpointError(f"ONNX Runtime cannot open {path}: {str(error).splitlines()[0]}") from error
        room_for_signals()
        self.version = runtime.__version__
        self.names = [output.name for output in self.session.get_outputs()]
        super().__init__(path, Card.from_json(found.metadata.get(KEY), name=str(path)), threads=threads)
        ends = (self.session.get_inputs(), self.session.get_outputs())
        check_signature(path, *(list(map(_info_of_onnx, each)) for each in ends), task=self.task)

    @property
    def backend(self) -> str:
        """Library and precision."""
        return f"ONNX Runtime {self.version}, {'dynamic int8' if self.dynamic else self.card.precision}"

    def run(self, images: Array) -> dict[str, Array]:
        """Uint8 B H W C -> B ... by name."""
        return dict(zip(self.names, self.session.run(self.names, {"images": images}), strict=True))


class OpenVINOEngine(Engine):
    """An OpenVINO IR (.xml beside its .bin), on the CPU; `half` computes in bf16 what is not int8."""

    def __init__(self, path: Path, *, threads: int | None = None, half: bool = False) -> None:
        if not bf16_works():
            os.environ.setdefault(*CAP)  # before OpenVINO's own oneDNN reads it: its int8 kernels die as torch's bf16
        openvino = needs("openvino")
        core, data = openvino.Core(), read_artefact(path)
        card = check_openvino(data, path)
        check_file(path, data=data)
        check_file(path.with_suffix(".bin"))
        # Mapped, not read; it must live as long as the model. An empty file cannot be mapped.
        file = path.with_suffix(".bin")
        self.weights: Array = np.memmap(file, np.uint8, "c") if file.stat().st_size else np.zeros(1, np.uint8)
        try:
            model = core.read_model(data.decode(), openvino.Tensor(self.weights, shared_memory=True))
        except RuntimeError as error:
            raise CheckpointError(f"OpenVINO cannot open {path}: {str(error).strip().splitlines()[-1]}") from error
        super().__init__(path, Card.from_json(card, name=str(path)), threads=threads)
        check_signature(
            path, *(list(map(_info_of_openvino, each)) for each in (model.inputs, model.outputs)), task=self.task
        )
        self.half = half
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "bf16" if half else "f32"}
        settings |= {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
        self.compiled = core.compile_model(model, "CPU", settings)
        room_for_signals()
        self.names = [output.get_any_name() for output in self.compiled.outputs]
        self.version = openvino.__version__.partition("-")[0]

    @property
    def backend(self) -> str:
        """Library and precision."""
        halved = {"float32": "bf16", "int8": "int8 with bf16"}
        return f"OpenVINO {self.version}, {halved[self.card.precision] if self.half else self.card.precision}"

    def run(self, images: Array) -> dict[str, Array]:
        """Uint8 B H W C -> B ... by name."""
        request = self.compiled.create_infer_request()  # one for each call: requests are not safe with threads
        found = request.infer({0: images})
        return {name: np.array(found[index]) for index, name in enumerate(self.names)}


def read_artefact(path: Path) -> bytes:
    """The bytes of an .onnx or .xml; CheckpointError where it is not a regular file, or larger than one can be."""
    try:
        return read_bytes(path, LIMIT)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error


def _signature_of_program(program: torch.export.ExportedProgram) -> tuple[list[TensorInfo], list[TensorInfo]]:
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature, spec = program.graph_signature, program.call_spec.out_spec
    outputs = zip(spec.context if spec is not None else (), signature.user_outputs, strict=True)
    return [_info_of_tensor(name, values[name]) for name in signature.user_inputs], [
        _info_of_tensor(name, values[node]) for name, node in outputs
    ]


def _info_of_tensor(name: str, value: Any) -> TensorInfo:
    last = value.shape[-1] if value.ndim else None
    return TensorInfo(
        name, str(value.dtype).removeprefix("torch."), value.ndim, last if isinstance(last, int) else None
    )


def _info_of_onnx(end: Any) -> TensorInfo:
    last = end.shape[-1] if end.shape else None
    return TensorInfo(end.name, _TYPES.get(end.type, end.type), len(end.shape), last if isinstance(last, int) else None)


def _info_of_openvino(end: Any) -> TensorInfo:
    shape, kind = end.partial_shape, end.element_type.get_type_name()
    known = not shape.rank.is_dynamic
    last = shape[shape.rank.get_length() - 1] if known and shape.rank.get_length() else None
    return TensorInfo(
        min(end.names, default=""),
        _TYPES.get(kind, kind),
        shape.rank.get_length() if known else None,
        None if last is None or last.is_dynamic else last.get_length(),
    )


def needs(name: str) -> Any:
    """A library that exported models need; ConfigError says how to install it."""
    if name == "openvino":
        # Else OpenVINO would send usage statistics to its makers, from forks of this process; it does without this.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        with_onnx = "onnxruntime onnx onnxscript" if name.startswith("onnx") else name
        raise ConfigError(
            f"{name} is not installed: pip install {with_onnx} (in a checkout: pip install -e '.[deploy]')"
        ) from error
