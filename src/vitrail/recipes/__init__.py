"""The recipes of the package: YAML files whose header states command, hardware, seed and measured result."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from vitrail.errors import ConfigError, nearest
from vitrail.strict_yaml import from_yaml

MAX_BYTES, MAX_VALUES = 1 << 20, 10_000


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
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(
                f"recipe file {path} is larger than {MAX_BYTES:,} bytes; it must be a short list of options"
            )
        return path.read_text(encoding="utf-8")
    if name not in list_recipes():
        raise ConfigError(f"unknown recipe {str(name)!r}; {nearest(str(name), list_recipes())}")
    return resources.files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def read_recipe(name: str | Path) -> Mapping[str, Any]:
    """The options of a recipe as plain values; `vitrail.training.config` checks every key."""
    try:
        content = from_yaml(recipe_text(name), most=MAX_VALUES) or {}
    except ValueError as error:  # not UTF-8, too
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"recipe {name} is not valid YAML: {str(error)[:300]}") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"recipe {name} contains a {type(content).__name__}; it must be a mapping of options")
    _check_keys(content, str(name))
    return content


def _check_keys(content: Mapping[Any, Any], name: str) -> None:
    """ConfigError for keys that are not words."""
    waiting: list[Any] = [content]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            if wrong := [key for key in node if not isinstance(key, str)]:
                raise ConfigError(f"recipe {name} has the key {wrong[0]!r}; keys must be names of options")
            waiting.extend(node.values())
        elif isinstance(node, list):
            waiting.extend(node)
