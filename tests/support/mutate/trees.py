"""Mutants of JSON and YAML documents: values of another type, numbers out of range, missing or strange keys."""

import copy
import json
from typing import Any

import yaml

from support.mutate.raw import Chance, any_number, damaged

STRINGS = (
    "", " ", "\0", "é" * 40, "x" * 5_000, "../../etc/passwd", "/dev/zero", "=1+1", "null", "-1", "1e999", "\ud800",
    "{}", "%s%n", "__class__", "9" * 5_000, "a\nb", "nan", "C:\\x", "file:///etc/passwd", "\u202e", "'; --",
)  # fmt: skip


def value(chance: Chance) -> Any:
    """Any value at all."""
    return chance.choice(
        (None, True, False, any_number(chance), chance.choice(STRINGS), [], {}, [any_number(chance)] * 3, {"": None})
    )


def slots(tree: Any) -> list[tuple[Any, Any]]:
    """Every place in a document: its parent, and its key or index there."""
    found, waiting = [], [tree]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        found += [(node, key) for key in keys]
        waiting += [node[key] for key in keys if isinstance(node[key], dict | list)]
    return found


def mutated_tree(tree: Any, chance: Chance) -> Any:
    """A copy with one to three places changed."""
    tree = copy.deepcopy(tree)
    for _ in range(chance.randint(1, 3)):
        places = slots(tree) if isinstance(tree, dict | list) else []
        if not places or chance.random() < 0.02:
            return value(chance)
        parent, key = chance.choice(places)
        _change(parent, key, places, chance)
    return tree


def _change(parent: Any, key: Any, places: list[tuple[Any, Any]], chance: Chance) -> None:
    old = parent[key]
    match chance.randrange(7):
        case 0:
            del parent[key]
        case 1 if isinstance(parent, dict):
            parent[chance.choice((*STRINGS, str(key).upper(), "kind"))] = parent.pop(key)
        case 2 if isinstance(old, int | float):
            old = old if isinstance(old, float) or old.bit_length() < 9_999 else 9
            parent[key] = chance.choice((-old, old + 1, old * 1_000, old * 10**9, any_number(chance), str(old), [old]))
        case 3:
            other, place = chance.choice(places)
            parent[key] = copy.deepcopy(other[place])
        case 4 if isinstance(old, list):
            parent[key] = old * chance.choice((0, 2, 1_000)) if len(old) < 20 else old[:1]
        case 5 if isinstance(old, dict):
            old[chance.choice(STRINGS)] = value(chance)
        case _:
            parent[key] = value(chance)


def nested(chance: Chance, depth: int = 100_000) -> str:
    """Brackets so deep that a recursive parser has no stack left."""
    opening = chance.choice(("[", '{"a":', '[[[{"b":'))
    return opening * (depth // len(opening))


def mutated_json(data: bytes, chance: Chance) -> bytes:
    """A document that is valid JSON most of the time, but not what was meant."""
    roll = chance.random()
    if roll < 0.03:
        return nested(chance).encode()
    if roll < 0.15:
        return damaged(data, chance)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return damaged(data, chance)
    return json.dumps(mutated_tree(tree, chance)).encode()


def mutated_json_lines(data: bytes, chance: Chance) -> bytes:
    """One line of many is another."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    lines[at] = mutated_json(lines[at], chance)
    return b"\n".join(lines)


def mutated_yaml(data: bytes, chance: Chance) -> bytes:
    """A document with other values, tags, anchors or indentation."""
    roll = chance.random()
    if roll < 0.05:
        return chance.choice(YAML_TRICKS).encode()
    if roll < 0.25 or b"&a" in data:  # what anchors repeat would be walked here too
        return damaged(data, chance)
    try:
        tree = yaml.safe_load(data)
    except (yaml.YAMLError, ValueError, RecursionError):
        return damaged(data, chance)
    try:
        return yaml.safe_dump(mutated_tree(tree, chance), allow_unicode=True).encode()
    except (yaml.YAMLError, UnicodeEncodeError):
        return damaged(data, chance)


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]
)
YAML_TRICKS = (
    BOMB,
    "epochs: &a [*a]",
    "a: &a {b: *a}",
    "model: !!python/object/apply:os.system ['touch ../escaped']",
    "model: !!python/name:os.system",
    "epochs: 0x" + "f" * 5_000,
    "epochs: " + "1_0" * 3_000,
    "epochs: 1:1:1",
    "epochs: 2024-99-99",
    "? [a, b]\n: c",
    "? {a: b}\n: c",
    "<<: [1, 2]",
    "[" * 5_000,
    "- a\n- b",
    "%YAML 9.9\n---\na: 1",
    "--- a\n--- b",
    "\t: x",
    "epochs: .nan\nlr: .inf",
    "=: 1",
    "1: 2\nnull: 3\ntrue: 4",
)
