"""The service under load, on one machine: throughput, latency by offered load, schema, kills, drains.

python benchmarks/serve.py [--only throughput,load,schema,kill,drain] [--json serve.json]

Throughput and load are measured with a ViT of random weights (--model) in torch, float32; clients run in this process,
on the same cores. Offline and service are interleaved, so that noise affects both.
"""

import argparse
import asyncio
import collections
import importlib.metadata
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from rich.console import Console
from rich.table import Table
from support.abused.service import tree
from support.load_clients import closed_loop, metric, open_loop, photo, quantile, running
from support.small_service import Load, Service, send

import vitrail
from vitrail.data.decode import decode
from vitrail.deploy.artefact.engine import Engine
from vitrail.deploy.artefact.opening import open_engine

LOADS = (0.25, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0)  # times the capacity
NEVER_LATE = ("--max-delay", "120000", "--timeout", "120")  # two batches may take longer than the usual 2 s


class Rate(NamedTuple):
    """Images per second of wall time and of CPU time, which other work on the machine does not affect."""

    wall: float
    processor: float


def offline(engine: Engine, picture: bytes, seconds: float, *, decoding: bool) -> Rate:
    """The throughput in batches of 32: of the engine alone, or including decoding."""
    images, done = torch.cat([engine.preprocess.fit(decode(picture)[None])[0]] * 32), 0
    start, spent = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        if decoding:
            images = torch.cat([engine.preprocess.fit(decode(picture)[None])[0] for _ in range(32)])
        engine.outputs(images)
        done += 32
    return Rate(done / (time.perf_counter() - start), done / (time.process_time() - spent))


def processor_time(service: Service) -> float:
    """CPU seconds of the processes of the service, those that decode among them."""
    ticks = 0
    for process in tree(service.process.pid):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # user and system
    return ticks / os.sysconf("SC_CLK_TCK")


def served(service: Service, picture: bytes, seconds: float) -> Rate:
    """The throughput of the service, with enough clients to keep it busy."""
    spent, done = processor_time(service), metric(service, "images_total")
    wall = asyncio.run(closed_loop(service.address, picture, seconds))
    return Rate(wall, (metric(service, "images_total") - done) / (processor_time(service) - spent))


# --- what is measured ------------------------------------------------------------------------------------------------


def throughput(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    torch.set_num_threads(arguments.threads)
    picture, engine = photo(), open_engine(model)
    rounds: list[dict[str, Rate]] = []
    with running(model, "--threads", str(arguments.threads), *NEVER_LATE) as service:
        for _ in range(arguments.rounds):
            alone = offline(engine, picture, arguments.seconds, decoding=False)
            files = offline(engine, picture, arguments.seconds, decoding=True)
            rounds.append({"engine": alone, "files": files, "service": served(service, picture, arguments.seconds)})
        batches = metric(service, "images_total") / metric(service, "batch_size_count")
    result: dict[str, Any] = {"mean_batch": batches, "jpeg_bytes": len(picture)}
    for kind in Rate._fields:
        for name in rounds[0]:
            result[f"{name}, {kind}"] = statistics.median(getattr(each[name], kind) for each in rounds)
        shares = [getattr(each["service"], kind) / getattr(each["engine"], kind) for each in rounds]
        low, high = min(shares), max(shares)
        result[f"service over engine, {kind}"] = f"{statistics.median(shares):.3f} ({low:.3f} to {high:.3f})"
    return result | {"rounds": rounds}


def load(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    picture, rows = photo(), []
    with running(model, "--threads", str(arguments.threads)) as service:
        capacity = asyncio.run(closed_loop(service.address, picture, arguments.seconds))
        for factor in LOADS:
            answered = asyncio.run(open_loop(service.address, picture, factor * capacity, 2 * arguments.seconds))
            good = sorted(one.seconds for one in answered if one.status == 200)
            statuses = collections.Counter(one.status for one in answered)
            refused = sorted(one.seconds for one in answered if one.status == 503)
            rows.append(
                {
                    "load": factor,
                    "offered": factor * capacity,
                    "answered": len(good) / (2 * arguments.seconds),
                    "p50_ms": 1000 * quantile(good, 0.5),
                    "p99_ms": 1000 * quantile(good, 0.99),
                    "share_503": statuses[503] / len(answered),
                    "p99_503_ms": 1000 * quantile(refused, 0.99),
                    "other_errors": sum(count for status, count in statuses.items() if status not in (200, 503)),
                }
            )
        memory = metric(service, "resident_memory_bytes")
    return {"capacity": capacity, "rows": rows, "memory_after": memory}


def schema(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    tool = Path(sys.executable).with_name("schemathesis")
    if not tool.exists():
        return {"skipped": "schemathesis is not installed"}
    checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
    with running("packaged") as service:
        command = [str(tool), "run", f"{service.address}/openapi.json", "--checks", checks, "--seed", "0"]
        command += ["--max-examples", str(arguments.examples), "--no-color", "--workers", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        starts, alive = metric(service, "worker_starts_total"), send(service.address, "/readyz").status
        counted = send(service.address, "/metrics").body.decode()
    told = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    asked = sum(float(n) for n in re.findall(r"^vitrail_requests_total\S+ (\S+)$", counted, re.MULTILINE))
    found = {"exit": done.returncode, "requests": asked, "crashes": int(starts) - 1, "ready_after": alive == 200}
    return found | ({} if done.returncode == 0 else {"told": told[-60:]})


def kill(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    lost, recovered, clients = [], [], 8
    with running("packaged", "--workers", "2") as service:
        sample = send(service.address, "/samples/0.png").body
        for _ in range(arguments.times):
            with Load(service.address, clients, sample) as clients_at_work:
                time.sleep(1.0)
                victim = service.workers()[0]
                before = set(service.workers())
                os.kill(victim, signal.SIGKILL)
                start = time.perf_counter()
                starts = metric(service, "worker_starts_total")
                while metric(service, "worker_starts_total") == starts and time.perf_counter() - start < 60:
                    time.sleep(0.1)
                recovered.append(time.perf_counter() - start)
                time.sleep(1.0)
            counted = collections.Counter(clients_at_work.outcomes)
            lost.append({"lost": counted.pop("lost", 0), "answered": counted.pop("200", 0)} | dict(counted))
            assert set(service.workers()) != before
    return {"clients": clients, "kills": lost, "seconds_to_recover": recovered}


def drain(arguments: argparse.Namespace, model: str) -> dict[str, Any]:
    outcomes: list[dict[str, int]] = []
    for _ in range(arguments.times):
        with running("packaged", "--workers", "2") as service:
            sample = send(service.address, "/samples/0.png").body
            with Load(service.address, 16, sample) as clients_at_work:
                time.sleep(1.5)
                code = service.end()
            counted = collections.Counter(clients_at_work.outcomes)
            outcomes.append({"lost": counted["lost"], "answered": counted["200"], "503": counted["503"], "exit": code})
    return {"clients": 16, "drains": outcomes}


# --- output ----------------------------------------------------------------------------------------------------------

MEASURES: dict[str, Callable[[argparse.Namespace, str], dict[str, Any]]] = {
    "throughput": throughput,
    "load": load,
    "schema": schema,
    "kill": kill,
    "drain": drain,
}


def show(name: str, result: dict[str, Any], console: Console) -> None:
    rows = result.get("rows")
    if rows:
        table = Table(*rows[0], title=f"{name}; capacity {result['capacity']:.1f} pictures/s")
        for row in rows:
            table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
        console.print(table)
        return
    table = Table(name, "", show_header=True)
    for key, value in result.items():
        if key != "rounds":
            table.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(MEASURES), help="which, by commas")
    parser.add_argument("--model", default="vit_small_patch16", help="for throughput and load: a name, random weights")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--threads", type=int, default=1, help="of the engine, offline and in the service")
    parser.add_argument("--rounds", type=int, default=5, help="of offline and service in turn")
    parser.add_argument("--examples", type=int, default=60, help="of schemathesis for each operation")
    parser.add_argument("--times", type=int, default=3, help="kills and drains")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    console, results = Console(width=None if sys.stdout.isatty() else 120), {}
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        vitrail.save(vitrail.create(arguments.model, num_classes=100), Path(folder) / "model")
        for name in arguments.only.split(","):
            results[name] = MEASURES[name](arguments, str(Path(folder) / "model"))
            show(name, results[name], console)
    if arguments.json:
        versions = {
            name: importlib.metadata.version(name) for name in ("torch", "uvicorn", "starlette", "h11", "pillow")
        }
        about = {"command": " ".join(sys.argv), "machine": platform.processor() or platform.machine()}
        about |= {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "load": os.getloadavg()[0]}
        arguments.json.write_text(json.dumps({"about": about | versions, "results": results}, indent=2))


if __name__ == "__main__":
    main()
