"""Requests that break the grammar of HTTP, of forms or of JSON bodies, as bytes for a socket."""

from typing import NamedTuple

from support.mutate.heavy_pictures import flat_webp, heavy, many_scans, tiles
from support.mutate.pictures import picture
from support.mutate.raw import Chance, damaged, number, rearranged
from support.mutate.trees import STRINGS, mutated_json, nested

ROUTES = ("/predict", "/predict", "/predict", "/predict", "/explain")
QUERIES = (
    "", "", "", "", "", "?top=3", "?top=-1", "?top=99999999999999999999", "?top=%ff", "?display=1", "?method=x",
    "?target=2", "?target=%00", "?layer=0&head=1", "?method=rollout&layer=99999", "?" + "a&" * 30, "?top=1&top=2", "??",
    "?method=" + "x" * 3_000,
)  # fmt: skip
TYPES = (
    "image/png",
    "image/jpeg",
    "IMAGE/x",
    "application/octet-stream",
    "text/html",
    "",
    "image/\xff",
    "multipart/mixed",
)
URLS = (
    "http://127.0.0.1/", "http://[::1]:80/", "file:///etc/passwd", "gopher://x", "http://a@b/", "http://0x7f.1/",
    "//x", "",
    "http://169.254.169.254/latest", "http://localhost:99999/", "http://[::ffff:127.0.0.1]/", "http://exa\nmple/", "http://①②⑦.0.0.1",
    "https://" + "a." * 2_000, "http://[", "http://%00/", "HTTP://EXAMPLE.ORG",
)  # fmt: skip


PARTS = (0, *[1] * 10, 2, 2, 2, 3, 3, 5, 5, 64, 70)  # files of a form; a request may have 64
PROTOCOLS = (b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"", b"http/1.1")
METHODS = (b"GET", b"PUT", b"", b"\0", b"P" * 9_000, b"CONNECT", b"TRACE", b"OPTIONS")
PATHS = (b" /../", b" //", b" http://x/", b" *", b" /%2e%2e/", b" /\xff", b" /\0", b"  /")


class Sent(NamedTuple):
    """A request: what it is, its bytes, and whether it is whole, so that an answer must come."""

    kind: str
    data: bytes
    whole: bool = True


def body_of(chance: Chance) -> tuple[str, bytes, str]:
    """What a body is, the body, and its content type."""
    roll = chance.random()
    if roll < 0.6:
        return "picture", picture(chance), chance.choice(TYPES[:4] * 5 + TYPES)
    if roll < 0.95:
        return form(chance)
    return "json", json_body(chance), chance.choice(("application/json", "application/json; charset=utf-16"))


def json_body(chance: Chance) -> bytes:
    """The URL of an image, or something like it."""
    import json

    url = chance.choice((*URLS, *STRINGS))
    data = json.dumps({"url": url}).encode()
    return chance.choice((data, mutated_json(data, chance), nested(chance, 4_000).encode(), data + data))


def form(chance: Chance) -> tuple[str, bytes, str]:
    """A form of a few pictures, often with a fault in its structure."""
    boundary = chance.choice(("b", "--", "x" * 70, "a.b'c", "b0undary", "\xff"))
    marker = b"--" + boundary.encode("latin-1")
    parts = [
        marker + b"\r\n" + part_head(chance) + b"\r\n\r\n" + picture(chance) + b"\r\n"
        for _ in range(chance.choice(PARTS))
    ]
    pieces = [*parts, marker + b"--\r\n"]
    roll = chance.random()
    if roll < 0.1:
        pieces = rearranged(pieces, chance)
    elif roll < 0.2:
        pieces = [damaged(b"".join(pieces), chance)]
    elif roll < 0.23:
        pieces = [marker + b"\r\n"] * chance.choice((2, 65, 5_000)) + pieces
    quoted = chance.choice((boundary, f'"{boundary}"', f'"{boundary}', boundary + "; boundary=c", "", boundary + " "))
    usual = quoted if chance.random() < 0.05 else boundary
    return "form", b"".join(pieces), f"multipart/form-data; boundary={usual}"


def part_head(chance: Chance) -> bytes:
    """The headers of one file of a form."""
    name = chance.choice(
        ("a.png", "a.png", "../../etc/passwd", "é" * 300, 'q\\"uote', "\0", "<script>", "=cmd|x", "a" * 9_000)
    )
    usual = f'Content-Disposition: form-data; name="file"; filename="{name}"'.encode()
    if chance.random() < 0.9:
        return usual
    return chance.choice(
        (
            usual + b"\r\nContent-Type: image/png",
            usual + b"\r\nContent-Transfer-Encoding: base64",
            b"content-disposition:form-data;filename=" + name.encode(),
            b'Content-Disposition: form-data; name="file"',
            b"Content-Disposition: form-data; filename*=utf-8''%ff%fe",
            b'filename="' + b"\\" * 5_000,
            b"x: y\r\n" * 2_000,
            b"",
        )
    )


def target(chance: Chance) -> str:
    """A route with a query."""
    return chance.choice(ROUTES) + chance.choice(QUERIES)


def upload(chance: Chance, *, heavy_share: float = 0.0) -> Sent:
    """A request that HTTP itself has nothing against: what is in it is the attack."""
    if chance.random() < heavy_share:
        kind, (body, content_type) = "heavy", heavy_body(chance)
    else:
        kind, body, content_type = body_of(chance)
    return Sent(kind, head(target(chance), content_type, len(body)) + body)


def heavy_body(chance: Chance) -> tuple[bytes, str]:
    """One file that is costly to decode, or as many as a request may have."""
    if chance.random() < 0.5:
        return heavy(chance), "image/png"
    file = chance.choice((flat_webp(4_999), tiles(46_336), many_scans(500)))
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + file + b"\r\n"
    return part * 64 + b"--b--\r\n", "multipart/form-data; boundary=b"


def head(path: str, content_type: str, length: int, *more: str) -> bytes:
    """The head of a POST."""
    lines = [
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        f"content-type: {content_type}",
        f"content-length: {length}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def grammar(chance: Chance) -> Sent:
    """A request that breaks the grammar of HTTP; it ends with the connection."""
    _, body, content_type = body_of(chance)
    body = body[:4_000]
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:100], body[100:]) if part) + b"0\r\n\r\n"
    plain, length = head(target(chance), content_type, len(body)), f"content-length: {len(body)}".encode()
    te = b"transfer-encoding: chunked"
    wrong = number(chance, 64)
    data = chance.choice(
        (
            plain.replace(length, te) + chunked,
            plain.replace(length, te) + damaged(chunked, chance),
            plain.replace(length, length + b"\r\n" + te) + chunked,
            plain.replace(length, te + b"\r\n" + te) + chunked,
            plain.replace(length, b"transfer-encoding: gzip, chunked") + chunked,
            plain.replace(length, b"transfer-encoding : chunked") + chunked,
            plain.replace(length, te) + b"%x\r\n" % wrong + body,
            plain.replace(length, te) + b"1;" + b"e" * 20_000 + b"\r\nx\r\n0\r\n\r\n",
            plain.replace(length, te) + b"0\r\n" + b"t: x\r\n" * 3_000 + b"\r\n",
            plain.replace(length, length + b"\r\n" + length) + body,
            plain.replace(length, b"content-length: %d" % wrong) + body,
            plain.replace(length, b"content-length: -1") + body,
            plain.replace(length, b"content-length: +%d" % len(body)) + body,
            plain.replace(length, b"content-length: 0x10") + body,
            plain.replace(length, b"content-length: %d, %d" % (len(body), len(body))) + body,
            plain.replace(length, length + b"\r\nexpect: 100-continue") + body,
            plain.replace(length, length + b"\r\nexpect: x") + body,
            plain.replace(length, length + b"\r\nupgrade: websocket\r\nconnection: upgrade") + body,
            plain.replace(length, length + b"\r\n" + b"a: b\r\n" * chance.choice((90, 200, 9_000)) + b"c: d") + body,
            plain.replace(length, length + b"\r\nx: " + b"y" * chance.choice((8_000, 70_000, 10**6))) + body,
            plain.replace(length, length + b"\r\n folded: x") + body,
            plain.replace(length, length + b"\r\nx: \0\x01\r") + body,
            plain.replace(length, length + b"\r\nhost: other") + body,
            plain.replace(b"host: 127.0.0.1\r\n", b"") + body,
            plain.replace(b"HTTP/1.1", chance.choice(PROTOCOLS)) + body,
            plain.replace(b"POST", chance.choice(METHODS)) + body,
            plain.replace(b" /", chance.choice(PATHS)) + body,
            b"GET /" + b"a" * chance.choice((9_000, 70_000, 10**6)) + b" HTTP/1.1\r\nhost: x\r\n\r\n",
            b"\r\n" * 5_000 + plain + body,
            plain.replace(b"\r\n", b"\n") + body,
            plain.replace(b"\r\n", b"\r") + body,
            plain + body + b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * chance.choice((1, 5, 200)),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + chance.randbytes(40),
            b"\x16\x03\x01" + chance.randbytes(200),
            chance.randbytes(chance.choice((1, 100, 10_000))),
            damaged(plain, chance) + body,
            (plain + body)[: chance.randrange(len(plain + body))],
        )
    )  # fmt: skip
    return Sent("grammar", data, whole=False)
