"""Clients of a running service, for benchmarks: at a fixed rate, or as fast as they are answered."""

import asyncio
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import NamedTuple

import torch
from PIL import Image

from support.processes import started
from support.small_service import Service, send

CLIENTS = 64  # two batches: one is computed while the next gathers


class Answered(NamedTuple):
    """What became of a request, and when."""

    status: int  # 0: no answer
    seconds: float
    body: bytes
    port: int  # of this side of the connection
    end: float  # by the clock of `time.perf_counter`


class Client:
    """A connection that is reused until the service closes it."""

    def __init__(self, address: str) -> None:
        self.host, port = address.removeprefix("http://").rsplit(":", 1)
        self.port, self.reader, self.writer = int(port), None, None

    async def post(self, path: str, body: bytes, content_type: str = "image/jpeg") -> Answered:
        """Sends one request."""
        start, port = time.perf_counter(), 0
        try:
            if self.writer is not None and self.reader.at_eof():  # it was idle for too long
                self.close()
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
            port = self.writer.get_extra_info("sockname")[1]
            head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {content_type}\r\n"
            self.writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body)
            answered = await self.reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answered)
            received = await self.reader.readexactly(int(length[1]))
            if b"connection: close" in answered:
                self.close()
            status = int(answered[9:12])
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            status, received = 0, b""
        end = time.perf_counter()
        return Answered(status, end - start, received, port, end)

    def close(self) -> None:
        """Closes the connection; the next request opens another."""
        if self.writer is not None:
            self.writer.close()
            self.reader = self.writer = None


async def closed_loop(address: str, picture: bytes, seconds: float) -> float:
    """Answers a second, with so many clients that ask again as soon as they are answered."""
    end, counted, begin = time.perf_counter() + seconds + 1.0, 0, time.perf_counter() + 1.0  # a second to fill up

    async def one() -> None:
        nonlocal counted
        client = Client(address)
        while time.perf_counter() < end:
            answered = await client.post("/predict", picture)
            now = time.perf_counter()
            counted += answered.status == 200 and begin <= now <= end
            if answered.status == 503:
                await asyncio.sleep(0.1)  # sooner than it was told, but not at once
        client.close()

    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return counted / seconds


async def open_loop(address: str, picture: bytes, rate: float, seconds: float) -> list[Answered]:
    """What becomes of requests that come at a rate, whether the service keeps up or not."""
    idle: list[Client] = []

    async def one() -> Answered:
        client = idle.pop() if idle else Client(address)
        answered = await client.post("/predict", picture)
        idle.append(client)
        return answered

    tasks, start = [], time.perf_counter()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
        tasks.append(asyncio.create_task(one()))
    answered = await asyncio.gather(*tasks)
    for client in idle:
        client.close()
    return list(answered)


@contextmanager
def running(model: str, *options: str) -> Iterator[Service]:
    """`vitrail serve` on a free port."""
    command = [sys.executable, "-m", "vitrail", "serve", model, "--port", "0", *options]
    with (
        tempfile.TemporaryFile("w+") as log,
        started(command, patience=60, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        lines = [process.stdout.readline(), process.stdout.readline()]
        if not lines[1]:
            log.seek(0)
            sys.exit(log.read())
        yield Service(lines[1].split()[0], process, [])


def metric(service: Service, name: str) -> float:
    """A number of /metrics."""
    text = send(service.address, "/metrics").body.decode()
    return float(re.search(rf"^vitrail_{name} (\S+)$", text, re.MULTILINE)[1])


def photo(width: int = 320, height: int = 240) -> bytes:
    """A JPEG of the size of a small photo: coloured blobs and noise."""
    torch.manual_seed(0)
    blobs = torch.nn.functional.interpolate(torch.rand(1, 3, 9, 12), size=(height, width), mode="bicubic")[0]
    pixels = (blobs * 230 + 20 * torch.rand(3, height, width)).clamp(0, 255).byte()
    file = BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, "JPEG", quality=88)
    return file.getvalue()


def quantile(ordered: list[float], share: float) -> float:
    """That of which a share is smaller; 0 of nothing."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
