"""`vitrail serve`: options, mistakes, what a worker opens, and the whole way of a model from pictures to a page."""

import json
import pickle
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
import torch
from browser_session import session
from coloured import coloured_photos, coloured_run
from small_service import send

from vitrail.cli import main, serving_calibration
from vitrail.cli.serving import Opening
from vitrail.cli.serving_calibration import FILE, validated
from vitrail.cli.serving_explain import SaliencyExplainer
from vitrail.cli.shipping import _confidence
from vitrail.data.source import open_data
from vitrail.deploy.calibration import Calibration, calibrate
from vitrail.deploy.card import Card
from vitrail.deploy.engine import open_engine
from vitrail.deploy.serve_model import Offer, Question
from vitrail.errors import CheckpointError, ConfigError
from vitrail.training.trained import open_trained

CAPTION = "document.getElementById('caption').textContent"
CHANGED = "one.dispatchEvent(new Event('change'))"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_run(photos, tmp_path_factory.mktemp("runs") / "colours", epochs=4)


def test_what_a_worker_opens(run: Path) -> None:
    opening = pickle.loads(pickle.dumps(Opening(model=str(run), threads=1)))
    served = opening()
    assert served.engine.labels == ("blue", "green", "red")
    assert served.calibration.images == 9  # its own validation
    assert served.calibration.temperature != 1
    logits = torch.randn(1, 3)
    expected = (logits / served.calibration.temperature).softmax(dim=1)
    assert torch.allclose(served.probabilities(logits), expected)


# --- confidence ------------------------------------------------------------------------------------------------------


def test_confidence_comes_from_what_the_run_was_validated_on(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, place = open_engine(run, open_run=open_trained), tmp_path / "run"
    copytree(run, place, ignore=ignore_patterns(FILE))
    found = validated(engine, str(place))
    held = open_data(str(photos), seed=0).val
    expected = calibrate(engine.predict([held.read(number) for number in range(len(held))]), held.labels)
    assert found == expected
    monkeypatch.setattr(serving_calibration, "fitted", None)  # it is kept: nothing is computed again
    assert validated(engine, str(place)) == found
    best = json.loads((place / "best.json").read_text())
    (place / "best.json").write_text(json.dumps(best | {"images": 8.0}))  # another model, and other data
    assert validated(engine, str(place)) == Calibration()
    assert "its data are not those that it was validated on" in capsys.readouterr().err


def copied(run: Path, photos: Path, folder: Path) -> tuple[Path, Path]:
    """Copies of a run's pictures, and of the run, which is of them and not calibrated."""
    data, place = copytree(photos, folder / "photos"), copytree(run, folder / "run", ignore=ignore_patterns(FILE))
    about = json.loads((run / "run.json").read_text())
    (place / "run.json").write_text(json.dumps(about | {"source": str(data)}))
    return data, place


def test_a_broken_picture_is_no_other_data(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, place = copied(run, photos, tmp_path)
    for number in range(30, 40):  # of 120 pictures one may be broken
        for name in ("blue", "green", "red"):
            (data / name / f"{number}.png").write_bytes((photos / name / f"{number - 30}.png").read_bytes())
    best = json.loads((run / "best.json").read_text())
    (place / "best.json").write_text(json.dumps(best | {"images": 11}))
    held = open_data(str(data), seed=0).val
    assert len(held) == 12
    engine = open_engine(run, open_run=open_trained)
    assert validated(engine, str(place)) == Calibration()  # one more than it saw, and none is broken
    assert "its data are not those that it was validated on" in capsys.readouterr().err
    Path(held.where(4)).write_bytes(b"no picture")
    found = validated(engine, str(place))
    assert capsys.readouterr().err == ""
    kept = [number for number in range(12) if number != 4]
    assert found == calibrate(engine.predict([held.read(number) for number in kept]), held.labels[kept])


def test_a_picture_that_broke_since_is_named(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, place = copied(run, photos, tmp_path)
    broken = open_data(str(data), seed=0).val.where(4)
    Path(broken).write_bytes(b"no picture")
    assert validated(open_engine(run, open_run=open_trained), str(place)) == Calibration()
    assert f"{broken} cannot be decoded" in capsys.readouterr().err


def test_a_package_is_not_written_to(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copytree(run, tmp_path / "installed", ignore=ignore_patterns(FILE))
    monkeypatch.setattr(serving_calibration, "find_packaged", lambda: tmp_path / "installed")
    assert validated(open_engine(run, open_run=open_trained), "packaged").images == 9
    assert not (tmp_path / "installed" / FILE).exists()


@pytest.mark.parametrize(
    ("source", "why"),
    [("gone", "gone"), ("cifar10", "name labelled pictures with vitrail serve"), (None, "without a name")],
)
def test_without_its_pictures_a_run_is_not_calibrated(
    run: Path, tmp_path: Path, source: str | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("run.json", "best.json"):
        (tmp_path / name).write_text((run / name).read_text())
    about = json.loads((run / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(about | {"source": source}))
    assert validated(open_engine(run, open_run=open_trained), str(tmp_path)) == Calibration()
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "sentence"), [("", "calibrated on 9 pictures"), ("cifar10", r"not calibrated; .*: its data are cifar10")]
)
def test_what_export_says_of_confidence(run: Path, tmp_path: Path, source: str, sentence: str) -> None:
    for name in ("run.json", "best.json"):
        (tmp_path / name).write_text((run / name).read_text())
    about = json.loads((run / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(about | {"source": source or about["source"]}))
    found, told = _confidence(open_trained(run), str(tmp_path))
    assert re.match(sentence, told)
    assert found.images == (0 if source else 9)


def test_confidence_is_fitted_to_named_pictures(run: Path, photos: Path) -> None:
    served = Opening(model=str(run), calibrate=str(photos), threads=1)()
    assert served.calibration.images == 90


def test_cards_with_and_without_a_calibration() -> None:
    card = open_engine("packaged", open_run=open_trained).card
    sure = replace(card, calibration=Calibration(temperature=0.8, images=9, error_before=0.2, error_after=0.1))
    assert Card.from_json(sure.to_json(), name="x") == sure
    told = json.loads(card.to_json())
    del told["calibration"]  # as artefacts had it before
    assert Card.from_json(json.dumps(told), name="x") == card
    with pytest.raises(CheckpointError, match="x describes itself in a way that cannot be read"):
        Card.from_json(json.dumps(told | {"calibration": 3}), name="x")


# --- explanations ----------------------------------------------------------------------------------------------------


def test_layers_and_heads_of_a_run(run: Path) -> None:
    explainer = SaliencyExplainer(open_trained(run))
    offers = {offer.method: offer for offer in explainer.offers}
    assert explainer.offers[0] == Offer(method="relevance")
    assert offers["attention"] == Offer(method="attention", targeted=False, layers=2, heads=(2, 2))
    assert offers["attention_gradient"] == Offer(method="attention_gradient", layers=2)
    image = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)

    def shown(**asked: int) -> torch.Tensor:
        return explainer(image, Question(method="attention", target=0, **asked))

    heads = [shown(layer=0, head=head) for head in range(2)]
    assert (heads[0].shape, heads[0].dtype, heads[0].requires_grad) == ((32, 32), torch.float32, False)
    assert not torch.allclose(heads[0], heads[1])
    assert torch.allclose((heads[0] + heads[1]) / 2, shown(layer=0), atol=1e-6)
    assert torch.allclose(shown(), shown(layer=1))
    assert not torch.allclose(shown(layer=0), shown(layer=1))
    by_class = [explainer(image, Question(method="attention_gradient", target=1, layer=layer)) for layer in range(2)]
    assert not torch.allclose(by_class[0], by_class[1])


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
        (["--allow-urls", "*"], "'*' is no host to fetch pictures from; name hosts such as example.org"),
        (["--allow-urls", ","], "--allow-urls names no host"),
        (["--api-key-file", "gone"], "gone: No such file or directory"),
        (["--host", "256.0.0.1"], "256.0.0.1:8080 cannot be listened at"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "packaged", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_files_that_are_no_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = tmp_path / "note.pem"
    note.write_text("a note")
    assert main(["serve", "packaged", "--tls-certificate", str(note), "--tls-key", str(note), "--port", "0"]) == 2
    assert f"{note} and {note} are no certificate and its private key" in capsys.readouterr().err


def test_keys_come_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("\n")
    assert main(["serve", "packaged", "--api-key-file", str(tmp_path / "key")]) == 2
    assert "is empty; it should hold the API key" in capsys.readouterr().err
    (tmp_path / "key").write_bytes(b"\x89PNG")
    assert main(["serve", "packaged", "--api-key-file", str(tmp_path / "key")]) == 2
    assert "is no text; it should hold the API key" in capsys.readouterr().err
    monkeypatch.setenv("VITRAIL_API_KEY", "short")
    assert main(["serve", "packaged"]) == 2
    assert "the API key has 5 characters" in capsys.readouterr().err


def test_the_whole_way_of_a_model(photos: Path, run: Path, tmp_path: Path) -> None:
    """Train, export, certificate, serve, browser, SIGTERM."""
    words = ["export", str(run), "--to", "onnx", "--rounds", "1", "--count", "12"]
    assert main([*words, "--out", str(tmp_path / "dist")]) == 0
    assert "Certificate" in (tmp_path / "dist" / "certificate.html").read_text()
    artefact = str(tmp_path / "dist" / "model.onnx")
    alone = Opening(model=artefact, threads=1)()
    assert alone.calibration == validated(open_engine(run, open_run=open_trained), str(run))  # it knows by itself
    assert Opening(model=artefact, calibrate=str(photos), threads=1)().calibration.images == 90
    words = ["serve", artefact, "--explain", str(run), "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(
        [sys.executable, "-m", "vitrail", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        address = process.stdout.readline().split()[0].replace("0.0.0.0", "127.0.0.1")
        red = photos / "red" / "3.png"
        answered = send(address, "/predict", red.read_bytes(), content_type="image/png").data
        assert answered["predictions"][0]["answers"][0]["label"] == "red"
        with session() as tab:
            tab.open(address)
            tab.until("document.getElementById('limits').textContent")
            tab.choose("#file", red)
            tab.until(f"{CAPTION}.includes('bright places speak for red (relevance,')")
            assert "calibrated on 9 pictures" in tab.run("document.getElementById('calibration').textContent")
            for name, value in {"method": "attention", "layer": "0", "head": "1"}.items():
                tab.run(f"{{ const one = document.getElementById('{name}'); one.value = '{value}'; {CHANGED} }}")
            tab.until(f"{CAPTION}.includes('(attention, layer 0, head 1,')")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            tab.choose("#file", red)
            tab.until("document.getElementById('status').textContent.startsWith('The service cannot be reached')")
        assert "there is no API key" in process.stderr.read()
