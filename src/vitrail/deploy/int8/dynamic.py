"""int8 without calibration: weights are int8, and the range of an activation is measured in every run.

It is the range of a whole batch, so an answer may depend on the other images of its batch.
"""

from pathlib import Path
from typing import Any

from vitrail.deploy.int8.onnx_matmuls import Layer, find_layers, to_int8


def with_dynamic_int8(onnx: Any, data: bytes, folder: Path) -> bytes:
    """The graph of a float32 .onnx with its MatMuls of stored weights in int8; `onnx` is the library.

    `data` is the content of a file that was checked, and `folder` has the weights beside it, if any.
    """
    model = onnx.load_model_from_string(data)
    onnx.load_external_data_for_model(model, str(folder))
    layers = {layer.node: layer for layer in find_layers(model)}
    nodes: list[Any] = []
    done: set[str] = set()
    for node in model.graph.node:
        if node.name in layers:
            nodes += _matmul(onnx, model.graph, layers[node.name], node.output[0], rounded=done)
        else:
            nodes.append(node)
    used = {name for node in nodes for name in node.input}
    left = [tensor for tensor in model.graph.initializer if tensor.name in used]
    for field, values in ((model.graph.node, nodes), (model.graph.initializer, left)):
        del field[:]
        field.extend(values)
    graph: bytes = model.SerializeToString()
    return graph


def _matmul(onnx: Any, graph: Any, layer: Layer, output: str, *, rounded: set[str]) -> list[Any]:
    """Quantises the activation, unless done before; multiplies in int8; scales back. ONNX Runtime fuses these."""
    levels, scale = to_int8(layer.weights)
    for part, values in (("int8", levels), ("scale", scale)):
        graph.initializer.append(onnx.numpy_helper.from_array(values, f"{layer.node}.{part}"))
    make, name = onnx.helper.make_node, layer.input
    activation = [f"{name}.levels", f"{name}.scale", f"{name}.zero"]
    made = [] if name in rounded else [make("DynamicQuantizeLinear", [name], activation)]
    rounded.add(name)
    whole, scales = f"{layer.node}.whole", f"{layer.node}.scales"
    return [
        *made,
        make("Mul", [f"{name}.scale", f"{layer.node}.scale"], [scales]),
        make("MatMulInteger", [f"{name}.levels", f"{layer.node}.int8", f"{name}.zero"], [whole]),
        make("Cast", [whole], [f"{whole}.float"], to=onnx.TensorProto.FLOAT),
        make("Mul", [f"{whole}.float", scales], [output]),
    ]
