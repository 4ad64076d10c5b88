"""One way to run a model, whatever it was made into: a run, a .pt2, an .onnx or an OpenVINO .xml.

engine = open_engine("dist/model.onnx")
logits = engine.predict([decode(data, channels=3)])  # Tensor B K
engine.labels, engine.image_size, engine.about
"""

import contextlib
import copy
import importlib
import json
import os
import warnings
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data.cache import fit
from vitrail.deploy.card import KEY, Card, Opened
from vitrail.deploy.dynamic import with_dynamic_int8
from vitrail.deploy.servable import Pixels, Servable
from vitrail.errors import CheckpointError, ConfigError, InputError
from vitrail.hardware import CAP, bf16_works, room_for_signals

Array = np.ndarray[Any, Any]
Image = Tensor | Array

ARTEFACTS = (".pt2", ".onnx", ".xml")  # suffixes of what `vitrail export` writes
CHOICE = "fastest.json"  # in a folder of artefacts: the one that `vitrail bench` found fastest on this machine
PROOF = "certificate.json"  # in a folder that `vitrail export` wrote


# Weights become constants of the code; what was tried on the way to it is not told.
_INDUCTOR = {"freezing": True, "autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}


class Engine(ABC):
    """A model ready to answer; engines are made by `open_engine` and may be called from several threads."""

    half = dynamic = False  # whether in bf16 what is not int8; whether int8 without calibration

    def __init__(self, source: str | Path, card: Card, *, threads: int | None = None) -> None:
        self.source, self.card, self.threads = str(source), card, threads  # as asked for; None is up to the backend

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits."""
        return self.card.labels

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width that the model works at; pictures may have any."""
        return self.card.image_size

    @property
    def about(self) -> str:
        """What the model is, in one sentence."""
        return self.card.about

    @property
    @abstractmethod
    def backend(self) -> str:
        """What runs it, and in which precision: "ONNX Runtime 1.23, int8"."""

    @abstractmethod
    def run(self, images: Array) -> Array:
        """The graph itself: uint8 B H W C at one size, any -> logits float32 B K."""

    def predict(self, images: Sequence[Image] | Tensor) -> Tensor:
        """Logits B K of pictures, each of its own size: uint8 Tensors C H W (a batch is B C H W) or arrays H W [C]."""
        batch = self.fitted(images)  # B C H W
        if not len(batch):
            return torch.zeros(0, len(self.labels))
        return torch.from_numpy(self.run(np.ascontiguousarray(batch.permute(0, 2, 3, 1).numpy())))  # B H W C

    def fitted(self, images: Sequence[Image] | Tensor) -> Tensor:
        """Pictures of any size as one batch of the model's: uint8 B C *image_size."""
        size, channels = self.card.image_size, self.card.channels
        if isinstance(images, Tensor) and images.ndim == 4:
            return fit(images.cpu(), size=size, channels=channels)
        fitted = [fit(_picture(image)[None], size=size, channels=channels) for image in images]
        return torch.cat(fitted) if fitted else torch.zeros(0, channels, *size, dtype=torch.uint8)

    def probabilities(self, logits: Tensor) -> Tensor:
        """B K -> B K: how likely each class is, or each label on its own."""
        return logits.sigmoid() if self.card.multi_label else logits.softmax(dim=1)

    def chosen(self, probabilities: Tensor) -> Tensor:
        """B K -> B K bool: the likeliest class, or all labels whose threshold is reached."""
        if not self.card.multi_label:
            return torch.nn.functional.one_hot(probabilities.argmax(dim=1), len(self.labels)).bool()
        return probabilities >= torch.tensor(self.card.thresholds or (0.5,))


class TorchEngine(Engine):
    """A run or a checkpoint, as it is; the measure of all others."""

    def __init__(self, source: str | Path, opened: Opened, *, device: str | torch.device = "cpu") -> None:
        super().__init__(source, Card.of(opened))
        self.device = torch.device(device)
        self.module = servable(opened, self.card).to(self.device)

    @property
    def backend(self) -> str:
        """What runs it."""
        return f"torch {torch.__version__}, eager {self.card.precision} on {self.device}"

    @torch.inference_mode()
    def run(self, images: Array) -> Array:
        """Uint8 B H W C -> logits B K."""
        logits, _ = self.module(torch.from_numpy(images).to(self.device))
        return logits.cpu().numpy()


class CompiledEngine(TorchEngine):
    """A run or a checkpoint, compiled for this processor: the first answer for each batch takes a minute.

    The preprocessing stays as it is, in float32; `half` runs all of the model in bf16.
    """

    def __init__(self, source: str | Path, opened: Opened, *, half: bool = False) -> None:
        super().__init__(source, opened)
        self.half, self.inductor = half, importlib.import_module("torch._inductor.config")
        # A copy, as the weights are cast and frozen into the code; whose run it is may still be in use.
        model = copy.deepcopy(self.module.model).to(torch.bfloat16 if half else torch.float32)
        self.compiled = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)

    @property
    def backend(self) -> str:
        """What runs it."""
        return f"torch {torch.__version__}, compiled {'bf16' if self.half else 'float32'}"

    @torch.inference_mode()
    def run(self, images: Array) -> Array:
        """Uint8 B H W C -> logits B K."""
        pixels = self.module.pixels(torch.from_numpy(images))
        with quiet(), self.inductor.patch(**_INDUCTOR):
            logits: Tensor = self.compiled(pixels.bfloat16() if self.half else pixels)
        return logits.float().numpy()


class ExportedEngine(Engine):
    """A .pt2 of torch.export."""

    def __init__(self, path: Path) -> None:
        extra = {KEY: ""}
        with quiet():
            try:
                self.program = torch.export.load(path, extra_files=extra).module()
            except (RuntimeError, ValueError, KeyError, AssertionError, zipfile.BadZipFile) as error:
                raise CheckpointError(f"{path} is no program of torch.export, or is damaged: {error}") from error
        super().__init__(path, Card.from_json(extra[KEY], name=str(path)))

    @property
    def backend(self) -> str:
        """What runs it."""
        return f"torch {torch.__version__}, exported {self.card.precision}"

    @torch.inference_mode()
    def run(self, images: Array) -> Array:
        """Uint8 B H W C -> logits B K."""
        logits: Tensor = self.program(torch.from_numpy(images))[0]
        return logits.numpy()


class OnnxEngine(Engine):
    """An .onnx in ONNX Runtime, on the CPU; one of float32 may be opened in int8 that needs no calibration."""

    def __init__(self, path: Path, *, threads: int | None = None, dynamic: bool = False) -> None:
        self.dynamic, runtime = dynamic, needs("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors alone
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            graph = with_dynamic_int8(needs("onnx"), path) if dynamic else str(path)
            self.session = runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime's own errors have no common base
            raise CheckpointError(f"ONNX Runtime cannot open {path}: {str(error).splitlines()[0]}") from error
        room_for_signals()
        self.version = runtime.__version__
        card = self.session.get_modelmeta().custom_metadata_map.get(KEY)
        super().__init__(path, Card.from_json(card, name=str(path)), threads=threads)

    @property
    def backend(self) -> str:
        """What runs it."""
        return f"ONNX Runtime {self.version}, {'dynamic int8' if self.dynamic else self.card.precision}"

    def run(self, images: Array) -> Array:
        """Uint8 B H W C -> logits B K."""
        logits: Array = self.session.run(["logits"], {"images": images})[0]
        return logits


class OpenVINOEngine(Engine):
    """An OpenVINO IR (.xml beside its .bin), on the CPU."""

    def __init__(self, path: Path, *, threads: int | None = None, half: bool = False) -> None:
        if not bf16_works():
            os.environ.setdefault(*CAP)  # before OpenVINO's own oneDNN reads it: its int8 kernels die as torch's bf16
        openvino = needs("openvino")
        core = openvino.Core()
        try:
            model = core.read_model(path)
            card = str(model.get_rt_info([KEY]).value) if model.has_rt_info([KEY]) else None
        except RuntimeError as error:
            raise CheckpointError(f"OpenVINO cannot open {path}: {str(error).strip().splitlines()[-1]}") from error
        super().__init__(path, Card.from_json(card, name=str(path)), threads=threads)
        self.half = half
        settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "bf16" if half else "f32"}
        settings |= {} if threads is None else {"INFERENCE_NUM_THREADS": threads}
        self.compiled = core.compile_model(model, "CPU", settings)
        room_for_signals()
        self.version = openvino.__version__.partition("-")[0]

    @property
    def backend(self) -> str:
        """What runs it."""
        halved = {"float32": "bf16", "int8": "int8 with bf16"}
        return f"OpenVINO {self.version}, {halved[self.card.precision] if self.half else self.card.precision}"

    def run(self, images: Array) -> Array:
        """Uint8 B H W C -> logits B K."""
        request = self.compiled.create_infer_request()  # one a call: requests are not safe with threads
        return np.array(request.infer({0: images})[0])


def open_engine(
    path: str | Path,
    *,
    open_run: Callable[[str | Path], Opened] | None = None,
    threads: int | None = None,
    half: bool = False,
    dynamic: bool = False,
) -> Engine:
    """The engine for an artefact, for the fastest one of a folder of them, or for a run or checkpoint.

    A run is opened by `open_run`, which is `vitrail.open_trained`: artefacts do not need the training side. `half` lets
    OpenVINO compute in bf16 what is not int8; `dynamic` makes int8 of a float32 .onnx, without calibration.
    """
    place = Path(path)
    if (place / CHOICE).is_file():
        place, fast, half, dynamic = _choice(place / CHOICE)
        threads = threads or fast
    elif (place / PROOF).is_file():
        place = _only(place)
    if place.suffix in ARTEFACTS:
        if not place.is_file():
            raise CheckpointError(f"there is no file {place}")
        if place.suffix == ".onnx":
            return OnnxEngine(place, threads=threads, dynamic=dynamic)
        return OpenVINOEngine(place, threads=threads, half=half) if place.suffix == ".xml" else ExportedEngine(place)
    if open_run is None:
        raise ConfigError(
            f"{path} is no artefact ({', '.join(ARTEFACTS)}); for a run or a checkpoint pass "
            "open_run=vitrail.open_trained, or export it first: vitrail export"
        )
    return TorchEngine(path, open_run(path))


def is_artefact(path: str | Path) -> bool:
    """Whether a path names something that `open_engine` opens without the training side."""
    return Path(path).suffix in ARTEFACTS or any((Path(path) / name).is_file() for name in (CHOICE, PROOF))


def artefacts_in(folder: Path) -> list[Path]:
    """The artefacts of a folder, in alphabetical order."""
    return sorted(path for path in folder.iterdir() if path.suffix in ARTEFACTS)


def servable(opened: Opened, card: Card) -> Servable:
    """A run's model with its preprocessing inside, in evaluation mode."""
    pixels = Pixels(image_size=card.image_size, mean=card.mean, std=card.std)
    return Servable(opened.task.backbone, pixels, multi_label=card.multi_label).eval()


def needs(name: str) -> Any:
    """A module of the extra `deploy`, or one sentence on how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"{name} is not installed; it comes with: pip install 'vitrail[deploy]'") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences what torch warns itself about while it exports and loads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _only(folder: Path) -> Path:
    """The one artefact of a folder in which none was chosen yet."""
    found = artefacts_in(folder)
    if not found:
        raise CheckpointError(f"{folder} holds no artefact ({', '.join(ARTEFACTS)}); its certificate says why")
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CheckpointError(f"{folder} holds {names}; name one, or let `vitrail bench {folder}` find the fastest")
    return found[0]


def _choice(file: Path) -> tuple[Path, int | None, bool, bool]:
    """The artefact that was measured to be the fastest, with how many threads, whether with bf16, whether dynamic."""
    try:
        choice = json.loads(file.read_text(encoding="utf-8"))
        half, dynamic = (bool(choice.get(way, False)) for way in ("half", "dynamic"))
        return file.parent / str(choice["artefact"]), choice["threads"], half, dynamic
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged; write it anew: vitrail bench {file.parent}") from error


def _picture(image: Image) -> Tensor:
    """One picture as uint8 C H W."""
    if isinstance(image, Tensor):
        pixels = image.cpu()
    else:
        pixels = torch.from_numpy(np.ascontiguousarray(image))
        pixels = pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1) if pixels.ndim == 3 else pixels
    if pixels.ndim != 3 or pixels.dtype != torch.uint8 or pixels.shape[0] not in (1, 3):
        raise InputError(
            f"a picture is {pixels.dtype} of shape {tuple(image.shape)}; it must be uint8: a Tensor C H W or an array "
            "H W [C], with 1 or 3 channels"
        )
    return pixels
