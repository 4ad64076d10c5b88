"""The verbs of the main job, as a person types them, on a folder of tiny pictures."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from vitrail.cli import main

TINY = ["--set", "options.dim=32", "--set", "options.depth=2", "--set", "options.num_heads=2"]
TINY += ["--set", "options.dropout=0", "--set", "schedule.warmup_epochs=0"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes that differ in colour alone."""
    folder, chance = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for place, name in enumerate(("blue", "green", "red")):
        (folder / name).mkdir()
        for number in range(30):
            pixels = chance.integers(0, 60, (32, 32, 3), dtype=np.uint8)
            pixels[..., 2 - place] += 150
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "colours"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(out.parent / "cache"))
        words = ["train", str(photos), "--model", "vit32_small", "--epochs", "6", "--batch-size", "27", "--lr", "0.003"]
        assert main([*words, "--out", str(out), "--device", "cpu", *TINY]) == 0
    return out


def test_a_run_learns_and_leaves_everything_behind(run: Path) -> None:
    assert {"model.safetensors", "config.json", "run.json", "metrics.jsonl", "report.html"} <= {
        p.name for p in run.iterdir()
    }
    assert vitrail.load(run).labels == ("blue", "green", "red")
    last = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][-1]
    assert last["val/accuracy"] > 0.9


def test_predict_names_the_classes(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(run), str(photos / "red" / "3.png"), "--top", "1", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith(f"{photos / 'red' / '3.png'}: red ")
    (photos.parent / "no.jpg").write_text("<html>")
    assert main(["predict", str(run), str(photos / "blue"), str(photos.parent / "no.jpg"), "--json"]) == 2
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 31
    assert sum(row["answers"][0]["label"] == "blue" for row in rows[:30]) >= 28
    assert "HTML" in rows[30]["error"]


def test_eval_judges_other_images(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    page = tmp_path / "page.html"
    assert main(["eval", str(run), str(photos), "--json", "--html", str(page), "--device", "cpu"]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert page.read_text().lower().startswith("<!doctype html>")


def test_doctor_sees_what_is_wrong(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(photos), "--model", "vit32_small", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "batch size that fits" in json.dumps(report)


def test_verify_resume_proves_it(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    words = ["train", str(photos), "--model", "vit32_small", "--batch-size", "27", "--verify-resume", "4"]
    assert main([*words, "--device", "cpu", *TINY]) == 0
    assert "equal" in capsys.readouterr().out


DEMO = ["--set", "epochs=1", "--set", "batch_size=1080", "--set", "eval_every=1", "--set", "image_size=[16, 16]"]
DEMO += ["--set", "options.dim=16", "--set", "options.depth=1", "--device", "cpu"]


def test_the_demo_trains_reports_and_replaces_itself_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *DEMO]) == 0
    said = capsys.readouterr().out
    assert said.startswith("test accuracy ")
    assert said.endswith("report: runs/demo/report.html\n")
    assert "fashion-mnist-12k" in (tmp_path / "runs/demo/report.html").read_text()
    first = (tmp_path / "runs/demo/run.json").stat().st_mtime_ns
    assert main(["demo", *DEMO, "--set", "optimizer.lr=1"]) == 2  # a mistake costs nothing
    assert "did you mean 'optimiser'?" in capsys.readouterr().err
    assert (tmp_path / "runs/demo/run.json").stat().st_mtime_ns == first
    assert main(["demo", *DEMO]) == 0
    assert (tmp_path / "runs/demo/run.json").stat().st_mtime_ns > first
    assert main(["demo", *DEMO, "--out", "runs/demo"]) == 2  # a folder that was named is never emptied
    assert "holds a run already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train"], "train needs data"),
        (["train", "nowhere/"], "nowhere"),
        (["train", "demo", "--recipe", "dmeo"], "did you mean 'demo'?"),
        (["train", "demo", "--set", "epoch=3"], "did you mean 'epochs'?"),
        (["train", "demo", "--resume", "x"], "leave out data"),
        (["train", "--resume", "nowhere"], "nowhere"),
        (["eval", "nowhere", "demo"], "there is no nowhere"),
        (["predict", "nowhere", "x.jpg"], "there is no nowhere"),
        (["doctor", "nowhere/"], "nowhere"),
    ],
)
def test_a_mistake_gets_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("vitrail: error: ")
    assert says in shown.err
    assert "Traceback" not in shown.err
