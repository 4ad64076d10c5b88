"""How a peer stores a backbone together with a head for another task than classification."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vitrail.errors import Unsupported
from vitrail.models.checkpoint.dialect import Rule

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class HeadTranslation:
    """A head of Hugging Face's, by the `model_type` of its config.json.

    `architecture` is the class that it must be. `prefix` is what the names of the backbone's tensors begin with;
    `backbone` gives the config.json of the backbone alone, and `head` our config of the head, from theirs. `rules`
    name the tensors of a head with that config. `completed` fills in tensors that are stored once and used twice.
    """

    kind: str
    architecture: str
    task: str
    prefix: tuple[str, ...]
    backbone: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    head: Callable[[Mapping[str, Any]], Any]
    rules: Callable[[Any], Iterable[Rule]]
    ignored: str = r"(?!)"
    keep_prefix: bool = False  # whether the backbone alone has the same names, prefix included
    bilinear: bool = False  # whether learned positions are resampled to other sizes by a bilinear filter
    every_prefix: bool = False  # whether names with any of the prefixes are the backbone's, prefix included
    renamed: Callable[[Tensors], Tensors] = lambda tensors: tensors  # the backbone's, as if it were alone
    completed: Callable[[Tensors, Any], Tensors] = lambda tensors, head: tensors


def convolutional(about: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config.json of the backbone of a DETR: one of timm's, by its name, or one of Hugging Face's."""
    inner = about.get("backbone_config") or {}
    if about.get("dilation"):
        raise Unsupported("a dilated backbone (DC5) is not supported: dilation must be false")
    if not inner or inner.get("model_type") == "timm_backbone":
        name = inner.get("backbone") or about.get("backbone") or "resnet50"
        return {"architecture": name, "num_classes": 0}
    return {**inner, "architectures": ["AutoBackbone"]}  # without a head


def require(about: Mapping[str, Any], **allowed: Any) -> None:
    """Unsupported where config.json has another value for one of these keys."""
    for key, value in allowed.items():
        if (found := about.get(key, value)) != value:
            raise Unsupported(f"config.json says {key} = {found!r}, which is not supported; it must be {value!r}")
