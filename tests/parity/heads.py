"""Parity cases of models with a head: Hugging Face's detectors, segmenters and depth models, as they save them."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from support.peers import transformers
from torch import Tensor, nn

from parity.compare import randomise, relative_error
from vitrail.models.checkpoint.headed import Headed, load_headed
from vitrail.models.initialise import SkipInit


@dataclass(frozen=True)
class HeadCase:
    """One model of a peer's, and how both are read: tensors by name, which must be the same."""

    name: str
    make: Callable[[], nn.Module]
    theirs: Callable[[nn.Module, Tensor], Mapping[str, Tensor]]
    ours: Callable[[Headed, Tensor], Mapping[str, Tensor]]
    image_size: tuple[int, int]


def from_hf(architecture: str, what: str, **options: Any) -> Callable[[], nn.Module]:
    """Makes a model of transformers', by the name of its class, with the options of its config."""

    def make() -> nn.Module:
        cls = getattr(transformers, architecture)
        with SkipInit():
            model = cls(cls.config_class(**options))
        return randomise(model)

    return make


def resnet(*levels: str, **changes: Any) -> Any:
    """A small ResNet of transformers', with these levels."""
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    return transformers.ResNetConfig(**{**sizes, **changes}, out_features=list(levels))


@torch.no_grad()
def head_errors(case: HeadCase, folder: Path) -> dict[str, float]:
    """The largest relative error of each tensor, in float64."""
    peer = case.make().eval()
    peer.save_pretrained(folder)
    found = load_headed(folder, image_size=case.image_size, dtype=torch.float64)
    images = torch.randn(2, 3, *case.image_size, generator=torch.Generator().manual_seed(1)).double()
    theirs, mine = case.theirs(peer.double(), images), case.ours(found, images)
    return {name: relative_error(theirs[name], mine[name]) for name in theirs}


def head_cases() -> list[HeadCase]:
    """The cases of every tests/parity/head_cases/*.py that there is."""
    files = sorted((Path(__file__).parent / "head_cases").glob("[!_]*.py"))
    return [case for file in files for case in importlib.import_module(f"parity.head_cases.{file.stem}").CASES]
