"""Mutants of exported models: fields of a protobuf, and elements of an XML."""

import re

from support.mutate.raw import Chance, damaged, number, rearranged

MAX_DEPTH = 6


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of a protobuf, and where it ends."""
    found, shift = 0, 0
    while True:
        byte = data[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at
        if shift > 63:
            raise ValueError("more than 64 bits")


def as_varint(value: int) -> bytes:
    """A number as a protobuf has it."""
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """Field numbers, wire types and contents of a message; ValueError or IndexError where it is none."""
    found, at = [], 0
    while at < len(data):
        tag, at = varint(data, at)
        wire, start = tag & 7, at
        if tag >> 3 == 0 or wire not in (0, 1, 2, 5):
            raise ValueError("not a field")
        if wire == 0:
            _, at = varint(data, at)
        elif wire == 2:
            size, start = varint(data, at)
            at = start + size
        else:
            at += 8 if wire == 1 else 4
        if at > len(data):
            raise ValueError("too long")
        found.append((tag >> 3, wire, data[start:at]))
    return found


def joined(parts: list[tuple[int, int, bytes]]) -> bytes:
    """A message of fields."""
    return b"".join(
        as_varint(tag << 3 | wire) + (as_varint(len(held)) if wire == 2 else b"") + held for tag, wire, held in parts
    )


def protobuf(data: bytes, chance: Chance, depth: int = 0) -> bytes:
    """One field changes, at the top or within; lengths around it stay right."""
    if depth == 0 and chance.random() < 0.1:
        return damaged(data, chance)
    try:
        parts = fields(data)
    except (ValueError, IndexError):
        parts = []
    if not parts:
        return damaged(data, chance)
    at = chance.randrange(len(parts))
    tag, wire, held = parts[at]
    if wire == 2 and held and depth < MAX_DEPTH and chance.random() < 0.75:
        parts[at] = (tag, wire, protobuf(held, chance, depth + 1))
        return joined(parts)
    match chance.randrange(5):
        case 0 if wire == 0:
            parts[at] = (tag, wire, as_varint(number(chance, 64)))
        case 1:
            parts[at] = (number(chance, 8) or 1, wire, held)
        case 2:
            del parts[at]
        case 3:
            parts[at:at] = [parts[at]] * chance.choice((1, 3, 100))
        case _:
            parts[at] = (tag, wire, damaged(held, chance)) if wire == 2 else (tag, 0, as_varint(number(chance, 64)))
    return joined(parts)


def external(data: bytes, path: str) -> bytes:
    """An ONNX model whose first weight is said to be in another file."""
    import onnx

    try:
        model = onnx.load_from_string(data)
        tensor = model.graph.initializer[0]
    except Exception:  # mutated before; protobuf's errors have no common base
        return data
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", path
    return model.SerializeToString()


def onnx_model(data: bytes, chance: Chance) -> bytes:
    """A model with another field, or with weights in a file that it must not read."""
    if chance.random() < 0.1:
        return external(data, chance.choice(("../secret", "/etc/passwd", "/dev/zero", "model.onnx", "")))
    return protobuf(data, chance)


ENTITIES = "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b 'cc'>" + "".join(
    f"<!ENTITY b{n} '{'&b' + (str(n - 1) if n else '') + ';'}'>" * 1 for n in range(1, 9)
)
XML_TRICKS = (
    "<?xml version='1.0'?><!DOCTYPE a [<!ENTITY x SYSTEM 'file:///etc/passwd'>]><net>&x;</net>",
    ENTITIES + "]><net>&b8;</net>",
    "<net" + " a='b'" * 5_000 + "/>",
    "<a>" * 20_000,
    "<net name='x' version='11'/>",
    "",
)


def xml(data: bytes, chance: Chance) -> bytes:
    """Elements dropped, doubled or exchanged, and attributes with other values."""
    roll = chance.random()
    if roll < 0.08:
        return chance.choice(XML_TRICKS).encode()
    if roll < 0.2:
        return damaged(data, chance)
    if roll < 0.5:
        return b"\n".join(rearranged(data.split(b"\n"), chance))
    values = [match.span(1) for match in re.finditer(rb'="([^"]*)"', data)]
    values += [match.span(1) for match in re.finditer(rb">([0-9-]+)<", data)]
    if not values:
        return damaged(data, chance)
    start, stop = chance.choice(values)
    other = chance.choice((b"", b"-1", b"%d" % number(chance, 64), b"x" * 5_000, b"&#0;", b"1,2,3", b"f32", b"nan"))
    return data[:start] + other + data[stop:]
