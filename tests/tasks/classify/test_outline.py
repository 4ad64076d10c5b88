"""A task can be outlined without its values, and without what computes on tensors that have none."""

import sys

import pytest
import torch
from support import processes

from vitrail import create
from vitrail.data.targets import ClassTarget, LabelsTarget, Target
from vitrail.models.checkpoint.outline import outlined
from vitrail.tasks.classify.one_class import ClassifyConfig

CODE = """
import sys
from vitrail import create
from vitrail.data.targets import ClassTarget
from vitrail.models.checkpoint.outline import outlined
from vitrail.tasks.classify.one_class import ClassifyConfig

schema = {"label": ClassTarget(classes=("a", "b"))}
outlined(lambda: ClassifyConfig().build(create("vit_tiny_patch16", depth=1, num_classes=2), schema), tensors=100)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch imports its compiler by itself")
def test_an_outline_does_not_import_the_compiler() -> None:
    done = processes.run([sys.executable, "-c", CODE])
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("target", [ClassTarget(classes=("a", "b", "c")), LabelsTarget(classes=("a", "b", "c"))])
def test_an_outline_has_the_shapes_of_the_task(target: Target) -> None:
    def build() -> torch.nn.Module:
        return ClassifyConfig().build(create("vit_tiny_patch16", depth=1, num_classes=3), {"label": target})

    found = [
        {name: buffer.shape for name, buffer in task.named_buffers()}
        for task in (build(), outlined(build, tensors=100))
    ]
    assert found[0] == found[1]
    assert "weights" in found[0]
