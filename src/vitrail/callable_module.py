"""Packages that are functions, too: `vitrail.explain(...)` beside `vitrail.explain.capture(...)`."""

import importlib
import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A package that calls the public function of its name in `vitrail.api`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """What the public function returns."""
        function = getattr(importlib.import_module("vitrail.api"), self.__name__.rpartition(".")[2])
        return function(*arguments, **options)


def make_callable(name: str) -> None:
    """Turns the package of a name into a callable one."""
    sys.modules[name].__class__ = CallableModule
