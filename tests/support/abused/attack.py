"""Clients for a service on this machine: hostile ones that send mutants, slow ones, and a normal one that is timed."""

import asyncio
import collections
import contextlib
import os
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from support.mutate.requests import Sent, grammar, head, upload

PATIENCE = 40.0  # seconds for an answer; a service gives up after 15
LINGER = 3.0  # for one to bytes that may never have been a request
GRAMMAR = 0.15  # share of requests that break HTTP itself
BATCH = 50  # requests that travel together from the process that makes them
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Answer(NamedTuple):
    """The status (0: none came), the seconds that it took, and whether the connection stays open."""

    status: int
    seconds: float
    open: bool = False


class Wire:
    """A connection that is used again until either side closes it."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, data: bytes, *, patience: float = PATIENCE) -> Answer:
        """Sends bytes and reads one response; a connection that the service closed while idle is opened again."""
        start = time.perf_counter()
        try:
            async with asyncio.timeout(patience):
                if self.reader is not None and self.reader.at_eof():
                    self.close()
                if self.writer is None:
                    self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
                self.writer.write(data)
                status, stays = await self._response()
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            status, stays = 0, False
        if not stays:
            self.close()
        return Answer(status, time.perf_counter() - start, stays)

    async def _response(self) -> tuple[int, bool]:
        assert self.reader is not None
        while True:
            top = await self.reader.readuntil(b"\r\n\r\n")
            if (status := STATUS.match(top)) is None:
                return 0, False
            if status[1] != b"100":  # that one only says: go on
                break
        if (length := LENGTH.search(top)) is not None:
            await self.reader.readexactly(int(length[1]))
        return int(status[1]), length is not None and b"connection: close" not in top.lower()

    def close(self) -> None:
        """Forgets the connection."""
        if self.writer is not None:
            self.writer.transport.abort()
            self.reader = self.writer = None


def requests(seed: int, count: int, *, heavy: float) -> Iterator[Sent]:
    """The requests of a seed: the same for ever."""
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        yield grammar(chance) if chance.random() < GRAMMAR else upload(chance, heavy_share=heavy)


def step_back() -> None:
    """Lets this process have what others leave, as if it ran on another machine.

    Where the scheduler groups processes by their session (autogroup), priorities count within one alone.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 10)
        os.setsid()
        Path("/proc/self/autogroup").write_text("19")


def generate(pipe: Connection, seed: int, count: int, heavy: float) -> None:
    """Makes requests in a process of its own; an empty batch ends them."""
    step_back()
    batch: list[Sent] = []
    for sent in requests(seed, count, heavy=heavy):
        batch.append(sent)
        if len(batch) == BATCH:
            pipe.send(batch)  # waits while the pipe is full
            batch = []
    pipe.send(batch)
    pipe.send([])


@dataclass
class Tally:
    """What became of requests, by kind and status."""

    statuses: collections.Counter[tuple[str, int]] = field(default_factory=collections.Counter)
    slowest: float = 0.0

    def add(self, kind: str, answer: Answer) -> None:
        """Counts one."""
        self.statuses[kind, answer.status] += 1
        self.slowest = max(self.slowest, answer.seconds)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.statuses.values())

    def by_status(self) -> dict[str, int]:
        """Statuses alone."""
        found: collections.Counter[int] = collections.Counter()
        for (_, status), count in self.statuses.items():
            found[status] += count
        return {str(status) if status else "no answer": found[status] for status in sorted(found)}

    def odd(self) -> dict[str, int]:
        """What no request may get: a 5xx but 503 and 501, or no answer where one was due."""
        return {
            f"{kind}: {status or 'no answer'}": count
            for (kind, status), count in sorted(self.statuses.items())
            if (status >= 500 and status not in (501, 503)) or (status == 0 and kind != "grammar")
        }


class Pace:
    """Lets so many requests a second begin; 0: as many as can."""

    def __init__(self, rate: float) -> None:
        self.rate, self.next = rate, time.perf_counter()

    async def wait(self) -> None:
        """Until the next one may begin; time that was missed is made up for, up to a second of it."""
        if self.rate:
            now = time.perf_counter()
            self.next = max(self.next, now - 1.0) + 1 / self.rate
            await asyncio.sleep(max(0.0, self.next - now))


async def attack(
    address: tuple[str, int], source: Connection, *, rate: float, connections: int, until: float, linger: float = LINGER
) -> Tally:
    """Sends what comes from the pipe over so many connections, until it ends or time is up."""
    tally, pace, waiting = Tally(), Pace(rate), collections.deque[Sent]()
    loop, more = asyncio.get_running_loop(), asyncio.Lock()
    ended = False

    async def take() -> Sent | None:
        nonlocal ended
        async with more:
            if not waiting and not ended:
                waiting.extend(await loop.run_in_executor(None, source.recv))
                ended = not waiting
            return waiting.popleft() if waiting and time.monotonic() < until else None

    async def one() -> None:
        wire = Wire(*address)
        while (sent := await take()) is not None:
            await pace.wait()
            if sent.whole:
                tally.add(sent.kind, await wire.ask(sent.data))
                continue
            alone = Wire(*address)  # whatever it broke ends with it
            tally.add(sent.kind, await alone.ask(sent.data, patience=linger))
            alone.close()
        wire.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return tally


async def trickle(address: tuple[str, int], tally: Tally) -> None:
    """A client that sends a byte a second, for ever."""
    while True:
        start, writer = time.perf_counter(), None
        try:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head("/predict", "image/png", 100_000))
            line = b""
            while not line:
                writer.write(b"x")
                with contextlib.suppress(TimeoutError):
                    line = await asyncio.wait_for(reader.readuntil(b"\r\n"), 1.0)
            status = int((STATUS.match(line) or [b"", b"0"])[1])
        except (OSError, asyncio.IncompleteReadError):
            status = 0
            await asyncio.sleep(0.2)
        finally:
            if writer is not None:
                writer.transport.abort()
        tally.add("slow", Answer(status, time.perf_counter() - start))


async def attack_service(
    address: tuple[str, int], source: Connection, *, rate: float, connections: int, slow: int, seconds: float
) -> tuple[Tally, Tally]:
    """All hostile clients at once: what became of the uploads, and of the slow ones."""
    slowly = Tally()
    drips = [asyncio.create_task(trickle(address, slowly)) for _ in range(slow)]
    until = time.monotonic() + seconds
    sent = await attack(address, source, rate=rate, connections=connections, until=until)
    for drip in drips:
        drip.cancel()
    await asyncio.gather(*drips, return_exceptions=True)
    return sent, slowly


def send_attack(
    pipe: Connection, address: tuple[str, int], source: Connection, rate: float, connections: int, slow: int,
    seconds: float,
) -> None:  # fmt: skip
    """`attack_service` in a process of its own, which tells its result."""
    step_back()
    options = {"rate": rate, "connections": connections, "slow": slow, "seconds": seconds}
    pipe.send(asyncio.run(attack_service(address, source, **options)))


def behave(pipe: Connection, address: tuple[str, int], picture: bytes, pause: float) -> None:
    """A normal client in a process of its own: tells (time, status, seconds) of each request until told to end."""
    data = head("/predict", "image/png", len(picture)) + picture

    async def ask() -> None:
        wire = Wire(*address)
        while not pipe.poll():
            answer = await wire.ask(data)
            pipe.send((time.monotonic(), answer.status, answer.seconds))
            await asyncio.sleep(pause)
        wire.close()

    asyncio.run(ask())
