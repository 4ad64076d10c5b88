"""Configs as frozen dataclasses, registered choices, and parsing of options.

A config is a frozen keyword-only dataclass. For a choice between implementations (which attention, which positions),
the type of the field is a `Choice`, and each alternative is a dataclass that registers itself under a name and builds
its layer::

    class AttentionConfig(Choice): ...
    @dataclass(frozen=True, kw_only=True)
    class PerformerConfig(AttentionConfig, kind="performer"): ...

`apply` parses options of users (keywords, YAML, JSON, the command line) into such configs, strictly.
"""

import dataclasses
import math
import sys
import types
import typing
from abc import ABC
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from vitrail.errors import ConfigError, nearest

T = TypeVar("T")
_LONGEST = 200  # characters of a value in an error message


class Range(NamedTuple):
    """The allowed numbers of a field, as an annotation of its type: `Annotated[int, Range(1)]`."""

    least: float
    most: float = math.inf
    open: bool = False  # whether `least` itself is excluded

    def __str__(self) -> str:
        least = f"greater than {self.least:g}" if self.open else f"{self.least:g} or more"
        return least if self.most == math.inf else f"{least}, and {self.most:g} or less"

    def holds(self, number: float) -> bool:
        """Whether a number is in the range; infinity and NaN never are."""
        if abs(number) == math.inf or not self.least <= number <= self.most:  # math.isfinite fails for 10**400
            return False
        return not (self.open and number == self.least)


class Alias(NamedTuple):
    """Another word for a value, as an annotation: `Annotated[Literal["float32"], Alias("fp32", "float32")]`.

    It is only accepted as input: configs, and files written from them, contain the value.
    """

    word: str
    value: str


Count = Annotated[int, Range(1)]
CountFromZero = Annotated[int, Range(0)]
Rate = Annotated[float, Range(0.0, 1.0)]
NotNegative = Annotated[float, Range(0.0)]
Positive = Annotated[float, Range(0.0, open=True)]


class Config:
    """Base of all config dataclasses: raises ConfigError for numbers outside of the `Range` of a field."""

    def __post_init__(self) -> None:
        """Checks every field that has a range."""
        for name, hint in _hints(type(self)).items():
            if (value := getattr(self, name, None)) is not None:
                _check(hint, value, name)


class Choice(Config, ABC):
    """A choice between implementations; each alternative is a subclass with `kind="its-name"`."""

    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type["Choice"]]]

    def __init_subclass__(cls, kind: str = "") -> None:
        """Registers an alternative under its kind; a direct subclass of Choice is a new choice."""
        super().__init_subclass__()
        if Choice in cls.__bases__:
            cls.kinds = {}
        if kind:
            if kind in cls.kinds:
                raise TypeError(f"the kind {kind!r} is already registered by {cls.kinds[kind].__qualname__}")
            cls.kind = kind
            cls.kinds[kind] = cls


def apply(config: T, changes: Mapping[str, Any], where: str = "") -> T:
    """A copy of the config with changes: nested mappings are merged, strings select a choice, unknown keys fail."""
    hints = _hints(type(config))
    fields = [field.name for field in dataclasses.fields(config)]  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in fields:
            raise ConfigError(
                f"{_at(where, name)} is not an option of {type(config).__name__}; {nearest(name, fields)}"
            )
        values[name] = _parse(hints[name], value, getattr(config, name), _at(where, name))
    return dataclasses.replace(config, **values)  # type: ignore[type-var]


def to_dict(config: Any) -> Any:
    """Plain dicts, lists and scalars for JSON; a choice includes its `kind`. The inverse of `from_dict`."""
    if dataclasses.is_dataclass(config):
        plain = {field.name: to_dict(getattr(config, field.name)) for field in dataclasses.fields(config)}
        return {"kind": config.kind} | plain if hasattr(config, "kind") else plain
    if isinstance(config, tuple):
        return [to_dict(item) for item in config]
    if isinstance(config, dict):
        return {name: to_dict(item) for name, item in config.items()}
    return config


def from_dict(cls: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """A config of a class from plain data; required fields must be present, unknown fields are an error.

    A mapping changes the default of a field that is a config.
    """
    hints = _hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in data:
        if name not in fields:
            raise ConfigError(f"{_at(where, name)} is not an option of {cls.__name__}; {nearest(name, fields)}")
    required = [
        name
        for name, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing := [_at(where, name) for name in required if name not in data]:
        raise ConfigError(f"{cls.__name__} needs {', '.join(missing)}")
    usual = {name: field.default for name, field in fields.items() if isinstance(field.default, Config)}
    return cls(**{name: _parse(hints[name], value, usual.get(name), _at(where, name)) for name, value in data.items()})


def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def _check(hint: Any, value: Any, where: str) -> None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        for limit in arguments[1:]:
            if isinstance(limit, Range) and not limit.holds(value):
                raise ConfigError(f"{where} is {_shown(value)}; it must be {limit}")
    elif origin is tuple and isinstance(value, tuple) and len(arguments) == len(value):
        for inner, item in zip(arguments, value, strict=True):
            _check(inner, item, where)
    elif origin in (types.UnionType, typing.Union):
        for inner in arguments:
            _check(inner, value, where)


def split_names(names: str | Iterable[str] | None) -> tuple[str, ...]:
    """Names as people write them, "age,weight" or ["age", "weight"]; none for None."""
    parts = names.split(",") if isinstance(names, str) else names or ()
    return tuple(part.strip() for part in parts if part.strip())


def _at(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _parse(hint: Any, value: Any, current: Any, where: str) -> Any:
    """Converts a value to the type of the hint; a mapping is merged into `current`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        words = {extra.word: extra.value for extra in arguments[1:] if isinstance(extra, Alias)}
        meant = words.get(value, value) if isinstance(value, str) else value
        return _parse(arguments[0], meant, current, where)
    if origin in (types.UnionType, typing.Union):
        return _parse_union(arguments, value, current, where)
    if origin is Literal:
        if value not in arguments:
            raise ConfigError(f"{where} is {_shown(value)}; {nearest(_word(value), map(str, arguments))}")
        return value
    if origin is tuple:
        return _parse_tuple(arguments, value, where)
    if origin is dict:
        return _parse_mapping(arguments[1], value, current or {}, where)
    if isinstance(hint, type) and issubclass(hint, Choice):
        return _parse_choice(hint, value, current, where)
    if isinstance(hint, type) and issubclass(hint, Config) and isinstance(value, Mapping):
        return from_dict(hint, value, where) if current is None else apply(current, value, where)
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{where} is {_shown(value)} ({type(value).__name__}); it must be {_name(hint)}")
    return value


def _parse_union(options: tuple[Any, ...], value: Any, current: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _parse(option, value, current, where)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _parse_tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        if value in ("none", ["none"]):
            return ()
        if isinstance(value, str):  # "flip,crop" on a command line
            value = [part.strip() for part in value.strip("[]").split(",")]
        many = value if isinstance(value, Iterable) and not isinstance(value, Mapping) else [value]
        return tuple(_parse(arguments[0], item, None, f"{where}[{index}]") for index, item in enumerate(many))
    # One number means a square: image_size=224, patch size 16.
    many = [value] * len(arguments) if isinstance(value, int) else value
    if not isinstance(many, Iterable) or isinstance(many, str | Mapping) or len(many := list(many)) != len(arguments):
        raise ConfigError(f"{where} is {_shown(value)}; it must be one number or {len(arguments)} numbers")
    return tuple(_parse(hint, item, None, where) for hint, item in zip(arguments, many, strict=True))


def _parse_mapping(hint: Any, value: Any, current: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Values by name; of a choice, a name that says no kind is the name of a kind: ["a", "b"] or {"a": {...}}."""
    if isinstance(value, str):  # "a,b" on a command line
        value = [part.strip() for part in value.strip("[]").split(",")]
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        names = list(value)
        if wrong := [name for name in names if not isinstance(name, str) or names.count(name) > 1]:
            raise ConfigError(f"{where} has {_shown(wrong[0])}; it must be a list of different names, or a mapping")
        value = {name: {} for name in names}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} is {_shown(value)}; it must be a list of names, or a mapping")
    chooses, found = isinstance(hint, type) and issubclass(hint, Choice), {}
    for name, item in value.items():
        usual = {"kind": name} if chooses and name not in current and isinstance(item, Mapping) else {}
        given = {**usual, **item} if usual else item
        found[name] = _parse(hint, given, current.get(name), _at(where, str(name)))
    return found


def _parse_choice(base: type[Choice], value: Any, current: Any, where: str) -> Any:
    if isinstance(value, base):
        return value
    data = {"kind": value} if isinstance(value, str) else value
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{where} is {_shown(value)}; it must be one of {', '.join(sorted(base.kinds))}, or a mapping"
        )
    changes = {key: item for key, item in data.items() if key != "kind"}
    kind = data.get("kind", current.kind if current is not None else None)
    if not isinstance(kind, str) or kind not in base.kinds:
        raise ConfigError(f"{where} has no kind {_shown(kind)}; {nearest(_word(kind), base.kinds)}")
    if current is not None and kind == current.kind:
        return apply(current, changes, where)
    return from_dict(base.kinds[kind], changes, where)


def _shown(value: Any) -> str:
    """A value in an error message; a long one is cut."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _word(value: Any) -> str:
    """What the nearest option is looked for with."""
    return value[:_LONGEST] if isinstance(value, str) else _shown(value)


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", str(hint))
