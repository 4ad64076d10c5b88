"""A person at a page, played by headless Chromium through its debugging pipe: clicks, keys, files, screenshots."""

import base64
import contextlib
import itertools
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.browser import QUIET, Scheme, chromium
from support.processes import started

_FLAGS = [flag for flag in QUIET if "virtual-time" not in flag]


class Session:
    """One tab."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._rest = write, read, b""
        self._numbers = itertools.count(1)
        self._tab: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._tab = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log", "DOM", "Accessibility"):
            self.call(f"{part}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Sends a command and waits for its result; events that come first are kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        message |= {"sessionId": self._tab} if self._tab else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._hear()
            if heard.get("id") == number:
                assert "error" not in heard, heard
                return heard["result"]
            self.events.append(heard)

    def _hear(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._read], [], [], 60)[0], "the browser says nothing any more"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser is gone"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def screen(self, *, width: int, height: int, phone: bool = False, scheme: Scheme = "light") -> None:
        """The size of the window, and the colour scheme that the person prefers."""
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address: str) -> None:
        """Goes to a page and waits until it is loaded."""
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, condition: str, seconds: float = 60.0) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"it never came to {condition}"
            time.sleep(0.03)

    def choose(self, selector: str, *files: Path) -> None:
        """Puts files into a file input, as the dialogue would."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def press(self, key: str, code: int) -> None:
        """One key, down and up."""
        text = {"Enter": "\r", " ": " "}.get(key)
        for kind in ("keyDown", "keyUp"):
            extra = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **extra)

    def screenshot(self, picture: Path, *, full: bool = False) -> Path:
        """A PNG of the window, or of the whole page."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        picture.write_bytes(base64.b64decode(taken["data"]))
        return picture

    def accessible(self) -> list[tuple[str, str]]:
        """Role and name of everything that a screen reader meets."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def requested(self) -> list[str]:
        """The address of everything that the page has asked for."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in sent]

    def complaints(self) -> list[str]:
        """Errors of scripts, and what the browser logged as an error: refused by the policy, not found, ..."""
        logged = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        thrown = [str(e["params"]) for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        return [entry["text"] for entry in logged if entry["level"] == "error"] + thrown


@contextlib.contextmanager
def session() -> Iterator[Session]:
    """A browser with one tab; it ends with the block."""
    browser = chromium()
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    shell = f'exec "$0" "$@" 3<&{to_read} 4>&{from_write}'  # the two ends that Chromium expects
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"]
        options = {"pass_fds": (to_read, from_write), "stderr": subprocess.DEVNULL}
        with started(["bash", "-c", shell, *command], patience=0, **options):  # its profile goes with it
            os.close(to_read)
            os.close(from_write)
            try:
                yield Session(to_write, from_read)
            finally:
                os.close(to_write)
                os.close(from_read)
