"""The long load run: lost requests are told apart, and slopes of memory are right where they are known."""

import json
import math
import os
import random
import socket
from pathlib import Path

import pytest
from support.benchmarks import benchmark as load_benchmark
from support.load_clients import Answered

benchmark = load_benchmark("soak")


def samples(megabytes_an_hour: float, *, noise: float = 0.5, workers: int = 4, seconds: int = 300):
    chance = random.Random(0)
    return [
        benchmark.Sample(worker, float(t), 300 + 40 * worker + megabytes_an_hour * t / 3600 + chance.gauss(0, noise))
        for worker in range(workers)
        for t in range(worker * seconds, (worker + 1) * seconds)
    ]


def test_a_leak_is_seen_and_none_is_not():
    leak, flat = benchmark.slope(samples(60.0), 30.0), benchmark.slope(samples(0.0), 30.0)
    assert leak["low"] < 60 < leak["high"]
    assert leak["low"] > 20
    assert flat["low"] < 0 < flat["high"]
    assert math.isnan(benchmark.slope(samples(0.0, seconds=5), 30.0)["slope"])


def answered(status: int, *, port: int = 1, end: float = 0.0, probability: float = 0.5) -> Answered:
    body = json.dumps({"predictions": [{"answers": [{"probability": probability}]}]}).encode()
    return Answered(status, 0.01, body, port, end)


def test_lost_requests_and_wrong_answers():
    story = benchmark.Story(kills=[(100.0, {7})])
    lost = [answered(0, port=7, end=101.0), answered(0, port=7, end=99.0), answered(0, port=8, end=101.0)]
    good = [answered(200), answered(200, probability=0.25), answered(200, probability=0.3), answered(503)]
    found = benchmark.summary([*lost, *good], story, {"one": 0.5, "two": 0.25})
    assert (found["lost in flight on a killed worker"], found["lost otherwise"]) == (1, 2)
    assert (found["answers of model one, of model two"], found["answers of neither"]) == ([1, 1], 1)
    assert (found["refused with 503"], found["other statuses"]) == (1, 0)


def test_the_ports_of_a_process():
    if not Path("/proc/self/net/tcp").exists():
        pytest.skip("no /proc to read connections from")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, address = server.accept()
        with accepted:
            assert address[1] in benchmark.client_ports(os.getpid())
            assert client.getsockname() == address


def test_what_must_not_happen():
    result = dict.fromkeys(benchmark.MUST_BE_ZERO, 0) | {"ready afterwards": True, "model swaps": 1}
    result["answers of model one, of model two"] = [3, 4]
    assert benchmark.faults(result) == []
    assert len(benchmark.faults(result | {"lost otherwise": 1, "ready afterwards": False})) == 2
