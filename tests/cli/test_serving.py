"""`vitrail serve`: options, errors, what a worker opens, and a model from photos to a page."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import processes
from support.browser import needs_browser
from support.browser_session import session
from support.coloured import coloured_photos, coloured_run
from support.processes import started
from support.small_service import send

import vitrail
from vitrail.api import open_engine, open_explainer
from vitrail.cli import main
from vitrail.errors import ConfigError
from vitrail.serve import supervisor
from vitrail.serve.model import ServedModel
from vitrail.serve.opening import Opening

CAPTION = "document.getElementById('caption').textContent"
CHANGED = "one.dispatchEvent(new Event('change'))"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_run(photos, tmp_path_factory.mktemp("runs") / "colours", epochs=4)


def served(model: str, **options: str) -> ServedModel:
    return Opening(model=model, open_engine=open_engine, open_explainer=open_explainer, threads=1, **options)()


def test_a_run_is_served_with_explanations(run: Path) -> None:
    opened = served(str(run))
    assert opened.outputs == ("blue", "green", "red")
    assert opened.explainer is not None
    assert opened.explainer.methods[0].method == "relevance"
    assert "validation accuracy" in opened.engine.about


def test_broken_images_do_not_stop_calibration(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = coloured_photos(tmp_path)
    (data / "red" / "7.png").write_bytes(b"not an image")
    opened = served(str(run), calibrate=str(data))
    assert "89 images" in opened.engine.task.calibration()
    assert '"count": 1' in capsys.readouterr().err


def test_the_explained_model_must_be_the_served_one(tmp_path: Path) -> None:
    other = vitrail.create("vit_tiny_patch16", image_size=32, dim=32, depth=1, num_heads=2, num_classes=3)
    vitrail.save(other, tmp_path / "other")
    with pytest.raises(ConfigError, match="different names"):
        served("packaged", explain=str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-batch", "0"], "max_batch"),
        (["--threads", "0"], "--threads"),
        (["--tls-key", "key.pem"], "certificate"),
        (["--allow-urls", "*"], "not a valid host"),
        (["--allow-urls", ","], "--allow-urls"),
        (["--allow-host", "example.org", "--allow-host", "example.org:80"], "example.org:80"),
        (["--api-key-file", "gone"], "gone"),
        (["--host", "256.0.0.1"], "cannot listen on 256.0.0.1:8080"),
    ],
)
def test_options_that_are_not_valid(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "packaged", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_full_disk_does_not_stop_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full to write to")
    monkeypatch.setattr(supervisor, "serve", lambda opening, config, on_ready: on_ready("http://x", "a model"))
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["serve", "packaged"]) == 0


def test_the_supervisor_does_without_torch() -> None:
    words = ["serve", "packaged", "--host", "256.0.0.1"]
    script = f"import sys; from vitrail.cli import main; main({words}); assert 'torch' not in sys.modules, 'torch'"
    done = processes.run([sys.executable, "-c", script])
    assert (done.returncode, "cannot listen" in done.stderr) == (0, True)


def test_files_that_are_not_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = tmp_path / "note.pem"
    note.write_text("a note")
    assert main(["serve", "packaged", "--tls-certificate", str(note), "--tls-key", str(note), "--port", "0"]) == 2
    assert "not a certificate" in capsys.readouterr().err


def test_keys_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("\n")
    assert main(["serve", "packaged", "--api-key-file", str(tmp_path / "key")]) == 2
    assert "empty" in capsys.readouterr().err
    (tmp_path / "key").write_bytes(b"\x89PNG")
    assert main(["serve", "packaged", "--api-key-file", str(tmp_path / "key")]) == 2
    assert "not a text file" in capsys.readouterr().err
    monkeypatch.setenv("VITRAIL_API_KEY", "short")
    assert main(["serve", "packaged"]) == 2
    assert "5 characters" in capsys.readouterr().err


@needs_browser
def test_from_photos_to_a_page(photos: Path, run: Path, tmp_path: Path) -> None:
    """Train, export, certificate, serve, browser, SIGTERM."""
    words = ["export", str(run), "--to", "onnx", "--rounds", "1", "--count", "12"]
    assert main([*words, "--out", str(tmp_path / "dist")]) == 0
    assert "Certificate" in (tmp_path / "dist" / "certificate.html").read_text()
    artefact = str(tmp_path / "dist" / "model.onnx")
    words = ["serve", artefact, "--explain", str(run), "--calibrate", str(photos), "--port", "0", "--host", "0.0.0.0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with started([sys.executable, "-m", "vitrail", *words], **pipes) as process:
        process.stdout.readline()
        address = process.stdout.readline().split()[0].replace("0.0.0.0", "127.0.0.1")
        red = photos / "red" / "3.png"
        answered = send(address, "/predict", red.read_bytes(), content_type="image/png").data
        assert answered["predictions"][0]["answers"][0]["label"] == "red"
        with session() as tab:
            tab.open(address)
            tab.until("document.getElementById('limits').textContent")
            assert "validation accuracy" in tab.run("document.getElementById('about').textContent")
            tab.choose("#file", red)
            tab.until(f"{CAPTION}.includes('matter most for red (relevance,')")
            assert "90 images" in tab.run("document.getElementById('calibration').textContent")
            for name, value in {"method": "attention", "layer": "0", "head": "1"}.items():
                tab.run(f"{{ const one = document.getElementById('{name}'); one.value = '{value}'; {CHANGED} }}")
            tab.until(f"{CAPTION}.includes('(attention, layer 0, head 1,')")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            tab.choose("#file", red)
            tab.until("document.getElementById('status').textContent.startsWith('The service cannot be reached')")
        assert "no API key" in process.stderr.read()
