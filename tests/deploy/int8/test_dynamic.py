import numpy as np
import onnx
import pytest
from support.shipped import first, photos

from vitrail.deploy.artefact.certificate import at_size
from vitrail.deploy.artefact.opening import open_engine
from vitrail.deploy.int8.dynamic import with_dynamic_int8
from vitrail.deploy.int8.onnx_matmuls import find_layers
from vitrail.errors import CheckpointError


def test_every_matmul_with_stored_weights_is_int8(shipped):
    path = shipped[0] / "model.onnx"
    before, after = onnx.load(path), onnx.ModelProto.FromString(with_dynamic_int8(onnx, path.read_bytes(), path.parent))
    onnx.checker.check_model(after)
    assert find_layers(after) == []
    layers = find_layers(before)
    products = [node for node in after.graph.node if node.op_type == "MatMulInteger"]
    assert len(products) == len(layers) >= 8
    stored = {tensor.name: tensor for tensor in after.graph.initializer}
    assert all(stored[node.input[1]].data_type == onnx.TensorProto.INT8 for node in products)
    rounded = [node.input[0] for node in after.graph.node if node.op_type == "DynamicQuantizeLinear"]
    assert sorted(rounded) == sorted({layer.input for layer in layers}), "once for all that read it"
    assert sum(len(tensor.raw_data) for tensor in stored.values()) < path.stat().st_size / 2


@pytest.mark.parametrize("fixture", ["shipped", "shipped_numbers"])
def test_answers_are_near_those_of_float32(fixture, request):
    path = request.getfixturevalue(fixture)[0] / "model.onnx"
    plain, small = (open_engine(path, threads=1, dynamic=way) for way in (False, True))
    pixels = at_size(photos(20), (24, 16), plain.preprocess)
    cosine = plain.task.agreement(plain.run(pixels), small.run(pixels)).cosine
    assert 0.98 < cosine < 1
    assert "dynamic int8" in small.backend
    assert np.isfinite(first(small.run(pixels[:1]))).all()


def test_a_damaged_file_is_refused(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"no model at all")
    with pytest.raises(CheckpointError, match=r"a\.onnx"):
        open_engine(tmp_path / "a.onnx", dynamic=True)
