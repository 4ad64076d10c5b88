"""A graph whose inputs or outputs do not fit its task is refused when it is opened, in every format."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.abused import specimens
from torch import Tensor

from vitrail.deploy.artefact.card import KEY, Card
from vitrail.deploy.artefact.opening import open_engine
from vitrail.deploy.artefact.signature import IMAGES, TensorInfo, check_signature
from vitrail.errors import CheckpointError

TASK = Card.from_json(specimens.card(), name="card").task()
CLASSES = len(TASK.output_names)
PICTURES, LOGITS = TensorInfo(IMAGES, "uint8", 4), TensorInfo("logits", "float32", 2, CLASSES)


def test_a_signature_that_fits() -> None:
    check_signature(Path("a.onnx"), [PICTURES], [LOGITS, TensorInfo("more", "float32", 3)], task=TASK)
    check_signature(Path("a.xml"), [PICTURES._replace(axes=None)], [LOGITS._replace(axes=None, last=None)], task=TASK)


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [PICTURES, PICTURES],
        [PICTURES._replace(name="pictures")],
        [PICTURES._replace(dtype="float32")],
        [PICTURES._replace(axes=3)],
    ],
)
def test_inputs_that_do_not_fit(inputs: list[TensorInfo]) -> None:
    with pytest.raises(CheckpointError, match="uint8"):
        check_signature(Path("a.onnx"), inputs, [LOGITS], task=TASK)


@pytest.mark.parametrize(
    "outputs",
    [
        [],
        [LOGITS._replace(name="x" * 5000)] * 50,
        [LOGITS._replace(axes=1)],
        [LOGITS._replace(dtype="int64")],
        [LOGITS._replace(last=CLASSES + 1)],
        [LOGITS, TensorInfo("more", "float32", 1)],
    ],
)
def test_outputs_that_do_not_fit(outputs: list[TensorInfo]) -> None:
    with pytest.raises(CheckpointError, match=r"outputs|names") as caught:
        check_signature(Path("a.onnx"), [PICTURES], outputs, task=TASK)
    assert len(str(caught.value)) < 1000


class Renamed(torch.nn.Module):
    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"scores": images.float().mean(dim=(1, 2))}


def test_a_program_with_other_outputs(tmp_path: Path) -> None:
    images = torch.zeros(2, 16, 17, 3, dtype=torch.uint8)
    exported = torch.export.export(Renamed(), (images,), dynamic_shapes={"images": {0: torch.export.Dim("b", max=9)}})
    torch.export.save(exported, tmp_path / "model.pt2", extra_files={KEY: specimens.card()})
    with pytest.raises(CheckpointError, match="logits"):
        open_engine(tmp_path / "model.pt2")


@pytest.mark.parametrize(("old", "new"), [("logits", "scores"), ("images", "inputs")])
def test_an_onnx_with_other_names(tmp_path: Path, old: str, new: str) -> None:
    pytest.importorskip("onnxruntime")
    data = specimens.onnx_files()["model.onnx"].replace(b"\x06" + old.encode(), b"\x06" + new.encode())
    (tmp_path / "model.onnx").write_bytes(data)
    with pytest.raises(CheckpointError, match=old):
        open_engine(tmp_path / "model.onnx")


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO is not installed")
@pytest.mark.parametrize(("old", "new"), [("logits", "scores"), ("images", "inputs")])
def test_an_openvino_model_with_other_names(tmp_path: Path, old: str, new: str) -> None:
    for name, data in specimens.openvino_files().items():
        (tmp_path / name).write_bytes(data.replace(f'names="{old}"'.encode(), f'names="{new}"'.encode()))
    with pytest.raises(CheckpointError, match=old):
        open_engine(tmp_path / "model.xml")
