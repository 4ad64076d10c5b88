"""The recipes of the package: YAML files whose header states command, hardware, seed and measured result."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from vitrail.errors import ConfigError, nearest


def list_recipes() -> list[str]:
    """The names of all recipes of the package."""
    files = resources.files(__name__).iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def recipe_text(name: str | Path) -> str:
    """The YAML text of a packaged recipe or of a file."""
    if str(name).endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"recipe file {path} does not exist")
        return path.read_text(encoding="utf-8")
    if name not in list_recipes():
        raise ConfigError(f"unknown recipe {str(name)!r}; {nearest(str(name), list_recipes())}")
    return resources.files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def read_recipe(name: str | Path) -> Mapping[str, Any]:
    """The options of a recipe as plain values; `vitrail.training.config` checks every key."""
    try:
        content = yaml.safe_load(recipe_text(name)) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"recipe {name} is not valid YAML: {str(error).replace(chr(10), ' ')}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"recipe {name} contains a {type(content).__name__}; it must be a mapping of options")
    return content
