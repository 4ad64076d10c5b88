"""The server of a worker."""

import asyncio
import dataclasses
import gc
import ssl
from pathlib import Path

import pytest
from support import processes
from support.small_service import app, until

from vitrail.serve import worker
from vitrail.serve.config import ServeConfig
from vitrail.serve.supervisor import listen
from vitrail.serve.worker import make_server


def test_https(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    try:
        assert processes.run([*made, "-keyout", key, "-out", certificate]).returncode == 0
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
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        line = await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        server.should_exit = True
        await running
        return line

    assert asyncio.run(story()).startswith(b"HTTP/1.1 200")


def test_objects_that_exist_are_not_collected_again() -> None:
    gc.unfreeze()  # what the tests have frozen for themselves
    worker._freeze()
    assert gc.get_freeze_count() > 10_000


def test_those_of_a_swapped_model_are(monkeypatch: pytest.MonkeyPatch) -> None:
    of, frozen = app(), []
    monkeypatch.setattr(worker, "_WATCH", 0.01)
    monkeypatch.setattr(worker, "_freeze", lambda: frozen.append(of.slot.served.generation))

    async def story() -> None:
        watch = asyncio.create_task(worker._watch(of, make_server(of, of.config)))
        await asyncio.sleep(0.03)
        assert frozen == []
        of.slot.served = dataclasses.replace(of.slot.served, generation=2)
        await until(lambda: frozen == [2])
        watch.cancel()

    asyncio.run(story())
