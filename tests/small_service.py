"""A small service for tests: an engine that needs no training, an app asked without a network, and one in processes."""

import asyncio
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.deploy.card import Card
from vitrail.deploy.engine import Array, Engine
from vitrail.deploy.serve_app import App
from vitrail.deploy.serve_config import ServeConfig
from vitrail.deploy.serve_metrics import Metrics
from vitrail.deploy.serve_model import Offer, Question, Served, Slot
from vitrail.errors import Unsupported

CLASSES = ("dark", "middle", "bright")


class Brightness(Engine):
    """Tells pictures apart by their mean; each batch takes a fixed time."""

    def __init__(self, classes: tuple[str, ...] = CLASSES, seconds: float = 0.0) -> None:
        card = Card(
            about="a test", family="none", labels=classes, image_size=(8, 8), channels=1, mean=(0.0,), std=(1.0,)
        )
        super().__init__("test", card)
        self.seconds, self.batches = seconds, []

    @property
    def backend(self) -> str:
        return "numpy"

    def run(self, images: Array) -> Array:
        self.batches.append(len(images))
        time.sleep(self.seconds)
        middle = np.linspace(0, 255, len(self.labels))
        return -np.abs(images.mean(axis=(1, 2, 3))[:, None] - middle).astype(np.float32) / 20


class Held(Brightness):
    """Keeps a batch from `hold` on until it is let `go`; `entered` tells that it has one."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()

    def hold(self) -> None:
        self.entered.clear()
        self.go.clear()
        self.batches.clear()

    def run(self, images: Array) -> Array:
        self.entered.set()
        assert self.go.wait(60), "nobody let it go"
        return super().run(images)


class Halves:
    """An explainer: the left half speaks for every class; one method lights a row for each head instead."""

    offers = (
        Offer(method="halves"),
        Offer(method="never"),
        Offer(method="rows", targeted=False, layers=3, heads=(2, 2, 4)),
        Offer(method="layer_alone", layers=2),
    )

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def __call__(self, image: Tensor, question: Question) -> Tensor:
        self.asked.append(question)
        if question.method == "never":
            raise Unsupported("never makes no sense for this model")
        saliency = torch.zeros(image.shape[1:])
        if question.method == "rows":
            saliency[2 * (question.head or 0)] = 1.0
        else:
            saliency[:, :4] = (question.target or 0) + 1.0
        return saliency


class Reply(NamedTuple):
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


def picture(level: int = 128, *, size: tuple[int, int] = (20, 10), kind: str = "PNG") -> bytes:
    """An image file of one grey."""
    file = BytesIO()
    Image.new("L", size, level).save(file, format=kind)
    return file.getvalue()


def form(*files: bytes, boundary: str = "b0undary") -> tuple[bytes, dict[str, str]]:
    """A body with files, and its headers."""
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{number}.png"\r\n\r\n'.encode() + file
        for number, file in enumerate(files)
    ]
    body = b"\r\n".join([*parts, f"--{boundary}--\r\n".encode()])
    return body, {"content-type": f"multipart/form-data; boundary={boundary}"}


def app(engine: Engine | None = None, explainer: Any = None, **changes: Any) -> App:
    """An app that stands by itself."""
    served = Served(engine=engine or Brightness(), explainer=explainer)
    return App(Slot(lambda: served), ServeConfig(**changes), Metrics.alone())


async def ask(
    of: App,
    path: str,
    *,
    method: str = "GET",
    body: bytes = b"",
    chunk: int = 1 << 16,
    pause: float = 0.0,
    leaves: asyncio.Event | None = None,
    **headers: str,
) -> Reply | None:
    """One request to an app, without a network; the body comes in chunks, with pauses between them.

    The client goes away when `leaves` is set, and is told nothing any more.
    """
    head, _, query = path.partition("?")
    sent = {"content-length": str(len(body))} if body else {}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    coded = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    scope = {"type": "http", "method": method, "path": head, "query_string": query.encode(), "headers": coded}
    scope["client"] = ("192.0.2.7", 50_000)
    parts = [body[at : at + chunk] for at in range(0, len(body), chunk)] or [b""]
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            await (leaves or asyncio.Event()).wait()
            return {"type": "http.disconnect"}
        if pause:
            await asyncio.sleep(pause)
        return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}

    async def send(message: Any) -> None:
        told.append(message)

    await of(scope, receive, send)
    if leaves is not None and leaves.is_set():
        assert told == []
        return None
    assert len(told) == 2, told
    names = {name.decode(): value.decode("latin-1") for name, value in told[0]["headers"]}
    return Reply(told[0]["status"], names, told[1]["body"])


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that another task or thread brings about."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def post(of: App, path: str, body: bytes, **headers: str) -> Reply:
    """One POST to an app, from outside of any loop."""
    return asyncio.run(ask(of, path, method="POST", body=body, **headers))


def send(address: str, path: str, body: bytes | None = None, **headers: str) -> Reply:
    """One request over the network."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET" if body is None else "POST", path, body, names)
    answer = connection.getresponse()
    reply = Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    connection.close()
    return reply


class Service(NamedTuple):
    """A service in processes of its own."""

    address: str
    process: "subprocess.Popen[str]"
    log: list[str]

    def workers(self) -> list[int]:
        """The processes that compute; the other child is Python's own helper."""
        own = self.process.pid
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def service(folder: Path, *, seconds: float = 0.0, **changes: Any) -> Iterator[Service]:
    """Starts a service on a free port."""
    (folder / "classes.txt").write_text(" ".join(CLASSES))
    settings = json.dumps({"port": 0, "seconds": seconds} | changes)
    command = [sys.executable, str(Path(__file__).with_name("small_supervisor.py")), str(folder), settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    log: list[str] = []
    reader = threading.Thread(target=lambda: log.extend(process.stderr), daemon=True)
    reader.start()
    try:
        address = process.stdout.readline().strip()
        assert address, log
        yield Service(address, process, log)
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
        process.stderr.close()


class Load:
    """Clients that ask again and again over kept connections, and note what became of every request."""

    def __init__(self, address: str, clients: int, body: bytes | None = None) -> None:
        self.outcomes: list[str] = []
        self.labels: list[str] = []
        self._address, self._body, self._stop = address.removeprefix("http://").rsplit(":", 1), body or picture(), False
        self._threads = [threading.Thread(target=self._client) for _ in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Every client ends after its request."""
        self._stop = True
        for thread in self._threads:
            thread.join()

    def _client(self) -> None:
        host, port = self._address
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        while not self._stop:
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                self.outcomes.append("refused")  # nothing was sent, so nothing is lost
                time.sleep(0.02)
                continue
            try:
                connection.request("POST", "/predict", self._body, {"content-type": "image/png"})
                answer = connection.getresponse()
                data = json.loads(answer.read())
                self.outcomes.append(str(answer.status))
                if answer.status == 200:
                    self.labels.append(data["predictions"][0]["answers"][0]["label"])
            except (OSError, http.client.HTTPException, ValueError):
                self.outcomes.append("lost")
                connection.close()
        connection.close()
