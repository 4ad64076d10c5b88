"""int8: per-channel weights, activations calibrated on real images, and floating point where int8 does harm.

Every `MatMul` of an .onnx with stored weights is a candidate; convolutions, norms, attention's own products and the
head stay as they are. Layers are ranked by how much int8 changes their output. Where the model answers more than half a
percent of the images differently, at any image size, as few as possible of the worst layers go back to floating point,
and the report names them. Boxes, masks and depth with labels are judged by their metric instead: it may lose half a
point.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.config import Config, Count, Rate
from vitrail.deploy.artefact.card import KEY, Card
from vitrail.deploy.artefact.certificate import CLOSE, TOLERANCES
from vitrail.deploy.artefact.engine import Array, Engine
from vitrail.deploy.artefact.fingerprint import file_bytes
from vitrail.deploy.artefact.runtimes import OnnxEngine, needs
from vitrail.deploy.int8.judge import UNLABELLED, ByAnswers, ByMetric, Closeness, Judge, Lost
from vitrail.deploy.int8.onnx_matmuls import Layer, find_layers, to_int8
from vitrail.errors import DataError, Unsupported
from vitrail.report import Facts, Section, Table, Text, Unit, Value

_LEVELS, _ROWS = 255, 256  # of an activation; rows of it that are kept to measure errors
_ENOUGH = round(100 / CLOSE)  # images of which one may get another answer
_TAILS = (0.0, 1e-5, 1e-4, 1e-3)  # shares that a range may leave out at each end
_LEGEND = (
    "Error: what int8 changes in a layer's output, relative to it. Outside: activations of other images beyond the "
    "range that calibration found, at the size where there are most."
)


@dataclass(frozen=True, kw_only=True)
class QuantiseConfig(Config):
    """How many images calibrate, how many at a time, how many validate, and how close to float32 answers must stay.

    Images that are not used for calibration validate the result; half of them where there are few, two thirds where
    they have labels.
    """

    calibrate: Count = 64
    batch: Count = 4
    validate: Count = 200
    cosine: Rate = TOLERANCES["int8"].cosine
    agreement: Rate = TOLERANCES["int8"].agreement


@dataclass
class Range:
    """The range of an activation, the share of other images' values outside of it, and rows of it R K."""

    low: float
    high: float
    outside: float
    rows: Array

    @property
    def scale(self) -> float:
        """The width of one of 256 levels."""
        return max((self.high - self.low) / _LEVELS, 1e-12)

    @property
    def zero(self) -> int:
        """The level that stands for 0."""
        return int(np.clip(round(-self.low / self.scale), 0, _LEVELS))

    def rounded(self, values: Array) -> Array:
        """Values as int8 would have them."""
        levels = np.clip(np.round(values / self.scale) + self.zero, 0, _LEVELS)
        return (levels - self.zero) * self.scale


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """The result: which layers stayed in floating point, how close answers are, and how small the file is."""

    path: Path
    kept: tuple[str, ...]
    errors: Mapping[str, float]  # of each layer's output, relative
    outside: Mapping[str, float]
    agreement: float
    cosine: float
    validated: int  # images
    bytes: tuple[int, int]  # before and after
    enough: bool
    lost: Lost | None = None  # of the metric, where labels are known

    def sections(self) -> tuple[Section, ...]:
        """For the certificate: the facts, the layers by sensitivity, and a sentence where int8 did harm."""
        most = "activations outside the calibrated range, most of any layer"
        facts: dict[str, Value] = {
            "layers in int8": len(self.errors) - len(self.kept),
            "layers kept in floating point": len(self.kept),
            "same answer as float32": self.agreement,
            "validation images": self.validated,
            "least cosine": f"{self.cosine:.5f}",
            "float32": self.bytes[0],
            "int8": self.bytes[1],
            most: max(self.outside.values(), default=0.0),
        }
        units: dict[str, Unit] = {"same answer as float32": "share", most: "share"}
        if self.lost is not None:
            title, before, after = self.lost.title, self.lost.before, self.lost.after
            known: dict[str, Value] = {f"{title}, float32": before, f"{title}, int8": after}
            facts, units = known | facts, dict.fromkeys(known, self.lost.unit) | units
        units |= {"float32": "bytes", "int8": "bytes"}
        rows: list[dict[str, Value]] = [
            {"layer": name, "error": error, "outside": self.outside[name], "runs in": self.precision(name)}
            for name, error in sorted(self.errors.items(), key=lambda pair: -pair[1])
        ]
        columns: dict[str, Unit] = {"layer": "", "error": "share", "outside": "share", "runs in": ""}
        text = "All layers run in int8." if not self.kept else f"Kept in floating point: {', '.join(self.kept)}."
        if self.validated < _ENOUGH and self.lost is None:
            text += f" {self.validated} validation images are few: one is {100 / self.validated:.0f} % of them; "
            text += f"use {_ENOUGH} or more."
        if not self.enough:
            text = f"int8 failed: with any layer in it the model answers too differently from float32. {text}"
        return (
            Facts("int8", facts, units),
            Text("What int8 does to the layers", f"{text} {_LEGEND}"),
            Table("Layers by sensitivity", columns, rows),
        )

    def precision(self, layer: str) -> str:
        """What a layer runs in."""
        return "float32" if layer in self.kept else "int8"


def quantise(
    source: Path,
    target: Path,
    pixels: Sequence[Array],
    config: QuantiseConfig | None = None,
    *,
    truth: Mapping[str, Tensor] | None = None,
) -> Quantised:
    """Writes the int8 form of a float32 .onnx, calibrated and validated on real images uint8 B H W C.

    There is one array for each image size: the same images at all of them. `truth` are the targets of the first array,
    in pixels of the model's input; where they are known, the metric of the task decides.
    """
    config = config or QuantiseConfig()
    if (total := len(pixels[0])) < 2:
        raise DataError(f"int8 needs 2 images or more, to calibrate and to validate; there are {total}")
    count = min(config.calibrate, total // 2 if truth is None else max(total // 3, 1))
    judged = slice(count, count + config.validate)
    seen, unseen = ([images[part] for images in pixels] for part in (slice(count), judged))
    model = needs("onnx").load(source)
    layers = find_layers(model)
    if not layers:
        raise Unsupported(
            f"int8 is for linear layers (MatMul with stored weights), and {source.name} has none: convolutions stay in "
            "float32; leave out --int8"
        )
    ranges = calibrate(model, layers, seen, unseen, batch=config.batch)
    errors = {layer.name: sensitivity(layer, ranges[layer.input]) for layer in layers}
    worst = sorted(errors, key=lambda name: -errors[name])
    engine = OnnxEngine(source)
    judge = _judge(
        engine, unseen, None if truth is None else {name: one[judged] for name, one in truth.items()}, config
    )

    def attempt(kept: int) -> Closeness | None:
        chosen = [layer for layer in layers if layer.name not in worst[:kept]]
        card = replace(engine.card, precision="int8", kept=tuple(worst[:kept]))
        write(model, chosen, ranges, card, target)
        return judge.closeness(OnnxEngine(target))

    kept, (cosine, agreement) = fewest_kept(attempt, len(layers))
    return Quantised(
        path=target, kept=tuple(worst[:kept]), errors=errors, cosine=cosine, agreement=agreement,
        validated=len(unseen[0]), outside={layer.name: ranges[layer.input].outside for layer in layers},
        enough=kept < len(layers), bytes=(file_bytes(source), file_bytes(target)),
        lost=judge.lost if isinstance(judge, ByMetric) else None,
    )  # fmt: skip


def _judge(
    engine: Engine, pixels: Sequence[Array], truth: Mapping[str, Tensor] | None, config: QuantiseConfig
) -> Judge:
    """By the metric of the task, where it has one that int8 may lose some of, and labels are known."""
    allowed = engine.task.int8_loss
    if allowed is None:
        return ByAnswers(engine, pixels, Closeness(config.cosine, config.agreement))
    if truth is None:
        return ByAnswers(engine, pixels, Closeness(-1.0, UNLABELLED))
    return ByMetric(engine, pixels, truth, allowed=allowed)


def fewest_kept(attempt: Callable[[int], Closeness | None], layers: int) -> tuple[int, Closeness]:
    """How few of the worst layers must stay in floating point, by bisection; the last attempt is the result.

    All layers in int8 comes first. Of 48 layers, at most eight attempts.
    """
    few, enough = -1, layers  # with `few` it fails, with `enough` it does not
    tried, found = 0, attempt(0)
    while True:
        few, enough = (tried, enough) if found is None else (few, tried)
        if enough - few <= 1 or enough == 0:
            break
        tried = (few + enough) // 2
        found = attempt(tried)
    if found is None or tried != enough:
        found = attempt(enough)
    assert found is not None  # noqa: S101  (it passed, or no layer is int8)
    return enough, found


def calibrate(
    model: Any, layers: Sequence[Layer], seen: Sequence[Array], unseen: Sequence[Array], *, batch: int
) -> dict[str, Range]:
    """The range of each layer's input: of several ways to cut its tails, the one with the least rounding error.

    There is one array of images for each size.
    """
    names = list(dict.fromkeys(layer.input for layer in layers))
    session = _with_outputs(model, names)
    kept: dict[str, list[Array]] = {name: [] for name in names}
    ends: dict[str, list[Array]] = {name: [] for name in names}
    draw = np.random.default_rng(0)
    share = max(1, _ROWS * batch // sum(map(len, seen)))
    for images in (some[start : start + batch] for some in seen for start in range(0, len(some), batch)):
        for name, values in zip(names, session.run(names, {"images": images}), strict=True):
            rows = values.reshape(-1, values.shape[-1])  # B ... K -> R K
            ends[name].append(np.quantile(rows, [(tail, 1 - tail) for tail in _TAILS]))  # T 2
            kept[name].append(rows[draw.choice(len(rows), min(len(rows), share), replace=False)])
    ranges = {name: _best_range(np.concatenate(kept[name]), np.array(ends[name])) for name in names}
    for images in unseen:
        for name, values in zip(names, session.run(names, {"images": images[:batch]}), strict=True):
            beyond = float(((values < ranges[name].low) | (values > ranges[name].high)).mean())
            ranges[name].outside = max(ranges[name].outside, beyond)
    return ranges


def _best_range(rows: Array, ends: Array) -> Range:
    """Of the ends of each tail over all batches, I T 2, those that round the rows R K best."""
    found = []
    for tail in range(ends.shape[1]):
        low, high = float(ends[:, tail, 0].min()), float(ends[:, tail, 1].max())
        candidate = Range(min(low, 0.0), max(high, 0.0), 0.0, rows)
        found.append((float(np.square(candidate.rounded(rows) - rows).mean()), tail, candidate))
    return min(found)[2]


def sensitivity(layer: Layer, span: Range) -> float:
    """How much int8 changes the output of a layer: the norm of the difference over the norm."""
    exact = span.rows @ layer.weights  # R N
    levels, scale = to_int8(layer.weights)
    changed = span.rounded(span.rows) @ (levels * scale)
    return float(np.linalg.norm(changed - exact)) / max(float(np.linalg.norm(exact)), 1e-12)


def write(model: Any, layers: Sequence[Layer], ranges: Mapping[str, Range], card: Card, target: Path) -> None:
    """The model with layers in int8, as pairs of QuantizeLinear and DequantizeLinear, which all runtimes support."""
    onnx = needs("onnx")
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes = {node.name: node for node in made.graph.node}
    extra: dict[str, list[Any]] = {}  # first node that needs them -> nodes that come before it
    done: set[str] = set()
    for layer in layers:
        node, fresh = nodes[layer.node], []
        if layer.input not in done:
            done.add(layer.input)
            fresh += _rounding(onnx, made.graph, layer.input, ranges[layer.input])
        fresh.append(_stored(onnx, made.graph, layer))
        node.input[0], node.input[1] = f"{layer.input}.rounded", f"{layer.node}.weights"
        extra[layer.node] = fresh
    ordered = [item for node in made.graph.node for item in (*extra.get(node.name, ()), node)]
    del made.graph.node[:]
    made.graph.node.extend(ordered)
    used = {name for node in ordered for name in node.input}
    left = [tensor for tensor in made.graph.initializer if tensor.name in used]
    del made.graph.initializer[:]
    made.graph.initializer.extend(left)
    for entry in made.metadata_props:
        entry.value = card.to_json() if entry.key == KEY else entry.value
    onnx.save(made, target)


def _rounding(onnx: Any, graph: Any, name: str, span: Range) -> list[Any]:
    """An activation through 256 levels."""
    array = onnx.numpy_helper.from_array
    graph.initializer.append(array(np.float32(span.scale), f"{name}.scale"))
    graph.initializer.append(array(np.uint8(span.zero), f"{name}.zero"))
    with_levels = [f"{name}.scale", f"{name}.zero"]
    make = onnx.helper.make_node
    return [
        make("QuantizeLinear", [name, *with_levels], [f"{name}.levels"], name=f"{name}.quantise"),
        make("DequantizeLinear", [f"{name}.levels", *with_levels], [f"{name}.rounded"], name=f"{name}.dequantise"),
    ]


def _stored(onnx: Any, graph: Any, layer: Layer) -> Any:
    """Weights K N as int8 with one scale per column."""
    levels, scale = to_int8(layer.weights)
    names = [f"{layer.node}.{part}" for part in ("int8", "scale", "zero")]
    for name, values in zip(names, (levels, scale, np.zeros(len(scale), np.int8)), strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return onnx.helper.make_node(
        "DequantizeLinear", names, [f"{layer.node}.weights"], name=f"{layer.node}.read", axis=1
    )


def _with_outputs(model: Any, names: Sequence[str]) -> Any:
    """A session that gives the tensors of these names, too."""
    onnx, runtime = needs("onnx"), needs("onnxruntime")
    wider = onnx.ModelProto()
    wider.CopyFrom(model)
    known = {value.name for value in wider.graph.output}
    wider.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in known)
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    return runtime.InferenceSession(wider.SerializeToString(), options, providers=["CPUExecutionProvider"])
