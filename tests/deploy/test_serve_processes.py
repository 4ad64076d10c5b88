"""The service as processes: it drains, swaps its model, outlives its workers, and keeps slow clients in bounds."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sized
from pathlib import Path

import pytest
import uvicorn
from small_service import Held, Load, Service, app, picture, send, service, until
from small_supervisor import Opening

from vitrail.deploy import serve as serve_module
from vitrail.deploy.serve import listen, serve
from vitrail.deploy.serve_app import App
from vitrail.deploy.serve_config import ServeConfig
from vitrail.deploy.serve_http import patient_protocol
from vitrail.deploy.serve_worker import make_server
from vitrail.errors import ConfigError, VitrailError

Place = tuple[str, int]

PNG = {"content_type": "image/png"}


def eventually(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.05)


def counts(running: Service, line: str) -> bool:
    return f"vitrail_{line}\n" in send(running.address, "/metrics").body.decode()


def generations(running: Service) -> set[int]:
    return {send(running.address, "/readyz").data["generation"] for _ in range(20)}


def test_two_workers_under_load(tmp_path: Path) -> None:
    with service(tmp_path, seconds=0.01, workers=2, drain=0.3) as running:
        assert send(running.address, "/predict", picture(255), **PNG).status == 200
        with Load(running.address, clients=4) as load:
            _swap_the_model(running, load, tmp_path)
            _kill_a_worker(running, load)
            lost = load.outcomes.count("lost")
            assert running.end() == 0
            eventually(lambda: load.outcomes[-1] == "refused")
        assert load.outcomes.count("lost") == lost, "SIGTERM loses none"
        assert set(load.outcomes) <= {"200", "503", "lost", "refused"}
        assert sum("draining" in line for line in running.log) == 2


def _swap_the_model(running: Service, load: Load, folder: Path) -> None:
    assert generations(running) == {1}
    (folder / "classes.txt").write_text("black grey white")
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: counts(running, 'reloads_total{outcome="done"} 2'))  # one of each worker
    assert generations(running) == {2}
    assert (
        send(running.address, "/predict", picture(255), **PNG).data["predictions"][0]["answers"][0]["label"] == "white"
    )
    (folder / "classes.txt").write_text("")  # what cannot be opened is not taken
    running.process.send_signal(signal.SIGHUP)
    eventually(lambda: counts(running, 'reloads_total{outcome="failed"} 2'))
    assert send(running.address, "/model").data["reload_error"] == "classes.txt is empty"
    assert generations(running) == {2}
    eventually(lambda: set(load.labels) == {"middle", "grey"})
    assert set(load.outcomes) == {"200"}, "swapping loses none"
    (folder / "classes.txt").write_text("black grey white")


def _kill_a_worker(running: Service, load: Load) -> None:
    victim, other = running.workers()
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: len(set(running.workers()) - {victim, other}) == 1)
    eventually(lambda: counts(running, "worker_starts_total 3"))
    assert load.outcomes.count("lost") <= 4, "no more than were in flight"
    before = load.outcomes.count("200")
    eventually(lambda: load.outcomes.count("200") > before + 20)
    assert any("a worker died" in line for line in running.log)


def test_a_model_that_cannot_be_opened_ends_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("")
    with pytest.raises(VitrailError, match=r"^classes\.txt is empty$"):
        serve(Opening(tmp_path), ServeConfig(port=0))


def test_without_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"uvicorn is not installed; it comes with: pip install 'vitrail\[serve\]'"):
        serve(lambda: None, ServeConfig())  # type: ignore[arg-type,return-value]


def test_addresses_that_cannot_be_had() -> None:
    with listen(ServeConfig(port=0)) as taken:
        assert taken.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match="cannot be listened at: Address already in use"):
            listen(ServeConfig(port=taken.getsockname()[1]))
    with pytest.raises(ConfigError, match=r"there is no file gone\.pem"):
        listen(ServeConfig(certificate="gone.pem", private_key="gone.pem"))


@contextlib.asynccontextmanager
async def listening(of: App, config: ServeConfig, head_seconds: float) -> AsyncIterator[tuple[Place, Sized]]:
    """An app behind the protocol, in this loop; its host and port, and the connections that it has."""
    settings = uvicorn.Config(of, http=patient_protocol(config, head_seconds), lifespan="off", log_config=None)
    server, listener = uvicorn.Server(settings), listen(ServeConfig(port=0))
    running = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        yield listener.getsockname(), server.server_state.connections
    finally:
        server.should_exit = True
        await running


def request(path: str, body: bytes = b"") -> bytes:
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: image/png\r\nconnection: close"
    return f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def answered(place: Place, path: str = "/healthz", body: bytes = b"") -> bytes:
    """All that comes back to a request on a connection of its own."""
    reader, writer = await asyncio.open_connection(*place)
    with contextlib.closing(writer):
        writer.write(request(path, body))
        return await reader.read()


def test_too_many_connections() -> None:
    async def story() -> None:
        async with asyncio.timeout(60), listening(app(), ServeConfig(max_connections=2), 60.0) as (place, connections):
            silent = [await asyncio.open_connection(*place) for _ in range(2)]
            reader, third = await asyncio.open_connection(*place)
            third.write(request("/predict", bytes(1 << 20)))  # it is heard out, so that the answer is not lost
            assert (await reader.read()).startswith(b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1")
            for writer in (third, *(writer for _, writer in silent)):
                writer.close()
            await until(lambda: not connections)
            assert (await answered(place)).startswith(b"HTTP/1.1 200")

    asyncio.run(story())


def test_one_that_rests_makes_room() -> None:
    async def story() -> None:
        async with asyncio.timeout(60), listening(app(), ServeConfig(max_connections=1), 60.0) as (place, _):
            reader, resting = await asyncio.open_connection(*place)
            resting.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            assert (await answered(place)).startswith(b"HTTP/1.1 200")
            await reader.read()  # to its end
            resting.close()

    asyncio.run(story())


def test_slow_heads() -> None:
    async def story() -> None:
        async with asyncio.timeout(60), listening(app(), ServeConfig(), 0.1) as (place, _):
            (slow, writer), (silent, other) = [await asyncio.open_connection(*place) for _ in range(2)]
            while not slow.at_eof() and slow.exception() is None:  # a byte at a time, and never an end
                writer.write(b"x")
                await asyncio.sleep(0.02)
            assert await silent.read() == b""  # one that says nothing at all
            writer.close()
            other.close()

    asyncio.run(story())


def test_a_closed_connection_takes_its_work_with_it() -> None:
    engine = Held()
    of = app(engine)
    engine.hold()

    async def story() -> None:
        async with asyncio.timeout(60), listening(of, ServeConfig(), 60.0) as (place, _):
            stays = asyncio.create_task(answered(place, "/predict", picture()))
            await until(engine.entered.is_set)
            _, leaving = await asyncio.open_connection(*place)
            leaving.write(request("/predict", picture()))
            await until(lambda: len(of.batcher._queue) == 1)
            leaving.close()
            await until(lambda: of.metrics.total("abandoned_total") == 1)
            engine.go.set()
            assert (await stays).startswith(b"HTTP/1.1 200")
            assert (await answered(place, "/predict", picture())).startswith(b"HTTP/1.1 200")

    asyncio.run(story())
    assert engine.batches == [1, 1]


def test_the_supervisor_does_without_torch() -> None:
    script = "import sys, vitrail.deploy.serve; assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_https(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    config = ServeConfig(port=0, certificate=str(certificate), private_key=str(key), drain=0.0)
    assert config.address == "https://127.0.0.1:0"
    context = ssl.create_default_context(cafile=certificate)

    async def story() -> bytes:
        server, listener = make_server(app(), config), listen(config)
        running = asyncio.create_task(server._serve(sockets=[listener]))
        host, port = listener.getsockname()
        reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost")
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        line = await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        server.should_exit = True
        await running
        return line

    assert asyncio.run(story()).startswith(b"HTTP/1.1 200")
