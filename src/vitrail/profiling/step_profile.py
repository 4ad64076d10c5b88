"""The time and memory of each part of a training step, beside the least that this machine could need for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from vitrail.config import Alias, Config, Count
from vitrail.hardware import Precision, autocast, autocast_dtype
from vitrail.hardware import device as choose_device
from vitrail.hardware import precision as choose_precision
from vitrail.layers.stage import Stage
from vitrail.models.backbone import Backbone
from vitrail.models.registry import create
from vitrail.profiling.count import Node, blank_images, count
from vitrail.report import Report, Table, Text, Value
from vitrail.timing import Spread, machine

_PASSES = 3  # products of a training step for one of the forward pass: two gradients beside it
_PROBE = {"cuda": (8192, 1 << 30), "cpu": (1024, 1 << 26)}  # side of a square product, bytes of a copy
_TRIES = 5
Moment = Any  # a time on the CPU's clock, or an event of a GPU


@dataclass(frozen=True, kw_only=True)
class ProfileConfig(Config):
    """What is profiled: training steps of a batch, in so many rounds."""

    batch: Count = 16
    image_size: int | tuple[int, int] | None = None
    precision: Annotated[Literal["auto", "float32", "bf16", "fp16"], Alias("fp32", "float32")] = "auto"
    rounds: Count = 5


@dataclass(frozen=True)
class Ceilings:
    """What this machine reaches: multiply-accumulates and bytes moved, a second."""

    macs: float
    bytes: float

    def floor(self, macs: float, moved: float) -> float:
        """The seconds that these take at least; the larger of the two decides."""
        return max(macs / self.macs, moved / self.bytes)


@dataclass
class Part:
    """What modules of one kind take in a step."""

    modules: int = 0
    macs: int = 0  # of the forward and the backward pass
    moved: float = 0.0  # bytes that have to be read or written
    kept: int = 0  # bytes that are saved for the backward pass
    forward: list[float] = field(default_factory=list)  # seconds by round
    backward: list[float] = field(default_factory=list)


def profile_step(name: str, config: ProfileConfig, *, device: str | torch.device | None = None) -> Report:
    """Where the time and memory of a training step of a named model go on this machine."""
    where = choose_device(device)
    chosen, note = choose_precision(config.precision, where)
    model = create(name, **({} if config.image_size is None else {"image_size": config.image_size})).to(where).train()
    images = torch.rand(config.batch, model.config.channels, *model.config.image_size, device=where)
    ceilings = measure_ceilings(where, chosen)
    watch = Watch(model, images, where)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=where.type == "cuda")
    taken = [_step(model, optimiser, images, watch, chosen) for _ in range(config.rounds + 1)][1:]
    watch.forget_first()
    return _report(name, watch, taken, ceilings, config, f"{chosen}{'' if note is None else f' ({note})'}")


def measure_ceilings(where: torch.device, chosen: Precision) -> Ceilings:
    """The rates of a large matrix product and of a large copy."""
    side, count_ = _PROBE.get(where.type, _PROBE["cpu"])
    dtype = autocast_dtype(chosen)
    one, other = (torch.randn(side, side, device=where).to(dtype) for _ in range(2))
    source = torch.empty(count_, dtype=torch.uint8, device=where).random_()
    target = torch.empty_like(source)

    macs = side**3 / _fastest(lambda: one @ other, where)
    return Ceilings(macs, 2 * count_ / _fastest(lambda: target.copy_(source), where))


def _fastest(run: Callable[[], object], where: torch.device) -> float:
    run()
    taken = []
    for _ in range(_TRIES):
        _wait(where)
        began = time.perf_counter()
        run()
        _wait(where)
        taken.append(time.perf_counter() - began)
    return min(taken)


def _wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)


def _now(where: torch.device) -> Moment:
    if where.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(first: Moment, last: Moment) -> float:
    return last - first if isinstance(first, float) else first.elapsed_time(last) / 1000


class Watch:
    """Notes when each part of a model begins and ends, in the forward and in the backward pass."""

    def __init__(self, model: Backbone, images: Tensor, where: torch.device) -> None:
        self.where, self.parts = where, dict[str, Part]()
        self._modules = dict(_parts(model))
        self._moments: list[tuple[str, bool, list[Moment]]] = []  # kind, whether backward, begin and end
        tree = count(model, blank_images(model, (images.shape[2], images.shape[3]), len(images)))
        self._counts = counts = {node.module: node.total for node in _nodes(tree)}
        for module, kind in self._modules.items():
            part = self.parts.setdefault(kind, Part())
            _, macs, kept = counts.get(module, (0, 0, 0))
            part.modules, part.macs, part.kept = part.modules + 1, part.macs + _PASSES * macs, part.kept + kept
        self.kept = tree.total[2]
        self._sized: set[nn.Module] = set()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notes a step; the times are added up when the device is done."""
        self._moments = []
        with ExitStack() as hooks:
            for module in self._modules:
                hooks.enter_context(module.register_forward_pre_hook(self._enter))
                hooks.enter_context(module.register_forward_hook(self._leave))
            yield
        _wait(self.where)
        sums: dict[tuple[str, bool], float] = {}
        for kind, backward, moments in self._moments:
            if len(moments) == 2:
                sums[kind, backward] = sums.get((kind, backward), 0.0) + _between(*moments)
        for kind, part in self.parts.items():
            part.forward.append(sums.get((kind, False), 0.0))
            part.backward.append(sums.get((kind, True), 0.0))

    def end_backward(self) -> None:
        """Ends what has no gradient to wait for: the layers that read pixels."""
        for _, _, moments in self._moments:
            if len(moments) == 1:
                moments.append(_now(self.where))

    def forget_first(self) -> None:
        """Leaves out the round that warmed up."""
        for part in self.parts.values():
            part.forward, part.backward = part.forward[1:], part.backward[1:]

    def _enter(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._moments.append((self._modules[module], False, [_now(self.where)]))
        module.__dict__["_profiled"] = self._moments[-1][2]

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        module.__dict__.pop("_profiled").append(_now(self.where))
        kind, backward = self._modules[module], list[Moment]()
        given = next((one for one in inputs if isinstance(one, Tensor)), None)
        made = output if isinstance(output, Tensor) else None
        if module not in self._sized and given is not None and made is not None:
            self._sized.add(module)
            weights = sum(_size_of(value) for value in module.parameters())
            # Forward: input, output, weights. Backward: both gradients, the input again, weights and their gradients.
            self.parts[kind].moved += 3 * _size_of(given) + 2 * _size_of(made) + 3 * weights
            if not given.requires_grad:  # pixels
                self.parts[kind].moved -= _size_of(given)
                self.parts[kind].macs -= self._counts.get(module, (0, 0, 0))[1]
        if given is None or made is None or made is given or not made.requires_grad:
            return
        self._moments.append((kind, True, backward))

        def note(_: Tensor) -> None:
            backward.append(_now(self.where))

        made.register_hook(note)
        if given.requires_grad:
            given.register_hook(note)


def _size_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _parts(model: Backbone) -> Iterator[tuple[nn.Module, str]]:
    """The modules that are timed, with the name of their kind: what blocks, stages and lists are made of."""

    def opened(module: nn.Module, inside: bool) -> Iterator[nn.Module]:
        lists = isinstance(module, nn.ModuleList | nn.Sequential | Stage)
        if inside or lists:
            for child in module.children():
                yield from opened(child, isinstance(module, nn.ModuleList))
        else:
            yield module

    for child in model.children():
        for module in opened(child, inside=False):
            if any(True for _ in module.parameters()):
                yield module, type(module).__name__


def _nodes(tree: Node) -> Iterator[Node]:
    yield tree
    for child in tree.children:
        yield from _nodes(child)


def _step(
    model: Backbone, optimiser: torch.optim.Optimizer, images: Tensor, watch: Watch, chosen: Precision
) -> dict[str, float]:
    """Seconds of one step: all of it, its forward and backward pass, and the optimiser."""
    where = watch.where
    with watch.watching():
        moments = [_now(where)]
        with autocast(where, chosen):
            outputs = model(images)
        loss = nn.functional.cross_entropy(outputs.float(), torch.zeros(len(images), dtype=torch.long, device=where))
        moments.append(_now(where))
        loss.backward()
        watch.end_backward()
        moments.append(_now(where))
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        moments.append(_now(where))
    names = ("forward", "backward", "optimiser")
    return {name: _between(*moments[at : at + 2]) for at, name in enumerate(names)}


def _report(  # noqa: PLR0917  (all that a page says)
    name: str, watch: Watch, taken: list[dict[str, float]], ceilings: Ceilings, config: ProfileConfig, precision: str
) -> Report:
    whole = Spread.of([sum(one.values()) for one in taken])
    rows: list[dict[str, Value]] = []

    def add(what: str, forward: list[float], backward: list[float], floor: float | None, kept: int | None) -> None:
        both = Spread.of([one + other for one, other in zip(forward, backward, strict=True)]).median
        rows.append({
            "part": what, "forward, ms": round(1000 * Spread.of(forward).median, 2),
            "backward, ms": round(1000 * Spread.of(backward).median, 2), "of the step": both / whole.median,
            "floor, ms": None if floor is None else round(1000 * floor, 2),
            "share of the floor": None if floor is None or not both else floor / both, "saved": kept,
        })  # fmt: skip

    for kind, part in sorted(watch.parts.items(), key=lambda one: -sum(one[1].forward) - sum(one[1].backward)):
        floor = ceilings.floor(part.macs, part.moved)
        add(f"{part.modules} x {kind}", part.forward, part.backward, floor, part.kept)
    rest = {
        way: [
            max(0.0, one[way] - sum(getattr(part, way)[at] for part in watch.parts.values()))
            for at, one in enumerate(taken)
        ]
        for way in ("forward", "backward")
    }
    kept = watch.kept - sum(part.kept for part in watch.parts.values())
    add("between the parts", rest["forward"], rest["backward"], None, kept)
    nothing = [0.0] * len(taken)
    weights = sum(_size_of(value) for module in watch._modules for value in module.parameters())
    update = ceilings.floor(0, 7 * weights)  # weights, gradients and two moments read; all but gradients written
    add("optimiser", [one["optimiser"] for one in taken], nothing, update, None)
    columns: dict[str, Any] = dict.fromkeys(rows[0], "") | {
        "of the step": "share", "share of the floor": "share", "saved": "bytes"
    }  # fmt: skip
    text = (
        f"A step takes {1000 * whole.median:.2f} ms ({1000 * whole.low:.2f} to {1000 * whole.high:.2f}; the middle "
        f"half of {config.rounds}): {config.batch / whole.median:,.1f} images/s; batch {config.batch}, {precision}, "
        f"not compiled; {machine(watch.where)}. The floor is the larger of arithmetic at "
        f"{2 * ceilings.macs / 1e12:.3g} TFLOP/s and memory at {ceilings.bytes / 1e9:.3g} GB/s, both measured now: "
        "each part's input, output and weights are moved once in a pass. What fits into caches can be faster than "
        "that. `saved` is kept for the backward pass."
    )
    if watch.where.type == "cuda":
        text += f" The peak of the device's memory is {torch.cuda.max_memory_allocated(watch.where) / 1e9:.2f} GB."
    return Report(f"A training step of {name}", (Table("", columns, rows), Text("", text)))
