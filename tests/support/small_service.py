"""A small service for tests: engines that need no training, an app without a network, and one in processes."""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from support.processes import started
from vitrail.data.preprocess import Preprocess
from vitrail.errors import Unsupported
from vitrail.serve.app import App
from vitrail.serve.config import ServeConfig
from vitrail.serve.metrics import WIDTH, Metrics
from vitrail.serve.model import ModelSlot, ServedModel
from vitrail.tasks.answer import Answer, Bar

TESTS = Path(__file__).parents[1]
CLASSES = ("dark", "middle", "bright")


@dataclass(frozen=True)
class Ranked(Answer):
    """An answer with classes, the likeliest first."""

    found: list[dict[str, Any]]

    def to_json(self) -> dict[str, Any]:
        return {"answers": self.found}

    def text(self) -> str:
        return f"{self.found[0]['label']} {self.found[0]['probability']:.1%}"

    def bars(self) -> list[Bar]:
        return [Bar(one["label"], f"{one['probability']:.1%}", one["probability"], one["chosen"]) for one in self.found]

    def row(self) -> dict[str, Any]:
        return self.found[0]


@dataclass(frozen=True)
class Measured(Answer):
    """An answer with one number and its interval; it can be drawn."""

    value: float

    def to_json(self) -> dict[str, Any]:
        return {"numbers": [{"name": "grey", "value": self.value, "low": self.value - 10, "high": self.value + 10}]}

    def text(self) -> str:
        return f"grey {self.value:.1f}"

    def bars(self) -> list[Bar]:
        share = self.value / 255
        return [Bar("grey", f"{self.value:.1f}", share, True, max(0.0, share - 0.04), min(1.0, share + 0.04))]

    def row(self) -> dict[str, Any]:
        return {"grey": self.value}

    def draw(self, image: Tensor) -> Tensor | None:
        return 255 - image


class RankingTask:
    """Tells classes apart, as far as a service sees it."""

    config = SimpleNamespace(kind="classify")

    def __init__(self, classes: tuple[str, ...] = CLASSES) -> None:
        self.output_names = classes

    def decode(self, outputs: dict[str, Tensor], *, top: int = 5) -> list[Any]:
        return [self._answer(row, top) for row in outputs["logits"].softmax(dim=1)]

    def _answer(self, probabilities: Tensor, top: int) -> Ranked:
        order = probabilities.argsort(descending=True)[:top].tolist()
        named = [(self.output_names[index], index, float(probabilities[index]), index == order[0]) for index in order]
        return Ranked([dict(zip(("label", "index", "probability", "chosen"), one, strict=True)) for one in named])

    def explain_target(self, outputs: dict[str, Tensor], name: str | None) -> Tensor:
        return outputs["logits"].argmax(dim=1)

    def answer_schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {"answers": {"type": "array"}}, "required": ["answers"]}

    def width_of(self, output: str) -> int | None:
        return len(self.output_names)

    def state(self) -> dict[str, Any]:
        return {"temperature": 1.0}

    def calibration(self) -> str:
        return "not calibrated"


class MeasuringTask(RankingTask):
    """Gives one number instead."""

    config = SimpleNamespace(kind="regress")

    def __init__(self) -> None:
        super().__init__(("grey",))

    def decode(self, outputs: dict[str, Tensor], *, top: int = 5) -> list[Any]:
        return [Measured(float(row)) for row in outputs["numbers"]]

    def explain_target(self, outputs: dict[str, Tensor], name: str | None) -> Tensor:
        return torch.zeros(len(outputs["numbers"]), dtype=torch.int64)


@dataclass
class FakeEngine:
    """What a service needs of an engine; each batch takes a fixed time."""

    task: Any
    seconds: float = 0.0
    about: str = "a test"
    backend: str = "by hand"
    preprocess: Preprocess = Preprocess(image_size=(8, 8), channels=1)
    card: Any = field(default_factory=lambda: SimpleNamespace(licence="none"))
    batches: list[int] = field(default_factory=list)

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        self.batches.append(len(images))
        time.sleep(self.seconds)
        return self.of_means(images.double().mean(dim=(1, 2, 3)))


class Brightness(FakeEngine):
    """Tells pictures apart by their mean."""

    def __init__(self, classes: tuple[str, ...] = CLASSES, seconds: float = 0.0) -> None:
        super().__init__(RankingTask(classes), seconds)

    def of_means(self, means: Tensor) -> dict[str, Tensor]:
        middle = torch.linspace(0, 255, len(self.task.output_names))
        return {"logits": -(means[:, None] - middle).abs().float() / 20}


class Greyness(FakeEngine):
    """Gives the mean itself."""

    def __init__(self) -> None:
        super().__init__(MeasuringTask())

    def of_means(self, means: Tensor) -> dict[str, Tensor]:
        return {"numbers": means[:, None]}


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

    def outputs(self, images: Tensor) -> dict[str, Tensor]:
        self.entered.set()
        assert self.go.wait(60), "nobody let it go"
        return super().outputs(images)


class Method(NamedTuple):
    method: str
    targeted: bool = True
    layers: int = 0
    heads: tuple[int, ...] = ()


class Halves:
    """An explainer: the left half speaks for every class; one method lights a row for each head instead."""

    methods = (
        Method("halves"),
        Method("never"),
        Method("rows", targeted=False, layers=3, heads=(2, 2, 4)),
        Method("layer_alone", layers=2),
    )

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, image: Tensor, *, method: str, target: int, layer: int | None, head: int | None) -> Tensor:
        self.asked.append({"method": method, "target": target, "layer": layer, "head": head})
        if method == "never":
            raise Unsupported("never makes no sense for this model")
        saliency = torch.zeros(image.shape[1:])
        if method == "rows":
            saliency[2 * (head or 0)] = 1.0
        else:
            saliency[:, :4] = target + 1.0
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


def app(engine: FakeEngine | None = None, explainer: Any = None, **changes: Any) -> App:
    """An app without processes around it."""
    served = ServedModel(engine=engine or Brightness(), explainer=explainer)
    return App(ModelSlot(lambda: served), ServeConfig(**changes), Metrics(np.zeros((1, WIDTH)), 0))


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
def service(folder: Path, *, seconds: float = 0.0, stderr: int = subprocess.PIPE, **changes: Any) -> Iterator[Service]:
    """Starts a service on a free port; its log goes to a list, or to a file descriptor."""
    (folder / "classes.txt").write_text(" ".join(CLASSES))
    settings = json.dumps({"port": 0, "seconds": seconds} | changes)
    command = [sys.executable, "-m", "support.small_supervisor", str(folder), settings]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
    pipes = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True}
    log: list[str] = []
    with started(command, env=env, **pipes) as process:
        reader = threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True)
        reader.start()
        try:
            address = process.stdout.readline().strip()
            assert address, log
            yield Service(address, process, log)
        finally:
            process.kill()  # most tests need no orderly end
            reader.join()


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
