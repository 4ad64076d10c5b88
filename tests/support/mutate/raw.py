"""Damage to bytes of any kind: what the structure-aware mutators fall back on, and the numbers that break parsers."""

import random

Chance = random.Random

EDGES = (0, 1, 2, 3, 7, 8, 15, 16, 31, 64, 127, 128, 255, 256, 32767, 32768, 65535, 65536)
HUGE = (10**6, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 10**9, 2**53, 2**63 - 1, 2**63, 2**64 - 1, 10**30)


def number(chance: Chance, bits: int = 32) -> int:
    """A number that fits in so many bits, at an edge more often than not."""
    limit = (1 << bits) - 1
    fits = [value for value in EDGES + HUGE if value <= limit]
    return chance.choice(fits) if chance.random() < 0.8 else chance.randrange(limit + 1)


def any_number(chance: Chance) -> int | float:
    """A number without a size: negative, huge, a fraction, none at all."""
    return chance.choice(
        (number(chance, 64), -number(chance, 64), chance.random(), float("nan"), float("inf"), 1e308, -0.0)
    )


def cut(data: bytes, chance: Chance) -> bytes:
    """Ends too early."""
    return data[: chance.randrange(len(data) + 1)]


def flip(data: bytes, chance: Chance) -> bytes:
    """A few bytes are others, anywhere or near the start."""
    changed = bytearray(data)
    span = len(changed) if chance.random() < 0.5 else min(len(changed), 64)
    for _ in range(chance.randint(1, 8)):
        if span:
            changed[chance.randrange(span)] = chance.choice((0, 255, 127, 128, chance.randrange(256)))
    return bytes(changed)


def repeat(data: bytes, chance: Chance) -> bytes:
    """A stretch occurs several times."""
    start = chance.randrange(len(data) + 1)
    stop = min(len(data), start + chance.choice((1, 4, 16, 256)))
    return data[:start] + data[start:stop] * chance.choice((2, 3, 50)) + data[stop:]


def remove(data: bytes, chance: Chance) -> bytes:
    """A stretch is missing."""
    start = chance.randrange(len(data) + 1)
    return data[:start] + data[start + chance.choice((1, 2, 4, 16, 256)) :]


def insert(data: bytes, chance: Chance) -> bytes:
    """Foreign bytes in between."""
    start = chance.randrange(len(data) + 1)
    return data[:start] + chance.randbytes(chance.choice((1, 4, 64))) + data[start:]


def overwrite(data: bytes, chance: Chance) -> bytes:
    """A number of two, four or eight bytes somewhere is another."""
    size = chance.choice((2, 4, 8))
    if len(data) < size:
        return flip(data, chance)
    at = chance.randrange(len(data) - size + 1)
    return data[:at] + number(chance, 8 * size).to_bytes(size, chance.choice(("big", "little"))) + data[at + size :]


def spliced(data: bytes, other: bytes, chance: Chance) -> bytes:
    """The start of one file and the end of another."""
    return cut(data, chance) + other[chance.randrange(len(other) + 1) :]


DAMAGE = (cut, flip, repeat, remove, insert, overwrite)


def damaged(data: bytes, chance: Chance) -> bytes:
    """One of all of these."""
    return chance.choice(DAMAGE)(data, chance)


def rearranged(parts: list[bytes], chance: Chance) -> list[bytes]:
    """Parts of a file dropped, doubled, exchanged or damaged."""
    parts = list(parts)
    if not parts:
        return parts
    one, two = chance.randrange(len(parts)), chance.randrange(len(parts))
    match chance.randrange(5):
        case 0:
            del parts[one]
        case 1:
            parts[one:one] = [parts[two]] * chance.choice((1, 2, 40))
        case 2:
            parts[one], parts[two] = parts[two], parts[one]
        case 3:
            parts[one] = damaged(parts[one], chance)
        case 4:
            parts = parts[: one + 1]
    return parts
