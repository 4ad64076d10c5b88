import numpy as np
import onnx
import pytest
from shipped import photos

from vitrail.deploy.certificate import at_size, differences
from vitrail.deploy.dynamic import with_dynamic_int8
from vitrail.deploy.engine import open_engine
from vitrail.deploy.products import find_layers
from vitrail.errors import CheckpointError


def test_every_product_with_stored_weights_is_int8(shipped):
    path = shipped[0] / "model.onnx"
    before, after = onnx.load(path), onnx.ModelProto.FromString(with_dynamic_int8(onnx, path))
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


def test_answers_are_near_those_of_float32(shipped):
    plain, small = (open_engine(shipped[0] / "model.onnx", threads=1, dynamic=way) for way in (False, True))
    pixels = at_size(photos(20), (24, 16), plain)
    _, cosine, _ = differences(plain.run(pixels), small.run(pixels))
    assert 0.98 < cosine < 1
    assert "dynamic int8" in small.backend
    assert np.isfinite(small.run(pixels[:1])).all()


def test_a_damaged_file_is_told(tmp_path):
    (tmp_path / "a.onnx").write_bytes(b"no model at all")
    with pytest.raises(CheckpointError, match=r"a\.onnx"):
        open_engine(tmp_path / "a.onnx", dynamic=True)
