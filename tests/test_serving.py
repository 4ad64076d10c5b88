"""`vitrail serve`: its options, its mistakes, and what a worker opens."""

import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_service import send

from vitrail.cli import main
from vitrail.cli.serving import Opening
from vitrail.errors import ConfigError


def test_what_a_worker_opens() -> None:
    opening = pickle.loads(pickle.dumps(Opening(model="packaged", calibrate="demo", threads=1)))
    served = opening()
    assert served.engine.labels[0] == "T-shirt/top"
    assert served.calibration.images == 2000
    assert served.calibration.error_after < served.calibration.error_before
    assert served.explainer is not None
    image = torch.randint(0, 256, (1, 32, 32), dtype=torch.uint8)
    for method in served.explainer.methods[:2]:
        saliency = served.explainer(image, method, 3)
        assert (saliency.shape, saliency.dtype, saliency.requires_grad) == ((32, 32), torch.float32, False)
    logits = torch.randn(1, 10)
    expected = (logits / served.calibration.temperature).softmax(dim=1)
    assert torch.allclose(served.probabilities(logits), expected)


def test_the_explained_model_must_be_the_served_one(tmp_path: Path) -> None:
    import vitrail

    other = vitrail.create("vit_tiny_patch16", image_size=32, dim=32, depth=1, num_heads=2, num_classes=3)
    vitrail.save(other, tmp_path / "other")
    with pytest.raises(ConfigError, match="their classes are not the same"):
        Opening(model="packaged", explain=str(tmp_path / "other"), threads=1)()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--max-batch", "0"], "max_batch is 0; it must be 1 or more"),
        (["--tls-key", "key.pem"], "https needs both a certificate and its private key"),
        (["--api-key-file", "gone"], "gone: No such file or directory"),
        (["--host", "256.0.0.1"], "256.0.0.1:8080 cannot be listened at"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "packaged", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_keys_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("\n")
    assert main(["serve", "packaged", "--api-key-file", str(tmp_path / "key")]) == 2
    assert "is empty; it should hold the API key" in capsys.readouterr().err
    monkeypatch.setenv("VITRAIL_API_KEY", "short")
    assert main(["serve", "packaged"]) == 2
    assert "the API key has 5 characters" in capsys.readouterr().err


def test_from_the_command_to_sigterm() -> None:
    command = [sys.executable, "-m", "vitrail", "serve", "packaged", "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        about, address = process.stdout.readline(), process.stdout.readline().split()[0]
        assert about.startswith("packaged: vit_tiny_patch16")
        address = address.replace("0.0.0.0", "127.0.0.1")
        sample = send(address, "/samples/1.png").body
        answered = send(address, "/predict", sample, content_type="image/png").data
        assert answered["predictions"][0]["answers"][0]["label"] == "Trouser"
        explained = send(address, "/explain?method=relevance", sample, content_type="image/png").data
        assert explained["target"]["label"] == "Trouser"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "there is no API key" in process.stderr.read()
