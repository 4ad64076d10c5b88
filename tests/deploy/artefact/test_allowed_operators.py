"""Every head computes with allowed operators: a new one shows here what it needs.

Heads are traced as torch.export does, but with fixed sizes, which takes a tenth of the time. Families and attention are
exported in their contract suites, which check the same; what preprocessing and free sizes add is in the artefacts that
other tests open.
"""

import importlib
from dataclasses import fields
from typing import Any

import pytest
import torch
from support.allowed import check_allowed
from support.registered import tiny
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.config import Choice
from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.data.targets.depth_target import DepthTarget
from vitrail.data.targets.mask_target import MaskTarget
from vitrail.deploy.artefact.allowed_operators import ATEN, ONNX, OPENVINO
from vitrail.deploy.artefact.pt2_graph import check_operator
from vitrail.deploy.artefact.runtimes import needs
from vitrail.models.heads import DepthHeadConfig, DetectorConfig, SegmenterConfig
from vitrail.tasks.depth import DepthConfig
from vitrail.tasks.detect import DetectConfig
from vitrail.tasks.segment import SegmentConfig

SMALL = {
    "dim": 16, "num_heads": 2, "hidden": 24, "encoder_depth": 1, "decoder_depth": 2, "queries": 5, "levels": 2,
    "widths": (8, 8, 8, 8), "blocks": 1,
}  # fmt: skip
CLASSES = ("cat", "dog")


def small(config: type[Choice]) -> Any:
    names = {field.name for field in fields(config)}
    return config(**{name: value for name, value in SMALL.items() if name in names})


class Graph(nn.Module):
    """What is exported of a task."""

    def __init__(self, task: Any) -> None:
        super().__init__()
        self.task = task.eval()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.task.graph(self.task.outputs(images))


@pytest.mark.parametrize("kind", [*DetectorConfig.kinds, *SegmenterConfig.kinds, *DepthHeadConfig.kinds])
def test_of_heads(kind):
    backbone = tiny("vit_tiny_patch16", num_classes=0, image_size=32)
    if kind in DetectorConfig.kinds:
        config = DetectConfig(head=small(DetectorConfig.kinds[kind]), most=4)
        task = config.build(backbone, {"boxes": BoxesTarget(classes=CLASSES, most=3)})
    elif kind in SegmenterConfig.kinds:
        task = SegmentConfig(head=small(SegmenterConfig.kinds[kind])).build(
            backbone, {"mask": MaskTarget(classes=CLASSES)}
        )
    else:
        task = DepthConfig(head=small(DepthHeadConfig.kinds[kind])).build(backbone, {"depth": DepthTarget()})
    images = torch.randn(2, 3, *backbone.config.image_size)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        check_allowed(make_fx(Graph(task), pre_dispatch=True)(images).graph)


def test_those_of_aten_exist_and_write_into_no_argument():
    for name in ATEN:
        packet = getattr(torch.ops.aten, name)
        schemas = {overload: getattr(packet, overload)._schema for overload in packet.overloads()}
        assert any(not schema.is_mutable for schema in schemas.values()) or name == "detach_", name
        for overload in (key for key, schema in schemas.items() if schema.is_mutable and name != "detach_"):
            with pytest.raises(ValueError, match="operator"):
                check_operator(f"torch.ops.aten.{name}.{overload}")


def test_none_of_onnx_has_a_graph():
    onnx = pytest.importorskip("onnx")
    for name in ONNX:
        attributes = onnx.defs.get_schema(name).attributes.values()
        assert onnx.defs.OpSchema.AttrType.GRAPH not in {one.type for one in attributes}, name


def test_those_of_openvino_exist():
    needs("openvino")
    opsets = [importlib.import_module(f"openvino.opset{number}") for number in (1, 15)]
    known = {name.replace("_", "").lower() for opset in opsets for name in dir(opset)}
    assert {name.lower() for name in OPENVINO} - known <= {"const"}
