"""Packages that are functions, too: `vitrail.explain(...)` beside `vitrail.explain.capture(...)`."""

import importlib
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A package that calls the public function of its name in `vitrail.api`, and has its docstring and signature."""

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        """That of the public function."""
        return self._function.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the public function."""
        return inspect.signature(self._function)

    @property
    def _function(self) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(importlib.import_module("vitrail.api"), self.__name__.rpartition(".")[2])
        return found

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """What the public function returns."""
        return self._function(*arguments, **options)


def make_callable(name: str) -> None:
    """Turns the package of a name into a callable one."""
    sys.modules[name].__class__ = CallableModule
