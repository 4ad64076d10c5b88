"""The matrix products of an .onnx whose weights are stored, which int8 makes fast, and their weights in int8."""

import ast
import importlib
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
_MODEL, _TASK = "model.task.backbone.", "model.task."  # where the model, and what is beside it, are in `Servable`
_SCOPES = "pkg.torch.onnx.name_scopes"


class Layer(NamedTuple):
    """A MatMul with stored weights: its node in the graph, the name of its input, and weights K N."""

    name: str
    node: str
    input: str
    weights: Array


def find_layers(model: Any) -> list[Layer]:
    """The MatMuls with stored weights K N, by the names that the layers have in the model."""
    numpy_helper = importlib.import_module("onnx.numpy_helper")
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    found: list[Layer] = []
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored and len(stored[node.input[1]].dims) == 2:
            weights = numpy_helper.to_array(stored[node.input[1]])
            found.append(Layer(_layer_name(node), node.name, node.input[0], weights))
    return found


def to_int8(weights: Array) -> tuple[Array, Array]:
    """Weights K N -> levels K N and one scale per column N, symmetric."""
    scale = np.maximum(np.abs(weights).max(axis=0), 1e-12).astype(np.float32) / 127
    return np.clip(np.round(weights / scale), -127, 127).astype(np.int8), scale


def _layer_name(node: Any) -> str:
    """The layer that a node was made from, such as blocks.0.mlp.fc1."""
    text = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
    scopes = [scope for scope in ast.literal_eval(text)[:-1] if scope]
    return str(scopes[-1]).removeprefix(_MODEL).removeprefix(_TASK) if scopes else str(node.name)
