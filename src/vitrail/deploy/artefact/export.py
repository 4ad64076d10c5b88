"""A model as a file that needs no vitrail: torch.export (.pt2), ONNX, OpenVINO IR; preprocessing inside.

Batch, height, width and channels of the images are free in every one of them; the model inside works at its own size,
or at that of the images (`to_any_size`).
"""

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitrail.deploy.artefact.any_size import at_any_size, for_graph, steps, why_fixed, with_matmuls
from vitrail.deploy.artefact.card import KEY, Card
from vitrail.deploy.artefact.engine import quiet
from vitrail.deploy.artefact.runtimes import needs
from vitrail.deploy.artefact.servable import Servable
from vitrail.errors import Unsupported, reason

OPSET = 20
SIDES = ("batch", "height", "width", "channels")
MAX_BATCH, MAX_SIDE = 65_536, 65_536
_TRACES = "do_not_emit_stack_traces"
_TRIES = 2  # steps: some families pool or fold once more than the grid of their last level says


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Keeps torch from recording where in the code each node was made: a sixth of the time to write ONNX."""
    config: Any = getattr(torch.fx, "config", None)
    before = getattr(config, _TRACES, None)
    if before is None:  # a version of torch without it
        yield
        return
    setattr(config, _TRACES, True)
    try:
        yield
    finally:
        setattr(config, _TRACES, before)


def to_program(module: Servable) -> torch.export.ExportedProgram:
    """The graph of a model and its preprocessing; Unsupported says why there is none."""
    height, width = module.pixels.image_size
    # Larger than the model's size, and all sides different: equal ones would be tied together.
    images = torch.zeros(2, height + 5, width + 9, 3, dtype=torch.uint8)
    free = torch.export.Dim
    dims = {0: free("batch", min=1, max=MAX_BATCH), 3: free("channels", min=1, max=4)}
    dims |= {1: free("height", min=1, max=MAX_SIDE), 2: free("width", min=1, max=MAX_SIDE)}
    try:
        # Of an error torch prints the whole graph; the reason is in the message below.
        with (
            quiet(), untraced(), contextlib.redirect_stderr(io.StringIO()), torch.no_grad(),
            sdpa_kernel(SDPBackend.MATH),
        ):  # fmt: skip
            program = torch.export.export(for_graph(module), (images,), dynamic_shapes={"images": dims}, strict=False)
            program = with_matmuls(program)
    except Exception as error:  # torch.export has no common base of errors
        name = type(module.task.backbone).__name__
        raise Unsupported(f"{name} cannot be exported by torch.export: {_root(error)}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it has paths of this machine
    return program


def to_any_size(module: Servable) -> tuple[Servable, torch.export.ExportedProgram]:
    """The eager model at the size of its images, and its graph; Unsupported says why it works at one size alone."""
    config = module.task.backbone.config
    height, width = config.image_size
    why = "no step divides it"
    for step in islice(steps(config), _TRIES):
        free = at_any_size(module, step)
        try:
            return free, to_program(free)
        except Unsupported as error:
            why = why_fixed(free.task.backbone) or str(error)
    name = type(module.task.backbone).__name__
    raise Unsupported(f"{name} cannot be exported for any size, only for {height} x {width}: {why}")


def output_names(program: torch.export.ExportedProgram) -> list[str]:
    """The names of what a graph gives, in its order."""
    spec = program.call_spec.out_spec
    if spec is None:
        raise Unsupported("the graph does not name its outputs")
    return list(spec.context)


def write_torch(program: torch.export.ExportedProgram, card: Card, path: Path) -> Path:
    """A .pt2 that `torch.export.load` opens, with the card among its extra files."""
    with quiet():
        torch.export.save(program, path, extra_files={KEY: card.to_json()})
    return path


def write_onnx(program: torch.export.ExportedProgram, card: Card, path: Path) -> Path:
    """An .onnx of opset 20 with the card in its metadata; Unsupported names what ONNX lacks."""
    needs("onnx")
    needs("onnxscript")
    try:
        with quiet(), untraced(), contextlib.redirect_stdout(io.StringIO()), sdpa_kernel(SDPBackend.MATH):
            made: Any = torch.onnx.export(
                program, (), dynamo=True, opset_version=OPSET, input_names=["images"],
                output_names=output_names(program), verbose=False,
            )  # fmt: skip
            made.model.metadata_props[KEY] = replace(card, opset=OPSET).to_json()
            made.model.producer_name, made.model.producer_version = "vitrail", card.vitrail
            _name_sides(made.model.graph)
            made.save(path)
    except Exception as error:  # the exporter's errors have no common base
        raise Unsupported(f"the model's graph cannot be written as ONNX: {_root(error)}") from error
    return path


def _name_sides(graph: Any) -> None:
    """Names the free sides of the images, which the exporter numbers.

    Symbolic shapes of values in between are removed: they are wrong where a batch is folded into another axis, and ONNX
    Runtime would rely on them.
    """
    known = {str(side): name for side, name in zip(graph.inputs[0].shape, SIDES, strict=True)}
    ends = [*graph.inputs, *graph.outputs]
    for value in (value for node in graph.all_nodes() for value in node.outputs):
        if value not in ends and any(not isinstance(side, int) for side in value.shape or ()):
            value.shape = None
    for value in ends:
        for axis, side in enumerate(value.shape or ()):
            if not isinstance(side, int):
                value.shape[axis] = re.sub(r"[a-z]+\d+", lambda found: known.get(found[0], found[0]), str(side))


def write_openvino(onnx: Path, card: Card, path: Path) -> Path:
    """An OpenVINO IR (.xml, and .bin beside it) of an .onnx, with the card in its runtime information."""
    openvino = needs("openvino")
    try:
        model = openvino.convert_model(onnx)
    except Exception as error:
        raise Unsupported(f"OpenVINO cannot convert the model: {_root(error)}") from error
    model.set_rt_info(card.to_json(), KEY)
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


def _root(error: Exception) -> str:
    """What the first of a chain of errors says, of those that come with pages of advice."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return reason(cause)
