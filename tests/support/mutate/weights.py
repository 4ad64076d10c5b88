"""Mutants of weight files: headers of safetensors, archives and pickles of torch."""

import json
import pickletools
import struct
import zipfile
from io import BytesIO

from support.mutate.raw import Chance, damaged, flip, number, rearranged
from support.mutate.trees import STRINGS, mutated_tree, nested, value

# What a pickle would run if it were let: the file that it leaves beside the case's folder tells of it.
ESCAPE = b"cposix\nsystem\n(X\x10\x00\x00\x00touch ../escapedtR"
GLOBALS = (
    b"cposix\nsystem\n",
    b"cbuiltins\neval\n",
    b"ctorch\nload\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"cos\nPathLike\n",
)


def safetensors(data: bytes, chance: Chance) -> bytes:
    """Another length of the header, or other names, types, shapes and offsets in it."""
    size = int.from_bytes(data[:8], "little")
    try:
        header = json.loads(data[8 : 8 + size])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        return damaged(data, chance)
    roll = chance.random()
    if roll < 0.1:
        return struct.pack("<Q", number(chance, 64)) + data[8:]
    if roll < 0.2:
        return damaged(data, chance)
    text = nested(chance).encode() if roll < 0.25 else json.dumps(_header(header, chance)).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def _header(header: dict[str, object], chance: Chance) -> object:
    """The description of one tensor or the metadata changes; sometimes it stays consistent."""
    if chance.random() < 0.3:
        return mutated_tree(header, chance)
    names = [name for name in header if name != "__metadata__"] or [""]
    name = chance.choice(names)
    tensor = header.get(name)
    match chance.randrange(6):
        case 0 if isinstance(tensor, dict):
            tensor["shape"] = [number(chance, 40) for _ in range(chance.choice((0, 1, 2, 4, 9, 1_000)))]
        case 1 if isinstance(tensor, dict):
            tensor["dtype"] = chance.choice(("F64", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F4", "x", None))
        case 2 if isinstance(tensor, dict):
            tensor["data_offsets"] = [number(chance, 40), number(chance, 64)]
        case 3:
            header[chance.choice((*STRINGS, name + ".x", "module." + name))] = header.pop(name, None)
        case 4:
            held = header.get("__metadata__")
            header["__metadata__"] = mutated_tree(held, chance) if isinstance(held, dict) else value(chance)
        case _:  # the same values in another order: the sizes still fit
            other = chance.choice(names)
            header[name], header[other] = header.get(other), header.get(name)
    return header


def archive(data: bytes, chance: Chance) -> bytes:
    """A zip of torch: one member changes, is missing or comes twice, or the archive itself is damaged."""
    try:
        with zipfile.ZipFile(BytesIO(data)) as old:
            members = [(info.filename, old.read(info)) for info in old.infolist()]
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError, RuntimeError, KeyError):
        return damaged(data, chance)
    if not members or chance.random() < 0.15:
        return damaged(data, chance)
    at = chance.randrange(len(members))
    name, content = members[at]
    match chance.randrange(6):
        case 0:
            del members[at]
        case 1:
            members.append((chance.choice(("../escaped", "/tmp/escaped", "a" * 300, "é\0", name)), content))
        case 2:
            members[at] = (name, bytes(chance.choice((0, 1, 8, 1 << 22))))
        case 3 if pickles := [n for n, (one, _) in enumerate(members) if one.endswith((".pkl", ".pt"))]:
            at = chance.choice(pickles)
            members[at] = (members[at][0], pickled(members[at][1], chance))
        case 4 if texts := [n for n, (one, held) in enumerate(members) if held[:1] in b"{["]:
            from support.mutate.trees import mutated_json

            at = chance.choice(texts)
            members[at] = (members[at][0], mutated_json(members[at][1], chance))
        case _:
            members[at] = (name, damaged(content, chance))
    return zipped(members, compressed=chance.random() < 0.1)


def zipped(members: list[tuple[str, bytes]], *, compressed: bool = False) -> bytes:
    """An archive of members."""
    import warnings

    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as new:
        for name, content in members:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the same name twice
                new.writestr(zipfile.ZipInfo(name), content, new.compression)
    return file.getvalue()


def pickled(data: bytes, chance: Chance) -> bytes:
    """Opcodes dropped, doubled, exchanged or with other arguments; globals and calls put in."""
    if chance.random() < 0.2:
        return b"\x80\x02" + ESCAPE + b"."
    try:
        starts = [position for _, _, position in pickletools.genops(data)]
    except Exception:  # whatever a broken pickle raises
        return damaged(data, chance)
    codes = [data[start:stop] for start, stop in zip(starts, [*starts[1:], len(data)], strict=True)]
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(codes))
        match chance.randrange(4):
            case 0:
                codes = rearranged(codes, chance) or codes
            case 1:
                codes[at] = codes[at][:1] + flip(codes[at][1:], chance)
            case 2:
                codes.insert(
                    at, chance.choice((*GLOBALS, ESCAPE, b"R", b"0", b"(", b"t", b"b", b"\x81", b"N", b"]", b"}"))
                )
            case _:
                integers = [n for n, code in enumerate(codes) if code[:1] in b"KMJ"]
                if integers:
                    codes[chance.choice(integers)] = b"\x8a\x08" + number(chance, 62).to_bytes(8, "little")
    return b"".join(codes)
