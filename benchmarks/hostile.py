"""A hostile client beside a normal one, on one machine: what the normal one gets, and how much memory it takes.

python benchmarks/hostile.py [webp crowd scans tiles png slow] [--seconds 8] [options of vitrail serve]

Each attack is a request that is sent once (64 WebP of 25 million pixels, 2 JPEGs of 40,000 scans, 64 TIFFs with a huge
tile, 64 PNGs of 25 million pixels), four of the first kind at once, or 60 uploads of a byte a second. Memory is that of
the workers and decoders together (PSS: what they share counts once), every 50 ms.
"""

import argparse
import asyncio
import collections
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support import hostile_images as hostile
from support.load_clients import Answered, Client, photo, quantile, running
from support.small_service import form

ATTACKS = {
    "webp": lambda: [hostile.webp_of_one_colour(5000, 5000)] * 64,
    "crowd": lambda: [hostile.webp_of_one_colour(5000, 5000)] * 64,
    "scans": lambda: [hostile.jpeg_of_many_scans(40_000, (640, 480))] * 2,
    "tiles": lambda: [hostile.tiff_of_a_huge_tile()] * 64,
    "png": lambda: [hostile.png_of_zeros(5000, 5000)] * 64,
}
HEAD = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\ncontent-length: 5000\r\n\r\n"


def memory(process: int) -> int:
    """Bytes of all processes that a process started, directly or not."""
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        own = [Path(f"/proc/{child}/smaps_rollup").read_text().partition("Pss:")[2].split()[0] for child in children]
    except (OSError, IndexError):  # one of them has just ended
        return 0
    return sum(1024 * int(kilobytes) for kilobytes in own) + sum(memory(int(child)) for child in children)


async def normal(address: str, body: bytes, until: "asyncio.Task[object]") -> list[Answered]:
    """Asks again and again, until a task is done."""
    client, answered = Client(address), []
    while not until.done():
        answered.append(await client.post("/predict", body))
        await asyncio.sleep(0.02)
    client.close()
    return answered


async def slow_uploads(address: str, seconds: float) -> str:
    """Sixty uploads of a byte a second."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(60)]
    for second in range(int(seconds)):
        for writer in writers:
            writer.write(b"x" if second else HEAD)
        await asyncio.sleep(1)
    for writer in writers:
        writer.close()
    return "60 uploads"


async def attack(kind: str, address: str, seconds: float) -> str:
    """What the hostile client was told."""
    if kind == "slow":
        return await slow_uploads(address, seconds)
    body, headers = form(*ATTACKS[kind]())
    clients = [Client(address) for _ in range(4 if kind == "crowd" else 1)]
    each = await asyncio.gather(*(client.post("/predict", body, headers["content-type"]) for client in clients))
    for client in clients:
        client.close()
    return f"{len(body):,} bytes, " + ", ".join(f"{one.status} after {one.seconds:.1f} s" for one in each)


def text(answered: list[Answered]) -> str:
    """Statuses and latency."""
    times = sorted(one.seconds for one in answered if one.status == 200)
    counts = dict(collections.Counter(one.status for one in answered))
    return f"{counts}, median {1000 * quantile(times, 0.5):.0f} ms, 99 % {1000 * quantile(times, 0.99):.0f} ms"


async def measure(kind: str, address: str, process: int, seconds: float) -> None:
    """Prints one attack."""
    body, peaks = photo(), [0]

    async def watch() -> None:
        while True:
            peaks.append(max(peaks[-1], await asyncio.to_thread(memory, process)))
            await asyncio.sleep(0.05)

    await normal(address, body, asyncio.create_task(asyncio.sleep(2)))
    before = await normal(address, body, asyncio.create_task(asyncio.sleep(seconds)))
    idle, watching = memory(process), asyncio.create_task(watch())
    attacking = asyncio.create_task(attack(kind, address, seconds))
    during = await normal(address, body, attacking)
    watching.cancel()
    print(f"{kind}: the hostile client: {attacking.result()}\n  before: {text(before)}\n  during: {text(during)}")
    print(f"  memory {idle / 1e6:.0f} MB, at most {peaks[-1] / 1e6:.0f} MB", flush=True)


def main() -> None:
    """Starts a service for each attack."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", default=[*ATTACKS, "slow"], metavar="ATTACK")
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments, options = parser.parse_known_args()
    for kind in arguments.attacks:
        with running("packaged", *options) as service:
            asyncio.run(measure(kind, service.address, service.process.pid, arguments.seconds))


if __name__ == "__main__":
    main()
