"""Parity cases of the families beside the plain ViT: timm's and Hugging Face's models, saved as they save them."""

import functools
import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from support.peers import timm, transformers
from timm.models._hub import save_for_hf
from torch import Tensor, nn

import vitrail
from parity.compare import Case, Outputs, randomise
from vitrail.models.initialise import SkipInit
from vitrail.models.registry import family_of


def from_timm(
    architecture: str,
    what: str = "",
    *,
    image_size: tuple[int, int] = (224, 224),
    run: Callable[[nn.Module, Tensor], Outputs] | None = None,
    load_options: dict[str, Any] | None = None,
    **model_args: Any,
) -> Case:
    """A model of timm's, as small as `model_args` make it; logits and every level of its pyramid are compared."""

    def make() -> nn.Module:
        with SkipInit():
            model = timm.create_model(architecture, **model_args)
        return randomise(model)

    def save(model: nn.Module, folder: Path) -> None:
        save_for_hf(model, folder, model_args=model_args, safe_serialization=True)

    name = f"{architecture}, {what}" if what else architecture
    options = load_options or {}
    return Case(name, "timm", make, save, run or timm_levels, image_size, options, model_args.get("in_chans", 3))


@torch.no_grad()
def timm_levels(model: nn.Module, images: Tensor) -> Outputs:
    """timm's logits and the maps after each of its stages, without the final norm."""
    levels = model.forward_intermediates(images, intermediates_only=True, norm=False, output_fmt="NCHW")
    return Outputs(model(images), [], levels=levels)


def from_hf(
    architecture: str,
    what: str = "",
    *,
    image_size: tuple[int, int] = (224, 224),
    run: Callable[[nn.Module, Tensor], Outputs] | None = None,
    load_options: dict[str, Any] | None = None,
    built_for: int | tuple[int, int] | None = None,
    **options: Any,
) -> Case:
    """A model of transformers', by the name of its class, with the options of its config.

    `built_for` is the config's image_size, where it has one.
    """
    options |= {} if built_for is None else {"image_size": built_for}

    def make() -> nn.Module:
        cls = getattr(transformers, architecture)
        with SkipInit():
            model = cls(cls.config_class(**options))
        return randomise(model)

    def save(model: nn.Module, folder: Path) -> None:
        model.save_pretrained(folder)

    name = f"{architecture}, {what}" if what else architecture
    channels = options.get("num_channels", 3)
    return Case(name, "hf", make, save, run or hf_levels, image_size, load_options or {}, channels)


@torch.no_grad()
def hf_levels(model: nn.Module, images: Tensor) -> Outputs:
    """transformers' logits; a family's case compares levels by a `run` of its own."""
    return Outputs(model(images).logits, [])


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """The cases of every tests/parity/cases/*.py that there is."""
    files = sorted((Path(__file__).parent / "cases").glob("[!_]*.py"))
    return tuple(case for file in files for case in importlib.import_module(f"parity.cases.{file.stem}").CASES)


def family_cases() -> list[Case]:
    """Those that are not plain ViTs, which have tests of their own."""
    plain = {case.name for stem in ("timm", "hf") for case in importlib.import_module(f"parity.cases.{stem}").CASES}
    return [case for case in all_cases() if case.name not in plain]


def family_name(case: Case, folder: Path) -> str:
    """The family that vitrail finds in what the case has saved."""
    with warnings.catch_warnings(action="ignore"):
        return family_of(vitrail.load(folder, **case.load_options)).name
