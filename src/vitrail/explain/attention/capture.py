"""Captures the tokens that enter a model's attention layers while it runs, and computes its attention from them.

    with capture(model, layers=[3, -1], rows="class") as captured:
        logits = model(images)
    captured.attention[-1]  # B A 1 P+N

The model runs as always, with fused kernels, and its outputs are the same bit for bit. What was asked for is computed
when it is read, from the tokens that were kept, in chunks of rows: so read it before the weights change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import ConfigError, Unsupported
from vitrail.explain.attention.layer import AttentionLayer, attention_layers, has_class_token
from vitrail.explain.attention.subsampled import Subsampled
from vitrail.explain.indices import check_indices, resolve_indices
from vitrail.explain.unwrap import is_compiled, unwrapped
from vitrail.layers.patch import Grid
from vitrail.layers.reduce import Reduction
from vitrail.layers.stage import to_tokens

__all__ = ["Captured", "Chunk", "Rows", "attention_layers", "capture"]

CHUNK = 2**24  # elements of an attention matrix that are computed at a time: 64 MiB of float32

Rows = Literal["class"] | Tensor | Sequence[int] | None  # indices of query tokens; None: all of them
T = TypeVar("T")


class Chunk(NamedTuple):
    """Some rows of a layer's attention."""

    rows: Tensor  # R: the query tokens, prefix tokens first
    attention: Tensor  # B A R P+N, float32
    gradient: Tensor | None  # B A R P+N, with respect to the attention; None before a backward pass


@contextmanager
def capture(
    model: nn.Module,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    rows: Rows = None,
    *,
    gradients: bool = False,
) -> Iterator["Captured"]:
    """Captures the attention of what a model runs inside the block: chosen layers, heads and rows, all by default.

    Negative indices count from the end. Rows are query tokens, prefix tokens first; "class" is the class token.
    `gradients` also keeps the gradients of a backward pass inside the block. A compiled model stays compiled, and an
    eager pass up to the last chosen layer is made when something is read; with `gradients` it runs eagerly.
    """
    every = attention_layers(model)
    _check_all_tokens(model)
    chosen = [every[index] for index in resolve_indices(layers, len(every), "layer", "attention layers")]
    for layer in chosen:
        resolve_indices(heads, layer.module.num_heads, "head", f"heads in layer {layer.index}")
    if isinstance(rows, str) and rows != "class":
        raise ConfigError(f"rows is {rows!r}; it must be 'class', a list of token indices, or None for all")
    if not (rows is None or isinstance(rows, str)):
        check_indices(rows, "row")
    if rows == "class" and not has_class_token(model):
        raise Unsupported(f"{type(unwrapped(model)).__name__} has no class token; choose rows by index, or all")
    captured = Captured(model, chosen, len(every), heads=heads, rows=rows, gradients=gradients)
    with ExitStack() as stack:
        if not is_compiled(model):
            stack.enter_context(captured.watch())
        elif gradients:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(captured.watch())
        else:
            stack.enter_context(captured.keep_inputs())
        yield captured


class ByLayer(Mapping[int, T], Generic[T]):
    """What was captured, by the index of the layer; negative indices count from the model's last layer."""

    def __init__(self, layers: Sequence[int], count: int, read: Callable[[int], T]) -> None:
        self._layers, self._count, self._read = layers, count, read

    def __getitem__(self, layer: int) -> T:
        (index,) = resolve_indices([layer], self._count, "layer", "attention layers")
        if index not in self._layers:
            raise ConfigError(f"layer {layer} was not captured; captured: {', '.join(map(str, self._layers))}")
        return self._read(index)

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, int) and (layer + self._count if layer < 0 else layer) in self._layers

    def __iter__(self) -> Iterator[int]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


class Captured:
    """What was captured in the last pass through the model, by the index of the layer.

    `attention` B A R P+N and its `gradients` are float32. `tokens` B P+N D entered the layer, and `mixed` B P+N A*d is
    the output of its heads (shorter if fewer tokens are queries); both are part of the graph. `values` B A P+N d are
    the attention's values. `grid` is the grid of the patches, which are the last tokens, after `num_prefix` others.
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
        self._model, self._heads, self._rows, self._keep_gradients = model, heads, rows, gradients
        self._entered: dict[int, tuple[Tensor, Grid]] = {}
        self._mixed: dict[int, Tensor] = {}
        self._gradients: dict[int, Tensor] = {}  # of the outputs of the heads
        self._passes = dict.fromkeys(self.layers, 0)  # how often each layer was entered
        self._computed: dict[tuple[str, int], Tensor] = {}  # cache of what was read
        self._closing = ExitStack()
        self._inputs: _Inputs | None = None
        captured = sorted(self.layers)

        def by_layer(read: Callable[[int], T]) -> ByLayer[T]:
            return ByLayer(captured, count, read)

        self._index = by_layer(lambda index: index)
        self.tokens = by_layer(lambda index: self._at(index)[0])
        self.grid = by_layer(lambda index: self._at(index)[1])
        self.num_prefix = by_layer(self._prefix)
        self.values = by_layer(self._contents)
        self.mixed = by_layer(lambda index: self._of_backward(self._mixed.get(index), index))
        self.attention = by_layer(lambda index: self._whole("attention", index, self._weights))
        self.gradients = by_layer(lambda index: self._whole("gradient", index, self._attention_gradient))

    def chunks(self, layer: int) -> Iterator[Chunk]:
        """The rows of a layer's attention, some at a time, so that memory is linear in the number of tokens."""
        index = self._index[layer]
        differentiated = index in self._gradients
        for rows in self._row_chunks(index):
            yield Chunk(
                rows, self._weights(index, rows), self._attention_gradient(index, rows) if differentiated else None
            )

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Keeps the inputs of the layers, by hooks."""
        with ExitStack() as stack:
            self._closing = stack
            for layer in self.layers.values():
                hook = layer.hooked.register_forward_pre_hook(self._entering(layer.index))
                stack.callback(hook.remove)
                if self._keep_gradients:
                    stack.callback(layer.module.readout.register_forward_pre_hook(self._mixing(layer.index)).remove)
            yield

    @contextmanager
    def keep_inputs(self) -> Iterator[None]:
        """Keeps only the inputs of the model; an eager pass computes those of the layers later."""

        def keep(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            self._entered.clear()
            self._computed.clear()
            self._inputs = _Inputs.of(arguments, keywords)

        with ExitStack() as stack:
            compiled = self._model._compiled_call_impl
            if compiled is None:
                hook = self._model.register_forward_pre_hook(lambda _, *inputs: keep(*inputs), with_kwargs=True)
                stack.callback(hook.remove)
            else:  # compiled in place: hooks of the model itself are part of the compiled code

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
            if self._keep_gradients and torch.is_grad_enabled() and not entering.requires_grad:
                entering.requires_grad_()  # weights and images are frozen: the graph starts here
            # Between stages the input is a map B C h w.
            on_map = (to_tokens(entering), (entering.shape[2], entering.shape[3])) if entering.ndim == 4 else None
            self._entered[index] = on_map or (entering, inputs[1])
            self._computed.pop(("attention", index), None)

        return keep

    def _begin(self, index: int) -> None:
        """A new pass starts: gradients of the pass before belong to other tokens."""
        self._passes[index] += 1
        self._mixed.pop(index, None)
        self._computed.pop(("gradient", index), None)
        self._gradients.pop(index, None)

    def _mixing(self, index: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def keep(_: nn.Module, inputs: tuple[Any, ...]) -> None:
            self._mixed[index] = inputs[0]
            if inputs[0].requires_grad:
                self._follow(index, inputs[0])

        return keep

    def _follow(self, index: int, tensor: Tensor) -> None:
        current = self._passes[index]

        def keep(gradient: Tensor) -> None:
            if self._passes[index] != current:
                return  # from an earlier pass
            self._gradients[index] = gradient.detach()
            self._computed.pop(("gradient", index), None)

        # The hook refers to self, which refers to the tensor: no collector sees the cycle; the block's end breaks it.
        self._closing.callback(tensor.register_hook(keep).remove)

    def _at(self, index: int) -> tuple[Tensor, Grid]:
        if index not in self._entered:
            if self._inputs is None:
                raise ConfigError("nothing was captured yet: call the model inside the `with capture(...)` block")
            self._replay(self._inputs)
        return self._entered[index]

    def _replay(self, inputs: "_Inputs") -> None:
        """An eager pass over the kept inputs, up to the last captured layer."""
        model, last = unwrapped(self._model), self.layers[max(self.layers)].hooked

        def stop(*_: Any) -> None:
            raise _Stop

        with ExitStack() as stack:
            stack.enter_context(self.watch())
            stack.callback(last.register_forward_pre_hook(stop).remove)
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(torch.no_grad())
            stack.enter_context(frozen_statistics(model))
            stack.enter_context(torch.random.fork_rng(enabled=model.training))
            try:
                inputs.run(model)
            except _Stop:
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
                raise Unsupported(
                    f"layer {index} has no class token (it is added in a later layer); choose rows by index"
                )
            return torch.zeros(1, dtype=torch.long, device=tokens.device)
        return torch.tensor(resolve_indices(self._rows, count, "row", f"tokens in layer {index}"), device=tokens.device)

    def _typed_tokens(self, index: int) -> Tensor:
        """The tokens in the dtype of the layer's weights, which autocast may have changed."""
        tokens = self._at(index)[0].detach()
        parameter = next(self.layers[index].module.parameters(), tokens)
        return tokens.to(parameter.dtype)

    def _contents(self, index: int) -> Tensor:
        module = self.layers[index].module
        with torch.no_grad(), frozen_statistics(module):
            return module.contents(self._typed_tokens(index), self._at(index)[1])

    def _of_backward(self, tensor: Tensor | None, index: int) -> Tensor:
        if not self._keep_gradients:
            raise ConfigError("gradients were not captured; use capture(model, gradients=True)")
        if tensor is None:
            raise ConfigError(
                f"no gradient has reached layer {index} yet: call backward() inside the `with capture(...)` block"
            )
        return tensor

    def _row_chunks(self, index: int) -> tuple[Tensor, ...]:
        """The chosen rows, split so that each part fits into a chunk."""
        tokens = self._at(index)[0]
        return self._chosen_rows(index).split(
            max(CHUNK // (len(self._chosen_heads(index)) * tokens[..., 0].numel()), 1)
        )

    def _chosen_heads(self, index: int) -> list[int]:
        return resolve_indices(self._heads, self.layers[index].module.num_heads, "head", f"heads in layer {index}")

    def _weights(self, index: int, rows: Tensor) -> Tensor:
        module = self.layers[index].module
        with torch.no_grad(), frozen_statistics(module):
            weights = module.weights(self._typed_tokens(index), self._at(index)[1], rows)  # B A R P+N
        return (weights if self._heads is None else weights[:, self._chosen_heads(index)]).float()

    def _attention_gradient(self, index: int, rows: Tensor) -> Tensor:
        """The gradient with respect to some rows of the attention: B A R P+N."""
        module, heads, (tokens, grid) = self.layers[index].module, self._chosen_heads(index), self._at(index)
        mixed = self._of_backward(self._gradients.get(index), index).float()  # B P+N Av
        if isinstance(module, Subsampled):
            mixed = mixed[:, module.query_of_patch(grid, rows)]
        else:
            # If only the class token is a query, the rows of all other tokens have no gradient.
            mixed = F.pad(mixed, (0, 0, 0, tokens.shape[1] - mixed.shape[1]))[:, rows]
        mixed = mixed.unflatten(2, (module.num_heads, -1)).transpose(1, 2)  # B A R v
        return mixed[:, heads] @ self._contents(index)[:, heads].float().transpose(-2, -1)

    def _whole(self, what: str, index: int, read: Callable[[int, Tensor], Tensor]) -> Tensor:
        if (what, index) not in self._computed:
            chunks = self._row_chunks(index)
            first = read(index, chunks[0])
            whole = (
                first if len(chunks) == 1 else first.new_empty(*first.shape[:2], sum(map(len, chunks)), first.shape[3])
            )
            for part, rows in zip(whole.split(len(chunks[0]), dim=2), chunks, strict=True):
                part.copy_(first if rows is chunks[0] else read(index, rows))
            self._computed[what, index] = whole
        return self._computed[what, index]


class _Stop(Exception):
    pass


class _Inputs(NamedTuple):
    """The arguments of a model's call, and its autocast dtype."""

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
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Keeps the running statistics of batch norms unchanged, also in training mode, while the module runs again."""
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
    """Whether a backward pass is running, which runs checkpointed blocks again."""
    return torch._C._current_graph_task_id() != -1


def _check_all_tokens(model: nn.Module) -> None:
    """Refuses models that drop tokens: the others have no position on the grid."""
    for part in model.modules():
        if isinstance(part, Reduction) and (type(part) is not Reduction or (part.training and part.patch_drop > 0)):
            how = "drops patches in training; call model.eval()"
            if type(part) is not Reduction:
                how = "prunes or merges tokens; load its weights into a model with reduce=None"
            raise Unsupported(f"attention needs all tokens, but the model {how}")
