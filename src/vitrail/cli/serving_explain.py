"""What a service shows of a model: the methods of `vitrail explain`, with a layer and a head where they have them."""

from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from vitrail.deploy.serve_model import Offer, Question
from vitrail.explain.capture import attention_layers
from vitrail.explain.method import Method
from vitrail.explain.propagation import carried, fused, on_pixels, received, watched
from vitrail.explain.rollout import AttentionMapConfig
from vitrail.explain.saliency import METHODS, methods, saliency
from vitrail.models.backbone import Backbone
from vitrail.training.trained import Trained


class SaliencyExplainer:
    """The methods that make sense for a run's model, for one picture at a time."""

    def __init__(self, trained: Trained) -> None:
        self.trained, model = trained, trained.task.backbone
        self._kinds = {kind.kind: kind for kind in METHODS}
        self.offers = tuple(_offer(self._kinds[name], model) for name in methods(model))

    def __call__(self, image: Tensor, question: Question) -> Tensor:
        """Uint8 C H W -> float32 H W."""
        images = self.trained.prepare(image[None])
        return saliency(self.trained.task.backbone, images, self._method(question), question.target)[0].detach()

    def _method(self, question: Question) -> Method:
        layer: dict[str, Any] = {} if question.layer is None else {"layer": question.layer}
        if question.head is not None:
            return OneHead(head=question.head, **layer)
        return self._kinds[question.method](**layer)


@dataclass(frozen=True, kw_only=True)
class OneHead(AttentionMapConfig):
    """What one head of one layer attends to."""

    head: int

    def maps(self, model: Backbone, images: Tensor, target: Tensor) -> Tensor:
        """B H W, none negative."""

        def step(layer: int, tokens: Tensor) -> Tensor:
            return received(tokens, fused(seen, layer, lambda chunk: chunk.attention[:, self.head]))

        seen, held = watched(model, images, self.read())
        return on_pixels(carried(seen, held, step), images)


def _offer(kind: type[Method], model: Backbone) -> Offer:
    """What there is to choose in a method: a layer where its config has one, a head where attention itself is shown."""
    if "layer" not in {field.name for field in fields(kind)}:  # type: ignore[arg-type]
        return Offer(method=kind.kind, targeted=kind.targeted)
    heads = tuple(layer.module.num_heads for layer in attention_layers(model))
    single = heads if kind is AttentionMapConfig else ()
    return Offer(method=kind.kind, targeted=kind.targeted, layers=len(heads), heads=single)
