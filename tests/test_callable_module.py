"""Packages that can be called."""

import importlib
import inspect
import sys
import types

import pytest

from vitrail import api
from vitrail.callable_module import make_callable


@pytest.mark.parametrize("name", ["explain", "serve"])
def test_a_package_calls_the_public_function_of_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = importlib.import_module(f"vitrail.{name}")
    monkeypatch.setattr(api, name, lambda *arguments, **options: (arguments, options))
    assert package(1, two=3) == ((1,), {"two": 3})


@pytest.mark.parametrize("name", ["explain", "serve"])
def test_help_is_that_of_the_function(name: str) -> None:
    package, function = importlib.import_module(f"vitrail.{name}"), getattr(api, name)
    assert package.__doc__ == function.__doc__
    assert inspect.signature(package) == inspect.signature(function)


def test_a_module_keeps_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("vitrail.bench")
    module.number = 7
    monkeypatch.setitem(sys.modules, "vitrail.bench", module)
    make_callable("vitrail.bench")
    assert module.number == 7
    assert callable(module)
