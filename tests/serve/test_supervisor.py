"""The service in processes: it drains, reloads its model, and replaces workers that die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import processes
from support.small_service import TESTS, Load, Service, picture, send, service
from support.small_supervisor import Opening

from vitrail.errors import ConfigError, VitrailError
from vitrail.serve import supervisor
from vitrail.serve.config import ServeConfig
from vitrail.serve.supervisor import listen, serve

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
        eventually(lambda: sum("draining" in line for line in running.log) == 2)


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


def test_a_worker_that_is_starting_learns_of_a_reload_too() -> None:
    command = [sys.executable, "-m", "support.idle_worker", "0.5"]
    with processes.started(command, stdout=subprocess.PIPE, text=True, cwd=TESTS) as process:
        assert int(process.stdout.readline())
        process.send_signal(signal.SIGHUP)  # it may have opened the old model just now
        assert {process.stdout.readline() for _ in range(2)} == {"serving\n", "reload\n"}


def test_a_model_that_cannot_be_opened_ends_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("")
    with pytest.raises(VitrailError, match=r"^classes\.txt is empty$"):
        serve(Opening(tmp_path), ServeConfig(port=0))


def test_without_uvicorn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="uvicorn"):
        serve(lambda: None, ServeConfig())  # type: ignore[arg-type,return-value]


def test_addresses_that_cannot_be_used() -> None:
    with listen(ServeConfig(port=0)) as taken:
        assert taken.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match="cannot listen on"):
            listen(ServeConfig(port=taken.getsockname()[1]))
    with pytest.raises(ConfigError, match="gone"):
        listen(ServeConfig(certificate="gone.pem", private_key="gone.pem"))


def test_the_supervisor_does_without_torch() -> None:
    script = "import sys, vitrail.serve.supervisor; assert 'torch' not in sys.modules, 'torch'"
    done = processes.run([sys.executable, "-c", script])
    assert done.returncode == 0, done.stderr
