"""What a model sees while it runs: the tokens that enter its attention layers, and from them its attention.

    with capture(model, layers=[3, -1], rows="class") as seen:
        logits = model(images)
    seen.attention[-1]  # B A 1 P+N

The model runs as it always does, fused kernels and all, and answers the same, bit for bit. What was asked for is
computed when it is read, from the tokens that were kept, in chunks of rows: so read it before the weights change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError, Unsupported
from vitrail.explain.chosen import listed, numbers
from vitrail.explain.layer import AttentionLayer, attention_layers, eager, has_class_token, is_compiled
from vitrail.explain.subsampled import Subsampled
from vitrail.layers.patch import Grid
from vitrail.layers.reduce import Reduction
from vitrail.layers.stage import to_tokens

__all__ = ["Chunk", "Rows", "Seen", "attention_layers", "capture"]

CHUNK = 2**24  # numbers of an attention matrix that are computed at a time: 64 MiB of float32

Rows = Literal["class"] | Tensor | Sequence[int] | None  # which tokens ask; None: all of them
T = TypeVar("T")


class Chunk(NamedTuple):
    """Some rows of a layer's attention."""

    rows: Tensor  # R: the tokens that ask, prefix tokens first
    attention: Tensor  # B A R P+N, float32
    gradient: Tensor | None  # B A R P+N, of what was differentiated to the attention; None before a backward pass


@contextmanager
def capture(
    model: nn.Module,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Rows = None,
    *,
    gradients: bool = False,
) -> Iterator["Seen"]:
    """Watches what a model does inside the block: the chosen layers, heads and rows of its attention, all by default.

    Negative numbers count from the end. Rows are tokens that ask, those of the prefix first; "class" is the class
    token. `gradients` keeps those of a backward pass inside the block too. A compiled model stays compiled, and an
    eager pass up to the last layer asked for is made when something is read; for gradients it runs eagerly meanwhile.
    """
    every = attention_layers(model)
    _check_whole(model)
    wanted = [every[index] for index in numbers(layers, len(every), "layer", "attention layers")]
    for layer in wanted:
        numbers(heads, layer.module.num_heads, "head", f"heads in layer {layer.index}")
    if isinstance(rows, str) and rows != "class":
        raise ConfigError(f"rows is {rows!r}; it must be 'class', the numbers of tokens, or None for all")
    if not (rows is None or isinstance(rows, str)):
        listed(rows, "row")
    if rows == "class" and not has_class_token(model):
        raise Unsupported(f"{type(eager(model)).__name__} has no class token; choose rows by their numbers, or all")
    seen = Seen(model, wanted, len(every), heads=heads, rows=rows, gradients=gradients)
    with ExitStack() as stack:
        if not is_compiled(model):
            stack.enter_context(seen.watch())
        elif gradients:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(seen.watch())
        else:
            stack.enter_context(seen.keep_inputs())
        yield seen


class ByLayer(Mapping[int, T], Generic[T]):
    """What was captured, by the number of the layer; negative numbers count from the model's last."""

    def __init__(self, layers: Sequence[int], count: int, read: Callable[[int], T]) -> None:
        self._layers, self._count, self._read = layers, count, read

    def __getitem__(self, layer: int) -> T:
        (index,) = numbers([layer], self._count, "layer", "attention layers")
        if index not in self._layers:
            raise ConfigError(f"layer {layer} was not captured; captured: {', '.join(map(str, self._layers))}")
        return self._read(index)

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, int) and (layer + self._count if layer < 0 else layer) in self._layers

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


class Seen:
    """What was seen in the last pass through the model, by the number of the layer.

    `attention` B A R P+N, and its `gradients`, are float32; `tokens` B P+N D are those that entered the layer and
    `mixed` B P+N A*d what its heads made of them (fewer where fewer ask), both a part of the graph; `values` B A P+N d
    are what each token gives to those that attend to it. `grid` is that of the patches, which are the last tokens,
    after `num_prefix`.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[AttentionLayer],
        count: int,
        *,
        heads: Sequence[int] | None,
        rows: Rows,
        gradients: bool,
    ) -> None:
        self.layers = {layer.index: layer for layer in layers}
        self._model, self._heads, self._rows, self._differentiates = model, heads, rows, gradients
        self._entered: dict[int, tuple[Tensor, Grid]] = {}
        self._mixed: dict[int, Tensor] = {}
        self._gradients: dict[tuple[str, int], Tensor] = {}
        self._passes = dict.fromkeys(self.layers, 0)  # how often each layer was entered
        self._known: dict[tuple[str, int], Tensor] = {}  # what was computed already
        self._closing = ExitStack()
        self._inputs: _Inputs | None = None
        captured = sorted(self.layers)

        def by_layer(read: Callable[[int], T]) -> ByLayer[T]:
            return ByLayer(captured, count, read)

        self._number = by_layer(lambda index: index)
        self.tokens = by_layer(lambda index: self._at(index)[0])
        self.grid = by_layer(lambda index: self._at(index)[1])
        self.num_prefix = by_layer(self._prefix)
        self.values = by_layer(self._contents)
        self.mixed = by_layer(lambda index: self._of_backward(self._mixed.get(index), index))
        self.attention = by_layer(lambda index: self._whole("attention", index, self._weights))
        self.gradients = by_layer(lambda index: self._whole("gradient", index, self._slope))
        self.token_gradients = by_layer(lambda index: self._gradient("tokens", index))

    def chunks(self, layer: int) -> Iterator[Chunk]:
        """The rows of a layer's attention, some at a time, so that memory is linear in the number of tokens."""
        index = self._number[layer]
        differentiated = ("mixed", index) in self._gradients
        for rows in self._steps(index):
            yield Chunk(rows, self._weights(index, rows), self._slope(index, rows) if differentiated else None)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Keeps what enters the layers, by hooks."""
        with ExitStack() as stack:
            self._closing = stack
            for layer in self.layers.values():
                hook = layer.place.register_forward_pre_hook(self._entering(layer.index))
                stack.callback(hook.remove)
                if self._differentiates:
                    stack.callback(layer.module.readout.register_forward_pre_hook(self._mixing(layer.index)).remove)
            yield

    @contextmanager
    def keep_inputs(self) -> Iterator[None]:
        """Keeps what enters the model alone; the layers are reached later, by an eager pass."""

        def keep(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            self._entered.clear()
            self._known.clear()
            self._inputs = _Inputs.of(arguments, keywords)

        with ExitStack() as stack:
            compiled = self._model._compiled_call_impl
            if compiled is None:
                hook = self._model.register_forward_pre_hook(lambda _, *inputs: keep(*inputs), with_kwargs=True)
                stack.callback(hook.remove)
            else:  # compiled in place: hooks of the model itself are inside of what is compiled

                def call(*arguments: Any, **keywords: Any) -> Any:
                    keep(arguments, keywords)
                    return compiled(*arguments, **keywords)

                self._model._compiled_call_impl = call
                stack.callback(setattr, self._model, "_compiled_call_impl", compiled)
            yield

    def _entering(self, index: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            entering = inputs[0]
            if not _recomputing():
                self._begin(index)
            if self._differentiates and torch.is_grad_enabled():
                if not entering.requires_grad:  # weights and images are frozen: the graph begins here
                    entering.requires_grad_()
                self._follow("tokens", index, entering)
            # Between stages a map enters, B C h w.
            on_map = (to_tokens(entering), (entering.shape[2], entering.shape[3])) if entering.ndim == 4 else None
            self._entered[index] = on_map or (entering, inputs[1])
            self._known.pop(("attention", index), None)

        return keep

    def _begin(self, index: int) -> None:
        """A new pass: what a backward pass left of the one before belongs to other tokens."""
        self._passes[index] += 1
        self._mixed.pop(index, None)
        self._known.pop(("gradient", index), None)
        for what in ("tokens", "mixed"):
            self._gradients.pop((what, index), None)

    def _mixing(self, index: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._mixed[index] = inputs[0]
            if inputs[0].requires_grad:
                self._follow("mixed", index, inputs[0])

        return keep

    def _follow(self, what: str, index: int, tensor: Tensor) -> None:
        current = self._passes[index]

        def keep(gradient: Tensor) -> None:
            if self._passes[index] != current:
                return  # of a pass that another one followed
            self._gradients[what, index] = (to_tokens(gradient) if gradient.ndim == 4 else gradient).detach()
            self._known.pop(("gradient", index), None)

        # A hook holds what was seen, which holds the tensor: no collector sees that ring, so the block's end opens it.
        self._closing.callback(tensor.register_hook(keep).remove)

    def _at(self, index: int) -> tuple[Tensor, Grid]:
        if index not in self._entered:
            if self._inputs is None:
                raise ConfigError("nothing was seen yet: call the model inside the block of `capture`")
            self._replay(self._inputs)
        return self._entered[index]

    def _replay(self, inputs: "_Inputs") -> None:
        """An eager pass over the kept inputs, up to the last layer that is wanted."""
        model, last = eager(self._model), self.layers[max(self.layers)].place

        def stop(*_: Any) -> None:
            raise _Enough

        with ExitStack() as stack:
            stack.enter_context(self.watch())
            stack.callback(last.register_forward_pre_hook(stop).remove)
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.no_grad())
            stack.enter_context(undisturbed(model))
            stack.enter_context(torch.random.fork_rng(enabled=model.training))
            try:
                inputs.run(model)
            except _Enough:
                return

    def _prefix(self, index: int) -> int:
        tokens, (height, width) = self._at(index)
        return tokens.shape[1] - height * width

    def _chosen_rows(self, index: int) -> Tensor:
        tokens, count = self._at(index)[0], self._at(index)[0].shape[1]
        if self._rows is None:
            return torch.arange(count, device=tokens.device)
        if isinstance(self._rows, str):
            if not self._prefix(index):
                raise Unsupported(f"layer {index} has no class token, which joins later; choose rows by their numbers")
            return torch.zeros(1, dtype=torch.long, device=tokens.device)
        return torch.tensor(numbers(self._rows, count, "row", f"tokens in layer {index}"), device=tokens.device)

    def _fitting(self, index: int) -> Tensor:
        """The tokens in the type of the layer's weights, which autocast may have changed."""
        tokens = self._at(index)[0].detach()
        parameter = next(self.layers[index].module.parameters(), tokens)
        return tokens.to(parameter.dtype)

    def _contents(self, index: int) -> Tensor:
        module = self.layers[index].module
        with torch.no_grad(), undisturbed(module):
            return module.contents(self._fitting(index), self._at(index)[1])

    def _gradient(self, what: str, index: int) -> Tensor:
        return self._of_backward(self._gradients.get((what, index)), index)

    def _of_backward(self, found: Tensor | None, index: int) -> Tensor:
        if not self._differentiates:
            raise ConfigError("gradients were not captured; ask for them: capture(model, gradients=True)")
        if found is None:
            raise ConfigError(f"no gradient reached layer {index} yet: call backward() inside the block of `capture`")
        return found

    def _steps(self, index: int) -> tuple[Tensor, ...]:
        """The chosen rows, as many at a time as fit into a chunk."""
        tokens = self._at(index)[0]
        return self._chosen_rows(index).split(max(CHUNK // (len(self._head(index)) * tokens[..., 0].numel()), 1))

    def _head(self, index: int) -> list[int]:
        return numbers(self._heads, self.layers[index].module.num_heads, "head", f"heads in layer {index}")

    def _weights(self, index: int, rows: Tensor) -> Tensor:
        module = self.layers[index].module
        with torch.no_grad(), undisturbed(module):
            weights = module.weights(self._fitting(index), self._at(index)[1], rows)  # B A R P+N
        return (weights if self._heads is None else weights[:, self._head(index)]).float()

    def _slope(self, index: int, rows: Tensor) -> Tensor:
        """The gradient to some rows of the attention, B A R P+N: how much each value would help the mixed heads."""
        module, heads, (tokens, grid) = self.layers[index].module, self._head(index), self._at(index)
        mixed = self._gradient("mixed", index).float()  # B P+N Av
        if isinstance(module, Subsampled):
            mixed = mixed[:, module.queries(grid, rows)]
        else:
            # Where only the class token is mixed, other tokens keep to themselves: nothing of theirs to differentiate.
            mixed = F.pad(mixed, (0, 0, 0, tokens.shape[1] - mixed.shape[1]))[:, rows]
        mixed = mixed.unflatten(2, (module.num_heads, -1)).transpose(1, 2)  # B A R v
        return mixed[:, heads] @ self._contents(index)[:, heads].float().transpose(-2, -1)

    def _whole(self, what: str, index: int, read: Callable[[int, Tensor], Tensor]) -> Tensor:
        if (what, index) not in self._known:
            steps = self._steps(index)
            first = read(index, steps[0])
            whole = (
                first if len(steps) == 1 else first.new_empty(*first.shape[:2], sum(map(len, steps)), first.shape[3])
            )
            for part, rows in zip(whole.split(len(steps[0]), dim=2), steps, strict=True):
                part.copy_(first if rows is steps[0] else read(index, rows))
            self._known[what, index] = whole
        return self._known[what, index]


class _Enough(Exception):
    pass


class _Inputs(NamedTuple):
    """What a model was called with, and under which autocast."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    device: str
    autocast: torch.dtype | None

    @classmethod
    def of(cls, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> "_Inputs":
        tensors = (part for part in (*arguments, *keywords.values()) if isinstance(part, Tensor))
        device = next((part.device.type for part in tensors), "cpu")
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return cls(arguments, keywords, device, autocast)

    def run(self, model: nn.Module) -> None:
        with torch.autocast(self.device, dtype=self.autocast, enabled=self.autocast is not None):
            model(*self.arguments, **self.keywords)


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Keeps the running statistics of batch norms as they are, in training too, while the module runs once more."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._NormBase)]
    before = [norm.track_running_stats for norm in norms]
    try:
        for norm in norms:
            norm.track_running_stats = False
        yield
    finally:
        for norm, tracks in zip(norms, before, strict=True):
            norm.track_running_stats = tracks


def _recomputing() -> bool:
    """Whether a backward pass is under way, which runs checkpointed blocks once more."""
    return torch._C._current_graph_task_id() != -1


def _check_whole(model: nn.Module) -> None:
    """Refuses models that leave tokens out: what is left has no places on the grid."""
    for part in model.modules():
        if isinstance(part, Reduction) and (type(part) is not Reduction or (part.training and part.patch_drop > 0)):
            how = "drops patches in training; call model.eval()"
            if type(part) is not Reduction:
                how = "prunes or merges tokens; its weights fit a model with reduce=None"
            raise Unsupported(f"attention is shown between all tokens, but the model {how}")
