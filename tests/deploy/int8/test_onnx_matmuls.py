import numpy as np
import onnx

from vitrail.deploy.int8.onnx_matmuls import find_layers, to_int8


def test_layers_have_their_names_and_heads_stay(shipped):
    names = [layer.name for layer in find_layers(onnx.load(shipped[0] / "model.onnx"))]
    inside = ("attention.qkv", "attention.projection", "mlp.fc1", "mlp.fc2")
    assert set(names) >= {f"blocks.{block}.{part}" for block in (0, 1) for part in inside}
    assert "head" not in names
    assert len(set(names)) == len(names)


def test_levels_by_hand():
    weights = np.array([[1.27, -2.0], [0.5, 1.0]], np.float32)
    levels, scale = to_int8(weights)
    np.testing.assert_allclose(scale, [0.01, 2 / 127], rtol=1e-6)
    assert levels.tolist() == [[127, -127], [50, 64]]
