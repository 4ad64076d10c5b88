"""Every family exports; the numbers are those of the eager model."""

import numpy as np
import onnx
import pytest
import torch
from support.registered import one_of_each_family
from support.shipped import first, trained

from vitrail.deploy.artefact.card import KEY, Card
from vitrail.deploy.artefact.engine import TorchEngine, servable
from vitrail.deploy.artefact.export import OPSET, to_program, untraced, write_onnx, write_openvino, write_torch
from vitrail.deploy.artefact.opening import open_engine
from vitrail.errors import Unsupported


# To write ONNX takes torch 3 to 13 s a family, however small. `shipped` is a ViT in every kind of artefact, and
# `shipped_numbers` one with convolutions; that each family has a graph is part of the model contract.
@pytest.mark.slow
@pytest.mark.parametrize("name", one_of_each_family())
def test_family_exports_to_every_kind_of_artefact(name, tmp_path):
    model = trained(name)
    eager, card = TorchEngine(model), Card.of(model)
    program = to_program(eager.module)
    images = np.random.default_rng(0).integers(0, 256, (3, 60, 50, 3), dtype=np.uint8)
    wanted = first(eager.run(images))
    plain = write_onnx(program, card, tmp_path / "m.onnx")
    made = (write_torch(program, card, tmp_path / "m.pt2"), plain, write_openvino(plain, card, tmp_path / "m.xml"))
    for path in made:
        engine = open_engine(path, threads=1)
        for batch in (images, images[:1, :33]):
            expected = wanted if len(batch) == 3 else first(eager.run(batch))
            np.testing.assert_allclose(
                first(engine.run(batch)), expected, atol=1e-4 * np.abs(expected).max(), rtol=1e-3
            )
        assert engine.card.family == card.family


def test_onnx_names_its_opset_inputs_and_card(shipped):
    model = onnx.load(shipped[0] / "model.onnx")
    onnx.checker.check_model(model)
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == OPSET
    (images,) = model.graph.input
    assert images.name == "images"
    assert [dim.dim_param for dim in images.type.tensor_type.shape.dim] == ["batch", "height", "width", "channels"]
    assert [value.name for value in model.graph.output] == ["logits", "probabilities"]
    assert Card.from_json({p.key: p.value for p in model.metadata_props}[KEY], name="x").opset == OPSET


def test_no_artefact_has_paths_of_this_machine(shipped):
    for file in shipped[0].iterdir():
        assert b"site-packages" not in file.read_bytes(), file
        assert __file__.rpartition("/tests/")[0].encode() not in file.read_bytes(), file


def test_outputs_have_the_names_of_the_task(shipped_numbers):
    graph = onnx.load(shipped_numbers[0] / "model.onnx").graph
    assert [value.name for value in graph.output] == ["numbers"]


def test_a_model_without_a_graph_says_why():
    module = servable(trained())

    class Wild(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1)[:, :5] * float(images.sum())  # a number that depends on the data

    module.task.backbone = Wild()
    with pytest.raises(Unsupported, match="Wild"):
        to_program(module)


def test_traces_are_off_while_a_graph_is_made_and_on_again():
    before = getattr(torch.fx.config, "do_not_emit_stack_traces", None)
    if before is None:
        pytest.skip("this torch has no such option")
    with pytest.raises(KeyboardInterrupt), untraced():
        assert torch.fx.config.do_not_emit_stack_traces
        raise KeyboardInterrupt
    assert torch.fx.config.do_not_emit_stack_traces == before
