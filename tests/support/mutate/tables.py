"""Mutants of data: cells of tables, headers of shards and arrays."""

import csv
import re
import struct
from io import StringIO

from support.mutate.raw import Chance, damaged, number, rearranged
from support.mutate.trees import STRINGS, mutated_json

CELLS = (
    *(text for text in STRINGS if "\ud800" not in text),
    "1e400",
    "a|b|c",
    "a;b",
    "0x10",
    "\uff11\uff12",
    "١٢",
    "../x.png",
    "/dev/null",
    "x\r\ny",
    '"',
    "1_000",
)


def comma_separated(data: bytes, chance: Chance) -> bytes:
    """Cells, columns and quotes."""
    if chance.random() < 0.25:
        return damaged(data, chance)
    try:
        rows = list(csv.reader(StringIO(data.decode("utf-8-sig"), newline="")))
    except (UnicodeDecodeError, csv.Error):
        rows = []
    if not rows:
        return damaged(data, chance)
    for _ in range(chance.randint(1, 3)):
        row = chance.choice((rows[0], *rows[1:4], chance.choice(rows)))
        match chance.randrange(5):
            case 0 if row:
                row[chance.randrange(len(row))] = chance.choice(
                    (*CELLS, str(number(chance, 64)), str(-number(chance, 64)))
                )
            case 1:
                row.append(chance.choice(CELLS))
            case 2 if row:
                del row[chance.randrange(len(row))]
            case 3:
                rows[:] = rows[: chance.randrange(len(rows) + 1)] or rows[:1]
            case _:
                for one in rows:
                    one.insert(0, chance.choice(("split", "label", "", "1", "train")))
    text = StringIO()
    csv.writer(text, delimiter=chance.choice(",,,;\t"), lineterminator=chance.choice(("\n", "\r\n", "\r"))).writerows(
        rows
    )
    coding = chance.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16"))
    return text.getvalue().encode(coding, "surrogatepass")


def parquet(data: bytes, chance: Chance) -> bytes:
    """The footer with its length, or anything."""
    if len(data) < 12 or chance.random() < 0.3:
        return damaged(data, chance)
    size = min(struct.unpack("<I", data[-8:-4])[0], len(data) - 8)
    body, footer = data[: -8 - size], data[-8 - size : -8]
    if chance.random() < 0.3:
        return body + footer + struct.pack("<I", number(chance, 32)) + data[-4:]
    footer = damaged(footer, chance)
    return body + footer + struct.pack("<I", len(footer)) + data[-4:]


# --- shards ----------------------------------------------------------------------------------------------------------

BLOCK = 512


def tar_members(data: bytes) -> list[tuple[bytes, bytes]]:
    """Headers with the contents that follow them."""
    found, at = [], 0
    while at + BLOCK <= len(data) and any(data[at : at + BLOCK]):
        header = data[at : at + BLOCK]
        try:
            size = int(header[124:136].strip(b" \0") or b"0", 8)
        except ValueError:
            break
        stop = at + BLOCK + -(-size // BLOCK) * BLOCK
        found.append((header, data[at + BLOCK : stop]))
        at = stop
    return found


def summed(header: bytes) -> bytes:
    """A header with the right checksum."""
    changed = header[:148] + b" " * 8 + header[156:]
    return changed[:148] + b"%06o\0 " % sum(changed) + changed[156:]


def tar(data: bytes, chance: Chance) -> bytes:
    """Names, kinds and sizes in headers with right checksums; labels that are none."""
    members = tar_members(data)
    if not members or chance.random() < 0.15:
        return damaged(data, chance)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(members))
        header, content = members[at]
        match chance.randrange(6):
            case 0:
                sizes = (
                    b"%011o\0" % number(chance, 32),
                    b"-1".ljust(12, b"\0"),
                    b"\x80" + number(chance, 88).to_bytes(11, "big"),
                )
                header = header[:124] + chance.choice((*sizes, b"\xff" * 12, b"9" * 12, b"\0" * 12)) + header[136:]
            case 1:
                name = chance.choice(
                    (b"../escaped.png", b"/etc/x.jpg", b"\xff\xfe.png", b"", b"a" * 100, b".png", b"k.cls", b"0.PNG")
                )
                header = name.ljust(100, b"\0") + header[100:]
            case 2:
                header = header[:156] + bytes([chance.choice(b"0127LKxgSV5\0")]) + header[157:]
            case 3:
                members.insert(at, chance.choice(members))
            case 4:
                content = _label(content, chance)
                header = header[:124] + b"%011o\0" % len(content.rstrip(b"\0")) + header[136:]
            case _:
                content = damaged(content, chance)
        members[at] = (summed(header), content + bytes(-len(content) % BLOCK))
    return b"".join(header + content for header, content in members) + bytes(2 * BLOCK * chance.randrange(2))


def _label(content: bytes, chance: Chance) -> bytes:
    texts = (
        b"-1",
        b"%d" % number(chance, 64),
        b"1e3",
        b"",
        b"\xff",
        b"9" * 5_000,
        b"true",
        b'{"label": null}',
        b"[1, [2]]",
        b"a|b",
    )
    return chance.choice((*texts, mutated_json(b'{"label": 3, "labels": ["a", "b"]}', chance)))


# --- arrays ----------------------------------------------------------------------------------------------------------


def npy(data: bytes, chance: Chance) -> bytes:
    """The dictionary in the header: types and shapes."""
    if data[:6] != b"\x93NUMPY" or len(data) < 10 or chance.random() < 0.2:
        return damaged(data, chance)
    size = struct.unpack_from("<H", data, 8)[0]
    body = data[10 + size :]
    kinds = ("|u1", "<f8", "|O", "<U9", ">c16", "<m8", "|V9", "x", "<u1024", [("a", "<i4")], "|b1", "<f2")
    shapes = (
        (0,),
        (),
        (number(chance, 40), 2),
        (-1, 4),
        (2**31, 2**31, 2**31),
        (len(body),),
        (1,) * 70,
        (len(body), 1, 1, 1),
    )
    header = {
        "descr": chance.choice(kinds),
        "fortran_order": chance.choice((True, False, 3)),
        "shape": chance.choice(shapes),
    }
    if chance.random() < 0.2:
        del header[chance.choice(tuple(header))]
    text = chance.choice(
        (str(header), str(header), str(header), "(" * 9_000, "__import__('os').system('touch ../escaped')")
    )
    encoded = text.encode() + b"\n"
    return data[:8] + struct.pack("<H", len(encoded) & 0xFFFF) + encoded + body


def idx(data: bytes, chance: Chance) -> bytes:
    """The rank and the sides of an idx file."""
    if len(data) < 16 or chance.random() < 0.3:
        return damaged(data, chance)
    changed = bytearray(data)
    changed[3] = chance.choice((0, 1, 2, 3, 4, 255))
    struct.pack_into(">I", changed, 4 * chance.randint(1, 3), number(chance, 32))
    return bytes(changed)


def lines(data: bytes, chance: Chance) -> bytes:
    """Plain lines: dropped, doubled, exchanged, damaged."""
    return b"\n".join(rearranged(data.split(b"\n"), chance))


def words(data: bytes, chance: Chance) -> bytes:
    """Words between blanks, such as the numbers of a box: one is another."""
    found = list(re.finditer(rb"\S+", data))
    if not found or chance.random() < 0.3:
        return chance.choice((lines, damaged))(data, chance)
    start, stop = chance.choice(found).span()
    other = chance.choice((*CELLS, str(number(chance, 64)), str(-number(chance, 64)), "inf", "0", "2.5"))
    return data[:start] + other.encode() + data[stop:]
