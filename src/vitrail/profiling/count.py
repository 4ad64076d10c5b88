"""Counting by module: parameters, multiply-accumulates (MACs), and the bytes saved for the backward pass."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from vitrail.config import apply
from vitrail.errors import ConfigError
from vitrail.models.backbone import Backbone
from vitrail.models.initialise import SkipInit
from vitrail.models.registry import create
from vitrail.profiling.dry_run import FusedKernels, Shapes, storage_key


class Cost(NamedTuple):
    """The parameters of a model and the MACs of one forward pass of one image."""

    parameters: int
    macs: int


@dataclass(eq=False)
class Node:
    """One module of the tree; the counts are its own, without those of its children."""

    path: str
    module: nn.Module
    parameters: int = 0
    macs: int = 0
    kept: int = 0
    ran: bool = False
    children: list["Node"] = field(default_factory=list)

    @property
    def total(self) -> tuple[int, int, int]:
        """Parameters, MACs and kept bytes, including all children."""
        parts = [child.total for child in self.children]
        parameters, macs, kept = (sum(column) for column in zip((0, 0, 0), *parts, strict=True))
        return self.parameters + parameters, self.macs + macs, self.kept + kept

    def absorb(self) -> None:
        """Adds the parameters of children that were never called: their parent uses the weights directly."""
        for child in self.children:
            child.absorb()
        unused = [child for child in self.children if not child.ran and not child.children]
        self.parameters += sum(child.parameters for child in unused)
        self.children = [child for child in self.children if child not in unused]


def cost(model: str | Backbone) -> Cost:
    """Parameters and MACs of a model or a name, for one image of its size; fast enough for long lists."""
    built = named_or_given(model)
    macs: list[int] = []
    with dry(built, macs.append) as images:
        built(images)
    return Cost(sum(p.numel() for p in built.parameters()), sum(macs))


def pyramid(model: Backbone) -> tuple[Tensor, ...]:
    """The feature maps of a model for one image of its size, B C h w each, without data."""
    with dry(model, lambda _: None) as images:
        return model.features(images).pyramid


@contextmanager
def dry(model: Backbone, on_macs: Callable[[int], None]) -> Iterator[Tensor]:
    """A context in which the model runs on shapes only, in evaluation; yields one image to run it on."""
    with training_mode(model, on=False), torch.no_grad(), Shapes(on_macs), FusedKernels(on_macs):
        yield blank_images(model, None, 1)


def count(model: Backbone, images: Tensor) -> Node:
    """The tree of modules with their counts: MACs of a forward pass in evaluation, saved bytes of one in training.

    It runs on shapes only: the model may have any size, on any device, and is not changed.
    """
    tree = _Tree(model)
    shapes, kernels = Shapes(tree.on_macs), FusedKernels(tree.on_macs)
    with training_mode(model, on=False), torch.no_grad(), tree.watched(), shapes, kernels:
        model(images)
    tree.counting = False
    weights = [*model.parameters(), *model.buffers()]
    tree.ignore(weights + [shapes.blank(tensor) for tensor in weights])
    hooks = saved_tensors_hooks(tree.on_saved, lambda tensor: tensor)
    with training_mode(model, on=True), torch.enable_grad(), tree.watched(), hooks, shapes, kernels:
        model(images)
    tree.root.absorb()
    return tree.root


def sketch(name: str, /, **changes: Any) -> Backbone:
    """`create` without memory for the weights (device "meta"): only shapes and config."""
    with torch.device("meta"), SkipInit():
        return create(name, **changes)


def named_or_given(model: str | Backbone, image_size: int | tuple[int, int] | None = None) -> Backbone:
    """The model itself, or a model without data (`sketch`) for a name."""
    if isinstance(model, Backbone):
        return model
    if not isinstance(model, str):
        raise ConfigError(f"expected a vitrail model or the name of one, not {model!r:.60} ({type(model).__name__})")
    return sketch(model) if image_size is None else sketch(model, image_size=image_size)


def blank_images(model: Backbone, image_size: int | tuple[int, int] | None, batch: int) -> Tensor:
    """Images B C H W without data, of the size and type of the model."""
    config = model.config if image_size is None else apply(model.config, {"image_size": image_size})
    return torch.empty(batch, config.channels, *config.image_size, dtype=float_type(model), device="meta")


def float_type(model: nn.Module) -> torch.dtype:
    """The floating-point type of the weights; float32 if there are none."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)


@contextmanager
def training_mode(model: nn.Module, *, on: bool) -> Iterator[None]:
    """Switches to training or evaluation; afterwards every module is in its previous mode."""
    before = [(module, module.training) for module in model.modules()]
    try:
        model.train(on)
        yield
    finally:
        for module, training in before:
            module.training = training


class _Tree:
    """The nodes of a model, and the stack of running modules."""

    def __init__(self, model: nn.Module) -> None:
        self.counting = True
        self.nodes: dict[nn.Module, Node] = {}
        self.root = self._grow(model, "", set())
        self._running = [self.root]
        self._owners: dict[int, tuple[Tensor, Node | None]] = {}  # by storage; the tensor keeps the storage alive
        self._saves = 0
        self._saves_before: list[int] = []

    def _grow(self, module: nn.Module, path: str, seen: set[nn.Parameter]) -> Node:
        """A node for each module; shared parameters count for the first module that has them."""
        fresh = [p for p in module.parameters(recurse=False) if p not in seen]
        seen.update(fresh)
        node = self.nodes[module] = Node(path, module, parameters=sum(p.numel() for p in fresh))
        for name, child in module.named_children():
            if child not in self.nodes:
                node.children.append(self._grow(child, f"{path}.{name}".lstrip("."), seen))
        return node

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tracks the running module with hooks, which are removed afterwards."""
        with ExitStack() as hooks:
            for module, node in self.nodes.items():
                if node is not self.root:
                    hooks.enter_context(module.register_forward_pre_hook(partial(self._enter, node)))
                    hooks.enter_context(module.register_forward_hook(self._leave))
            yield

    def _enter(self, node: Node, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        node.ran = True
        self._running.append(node)
        self._saves_before.append(self._saves)

    def _leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        node, silent = self._running.pop(), self._saves_before.pop() == self._saves
        # A trainable layer that saved nothing is checkpointed: its inputs, saved by the caller, count for the layer.
        if silent and any(p.requires_grad for p in module.parameters()):
            for tensor in inputs:
                if isinstance(tensor, Tensor):
                    self._hand_over(tensor, self._running[-1], node)

    def _hand_over(self, tensor: Tensor, giver: Node, taker: Node) -> None:
        held, owner = self._owners.get(storage_key(tensor), (tensor, None))
        if owner is giver:
            self._owners[storage_key(tensor)] = (held, taker)
            giver.kept -= tensor.untyped_storage().nbytes()
            taker.kept += tensor.untyped_storage().nbytes()

    def on_macs(self, macs: int) -> None:
        """Adds the MACs of a matrix product to the running module."""
        self._running[-1].macs += macs if self.counting else 0

    def ignore(self, tensors: list[Tensor]) -> None:
        """Marks weights, which are not counted as saved for the backward pass."""
        self._owners.update((storage_key(tensor), (tensor, None)) for tensor in tensors)

    def on_saved(self, tensor: Tensor) -> Tensor:
        """Counts a tensor that is saved for the backward pass; shared memory counts once, for the first module."""
        self._saves += 1
        key = storage_key(tensor)
        if key not in self._owners:
            self._owners[key] = (tensor, self._running[-1])
            self._running[-1].kept += tensor.untyped_storage().nbytes()
        return tensor
