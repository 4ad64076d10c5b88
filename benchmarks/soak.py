"""The service for a long time: 80 % of its capacity, model swaps, killed workers and hostile clients at once.

python benchmarks/soak.py [--minutes 30] [--workers 2] [--json soak.json]

First the capacity is measured, then the latency at that load undisturbed; then everything at once. Two exported models
with the same classes and other weights take turns by SIGHUP, and every answer must be that of one of them. A request is
lost when it gets no answer; those in flight on a killed worker are told apart by the ports of its connections. Memory
is that of the workers: a slope within the life of each, with an interval by a bootstrap over blocks of time.
"""

import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from support import hostile_images
from support.load_clients import Answered, Client, closed_loop, metric, open_loop, photo, quantile, running
from support.mutate import requests
from support.small_service import Service, send

import vitrail
from vitrail.api import open_engine, open_model
from vitrail.data.decode import decode
from vitrail.deploy.artefact.certificate import CertifyConfig
from vitrail.deploy.artefact.ship import ShipConfig, ship

PAGE = os.sysconf("SC_PAGE_SIZE")
HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
SLOW_HEADS, SLOW_BODIES = 10, 10  # connections at any time
MUST_BE_ZERO = (
    "lost otherwise",
    "other statuses",
    "answers of neither",
    "failed swaps",
    "unexpected restarts",
    "exit code",
)
CLOSE = 1e-4  # of two probabilities
BLOCKS = 40  # of the bootstrap
DRAWS = 1000


# --- models ----------------------------------------------------------------------------------------------------------


def export_models(name: str, folder: Path, picture: bytes, target: str) -> dict[str, float]:
    """Two exported models with other weights; the likeliest class's probability of each for the picture."""
    expected = {}
    for seed, model in enumerate(("one", "two")):
        torch.manual_seed(seed)
        made = vitrail.create(name, num_classes=100)
        with torch.no_grad():
            for weights in made.parameters():  # a new head is zero, and its answers are all alike
                weights.add_(torch.randn_like(weights), alpha=0.05)
        vitrail.save(made, folder / f"{model}-weights")
        quick = CertifyConfig(batches=(1,), scales=(1.0,), images=2, rounds=1)
        config = ShipConfig(targets=(target,), certify=quick, force=True)
        trained, image = open_model(str(folder / f"{model}-weights")), decode(picture)
        ship(trained, [image, image.flip(2)], folder / model, config)
        engine = open_engine(str(folder / model), 1)
        (answer,) = engine.task.decode(engine.predict([image]), top=1)
        expected[model] = answer.to_json()["answers"][0]["probability"]
    if abs(expected["one"] - expected["two"]) < 10 * CLOSE:
        sys.exit(f"the models cannot be told apart by their answers: {expected}")
    return expected


def point_to(link: Path, model: Path) -> None:
    """Replaces a link in one step, as a deployment does."""
    new = link.with_suffix(".new")
    new.symlink_to(model)
    new.replace(link)


# --- disturbances ----------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """The memory of one worker at one moment."""

    process: int
    seconds: float
    megabytes: float


@dataclass
class Story:
    """What happened during the run."""

    kills: list[tuple[float, set[int]]] = field(default_factory=list)  # when, and the ports of the worker's clients
    swaps: int = 0
    memory: list[Sample] = field(default_factory=list)
    hostile: collections.Counter[str] = field(default_factory=collections.Counter)

    def in_flight(self, lost: Answered) -> bool:
        """Whether a lost request was on a worker that was killed."""
        return any(lost.port in ports and begin <= lost.end <= begin + 5.0 for begin, ports in self.kills)


def client_ports(process: int) -> set[int]:
    """The other sides' ports of all connections that a process has accepted."""
    inodes = set()
    for number in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            target = str(number.readlink())
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    rows = [line.split() for line in Path(f"/proc/{process}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].rpartition(":")[2], 16) for row in rows if row[9] in inodes}


async def swap_models(service: Service, folder: Path, story: Story, every: float) -> None:
    """Points the link to the other model and sends SIGHUP, again and again."""
    while True:
        await asyncio.sleep(every)
        story.swaps += 1
        point_to(folder / "model", folder / ("two" if story.swaps % 2 else "one"))
        service.process.send_signal(signal.SIGHUP)


async def kill_workers(service: Service, story: Story, every: float) -> None:
    """Kills the youngest worker, again and again; it stands still while its connections are listed.

    The others live as long as the service, so that a slow leak can be seen.
    """
    await asyncio.sleep(every / 2)
    while True:
        victim = service.workers()[-1]
        os.kill(victim, signal.SIGSTOP)
        story.kills.append((time.perf_counter(), client_ports(victim)))
        os.kill(victim, signal.SIGKILL)
        await asyncio.sleep(every)


async def watch_memory(service: Service, story: Story) -> None:
    """The resident memory of every worker, once a second."""
    while True:
        for process in service.workers():
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
                story.memory.append(Sample(process, time.perf_counter(), pages * PAGE / 1e6))
        await asyncio.sleep(1.0)


async def drip(service: Service, first: bytes, story: Story, kind: str) -> None:
    """A client that sends a byte a second until it is cut off, and comes back."""
    while True:
        client = Client(service.address)
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(client.host, client.port)
            writer.write(first)
            while not reader.at_eof() and reader.exception() is None:
                writer.write(b"x")
                await asyncio.sleep(1.0)
            writer.transport.abort()
            story.hostile[f"{kind}: cut off"] += 1
        await asyncio.sleep(1.0)


def bombs() -> list[tuple[bytes, str]]:
    """Files that cost more than they seem to."""
    files = [
        hostile_images.jpeg_of_many_scans(40_000),
        hostile_images.baseline_jpeg_of_many_scans(10_000),
        hostile_images.tiff_of_a_huge_tile(),
        hostile_images.webp_of_one_colour(5000, 5000),
        hostile_images.webp_with_a_huge_canvas(),
        hostile_images.gif_with_a_huge_frame(),
        hostile_images.png_of_zeros(5000, 5000),
        hostile_images.png_of_zeros(60_000, 60_000, written=1 << 20),
    ]
    return [(data, "application/octet-stream") for data in files]


async def throw_bombs(service: Service, story: Story, every: float) -> None:
    """A bomb or a damaged upload at a time."""
    chance, files = random.Random(0), bombs()
    client = Client(service.address)
    for number in range(1 << 30):
        if number % 4:
            _, body, content_type = requests.body_of(chance)
            answered = await client.post(requests.target(chance), body, content_type)
        else:
            answered = await client.post("/predict", *chance.choice(files))
        story.hostile[f"bombs: {answered.status or 'lost'}"] += 1
        await asyncio.sleep(every)


async def leave_early(service: Service, picture: bytes, story: Story, every: float) -> None:
    """Clients that close one direction, or both, in the middle of a request or before its answer."""
    chance = random.Random(0)
    host, port = Client(service.address).host, Client(service.address).port
    whole = HEAD + b"Content-Length: %d\r\n\r\n" % len(picture) + picture
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            reader, writer = await asyncio.open_connection(host, port)
            cut = chance.choice((len(whole), chance.randrange(len(whole)), 0))
            writer.write(whole[:cut] if cut else HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n")
            if chance.random() < 0.5:
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 5.0)
            writer.transport.abort()
        story.hostile["half-closed"] += 1
        await asyncio.sleep(every)


# --- the run ---------------------------------------------------------------------------------------------------------


async def disturbed(
    service: Service, folder: Path, picture: bytes, *, rate: float, seconds: float, every: float
) -> tuple[list[Answered], Story]:
    """The load, and everything else at the same time."""
    story = Story()
    body = HEAD + b"Content-Length: 100000\r\n\r\n"
    works = [
        swap_models(service, folder, story, min(every, seconds / 4)),
        kill_workers(service, story, every),
        watch_memory(service, story),
        *(drip(service, b"POST /predict HTTP/1.1\r\nX-", story, "slow heads") for _ in range(SLOW_HEADS)),
        *(drip(service, body, story, "slow bodies") for _ in range(SLOW_BODIES)),
        throw_bombs(service, story, 1.0),
        leave_early(service, picture, story, 0.5),
    ]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        answered = await open_loop(service.address, picture, rate, seconds)
        for task in tasks:
            if task.done():
                task.result()  # it failed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return answered, story


def slope(samples: Sequence[Sample], warm_up: float, seed: int = 0) -> dict[str, float]:
    """Megabytes an hour within the life of each worker, and a 95 % interval; NaN where there is too little to tell."""
    lives = collections.defaultdict[int, list[Sample]](list)
    for sample in samples:
        lives[sample.process].append(sample)
    blocks = []
    for life in lives.values():
        used = np.array([(one.seconds, one.megabytes) for one in life if one.seconds >= life[0].seconds + warm_up])
        if len(used) >= 10:
            used -= used.mean(axis=0)  # each worker has a level of its own
            blocks += np.array_split(used, max(1, round(BLOCKS * len(used) / len(samples))))
    if len(blocks) < 4:
        return dict.fromkeys(("slope", "low", "high"), float("nan"))
    draw = np.random.default_rng(seed)
    found = [_slope(blocks)] + [
        _slope([blocks[index] for index in draw.integers(0, len(blocks), len(blocks))]) for _ in range(DRAWS)
    ]
    low, high = np.quantile(found[1:], (0.025, 0.975))
    return {"slope": found[0], "low": float(low), "high": float(high)}


def _slope(blocks: Sequence[np.ndarray]) -> float:
    seconds, megabytes = np.concatenate(blocks).T
    return float(3600 * (seconds @ megabytes) / max(seconds @ seconds, 1e-9))


def right(answered: Answered, expected: Mapping[str, float]) -> str | None:
    """Which model gave an answer; None where it is neither's."""
    found = json.loads(answered.body)["predictions"][0]["answers"][0]["probability"]
    return next((name for name, value in expected.items() if abs(found - value) < CLOSE), None)


def summary(answered: Sequence[Answered], story: Story, expected: Mapping[str, float]) -> dict[str, Any]:
    """Counts and times of the normal client."""
    lost = [one for one in answered if one.status == 0]
    good = [one for one in answered if one.status == 200]
    times, models = sorted(one.seconds for one in good), collections.Counter(right(one, expected) for one in good)
    statuses = collections.Counter(one.status for one in answered)
    return {
        "requests": len(answered),
        "answered with 200": len(good),
        "refused with 503": statuses[503],
        "other statuses": sum(count for status, count in statuses.items() if status not in (0, 200, 503)),
        "lost in flight on a killed worker": sum(map(story.in_flight, lost)),
        "lost otherwise": sum(not story.in_flight(one) for one in lost),
        "answers of model one, of model two": [models["one"], models["two"]],
        "answers of neither": models[None],
        "p50_ms": 1000 * quantile(times, 0.5),
        "p99_ms": 1000 * quantile(times, 0.99),
    }


def restarted(service: Service, expected: int) -> float:
    """How many workers were started in all, once as many as expected were, or after a minute."""
    end = time.monotonic() + 60
    while metric(service, "worker_starts_total") < expected and time.monotonic() < end:
        time.sleep(0.5)
    return metric(service, "worker_starts_total")


def soak(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All of it; the results."""
    picture = photo()
    expected = export_models(arguments.model, folder, picture, arguments.target)
    point_to(folder / "model", folder / "one")
    total = 60 * arguments.minutes
    every, quiet = min(60.0, total), min(60.0, total / 4)
    options = ("--threads", "1", "--workers", str(arguments.workers))
    with running(str(folder / "model"), *options) as service:
        capacity = asyncio.run(closed_loop(service.address, picture, arguments.seconds))
        rate = arguments.load * capacity
        alone = asyncio.run(open_loop(service.address, picture, rate, quiet))
        answered, story = asyncio.run(disturbed(service, folder, picture, rate=rate, seconds=total, every=every))
        starts = restarted(service, arguments.workers + len(story.kills))
        text = send(service.address, "/metrics").body.decode()
        failed = 'reloads_total{outcome="failed"}' in text
        ready = send(service.address, "/readyz").status
        code = service.end()
    undisturbed = summary(alone, Story(), expected)
    found = summary(answered, story, expected)
    return {
        "minutes": arguments.minutes,
        "capacity, 1/s": capacity,
        "offered, 1/s": rate,
        "undisturbed p50_ms": undisturbed["p50_ms"],
        "undisturbed p99_ms": undisturbed["p99_ms"],
        **found,
        "model swaps": story.swaps,
        "failed swaps": failed,
        "kills": len(story.kills),
        "unexpected restarts": int(starts) - arguments.workers - len(story.kills),
        "memory, MB a worker": statistics.median(one.megabytes for one in story.memory),
        "memory, MB an hour": slope(story.memory, warm_up=min(60.0, total / 10)),
        "hostile": dict(sorted(story.hostile.items())),
        "ready afterwards": ready == 200,
        "exit code": code,
        "load of the machine": os.getloadavg()[0],
    }


def faults(result: Mapping[str, Any]) -> list[str]:
    """What must not have happened."""
    wrong = [f"{name}: {result[name]}" for name in MUST_BE_ZERO if result[name]]
    wrong += [] if result["ready afterwards"] else ["not ready afterwards"]
    both = all(result["answers of model one, of model two"]) or not result["model swaps"]
    return wrong + ([] if both else ["only one of the models answered"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--load", type=float, default=0.8, help="share of the capacity")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="vit_tiny_patch16", help="a name; random weights")
    parser.add_argument("--target", default="onnx", choices=("onnx", "openvino", "torch"))
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure the capacity")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = soak(arguments, Path(folder))
    table = Table(" ".join(sys.argv), "")
    for name, value in result.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))
    if wrong := faults(result):
        sys.exit("; ".join(wrong))


if __name__ == "__main__":
    main()
