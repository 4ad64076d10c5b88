"""The saliency methods of one model with their options, for a tool that lets a person choose among them."""

from dataclasses import dataclass, fields
from typing import Any, cast

from torch import Tensor, nn

from vitrail.data.preprocess import Preprocess
from vitrail.explain.attention.layer import attention_layers
from vitrail.explain.methods.method import Method
from vitrail.explain.methods.saliency import methods, saliency


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """A method, whether its map belongs to one output, and the layers and heads there are to choose from."""

    method: str
    targeted: bool = True
    layers: int = 0  # 0: no choice
    heads: tuple[int, ...] = ()  # of each layer; empty: no choice


class Explainer:
    """Explains a model, one image at a time."""

    def __init__(self, model: nn.Module, preprocess: Preprocess) -> None:
        self._model, self._preprocess = model, preprocess
        self.methods = tuple(_options(name, model) for name in methods(model))

    def __call__(
        self, image: Tensor, *, method: str, target: int, layer: int | None = None, head: int | None = None
    ) -> Tensor:
        """How much each pixel matters: uint8 C H W at the size of the model -> float32 H W."""
        chosen = {name: value for name, value in (("layer", layer), ("head", head)) if value is not None}
        config = cast("Any", Method.kinds[method])(**chosen)
        return saliency(self._model, self._preprocess.normalise(image[None]), config, target)[0]


def _options(name: str, model: nn.Module) -> MethodOptions:
    kind = cast("type[Method]", Method.kinds[name])
    names = {field.name for field in fields(cast("Any", kind))}
    heads = tuple(layer.module.num_heads for layer in attention_layers(model)) if "layer" in names else ()
    return MethodOptions(method=name, targeted=kind.targeted, layers=len(heads), heads=heads if "head" in names else ())
