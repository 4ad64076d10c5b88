"""A hub of models on loopback: the few requests that a download makes, and no network."""

import contextlib
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support import processes

OLD, NEW = "a" * 40, "b" * 40


class Hub(ThreadingHTTPServer):
    """Repositories by name, commits by hash, files by path; writes down which files it was asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.branches = {"main": NEW, "before": OLD}
        self.asked: list[list[str]] = []  # one list an address

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/").split("/")
        if path == ["mark"]:
            self.server.asked.append([])
            return self.answer(200)
        api = path[:2] == ["api", "models"]
        owner, name, what, revision, *file = path[2:] if api else path
        commits = self.server.repositories.get(f"{owner}/{name}")
        if commits is None:
            return self.answer(404, X_Error_Code="RepoNotFound")
        commit = self.server.branches.get(revision, revision)
        if commit not in commits:
            return self.answer(404, X_Error_Code="RevisionNotFound")
        files = commits[commit]
        if api and what == "revision":
            siblings = [{"rfilename": each} for each in files]
            about = {"_id": "1", "id": f"{owner}/{name}", "sha": commit, "siblings": siblings}
            return self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
        if api and what == "tree":
            tree = [
                {"type": "file", "path": each, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                for each, data in files.items()
            ]
            return self.answer(200, json.dumps(tree).encode(), Content_Type="application/json")
        data = files.get("/".join(file))
        if data is None:
            return self.answer(404, X_Error_Code="EntryNotFound")
        if self.command == "GET":
            self.server.asked[-1].append("/".join(file))
        etag = f'"{hashlib.sha1(data).hexdigest()}"'
        return self.answer(200, data, ETag=etag, X_Repo_Commit=commit)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(item.relative_to(folder)): item.read_bytes() for item in folder.rglob("*") if item.is_file()}


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Answers requests within the block."""
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()


def run_script(script: str, *words: str, home: Path, endpoint: str, **environment: str) -> list[dict[str, Any]]:
    """The lines of JSON that a script prints in a process of its own, since the hub's settings are read on import."""
    keep = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "ONEDNN_MAX_CPU_ISA") if name in os.environ}
    settings = {
        "HF_HOME": str(home),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    done = processes.run([sys.executable, "-c", script, *words], env=keep | settings | environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
