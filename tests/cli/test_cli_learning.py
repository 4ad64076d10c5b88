"""The verbs of the main job, as a person types them, on a folder of tiny pictures."""

import argparse
import inspect
import io
import json
import re
import shutil
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support.coloured import TINY, coloured_photos, coloured_run
from torch import Tensor

import vitrail
from vitrail.cli import main, parser
from vitrail.data.dataset import Splits
from vitrail.data.sources.opening import survey
from vitrail.errors import ConfigError
from vitrail.models.checkpoint import hub
from vitrail.models.checkpoint.timm import Timm
from vitrail.runs.record import Result
from vitrail.training.config import TrainConfig


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="module")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return coloured_run(photos, tmp_path_factory.mktemp("runs") / "colours", epochs=6)


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


def test_predict_says_which_of_several_labels_are_the_answer(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labelled = Path(shutil.copytree(run, tmp_path / "labelled"))
    about = json.loads((run / "run.json").read_text())
    schema = {"labels": {"kind": "labels", "classes": ["blue", "green", "red"]}}
    (labelled / "run.json").write_text(json.dumps(about | {"schema": schema}))

    def said(*thresholds: float, top: int) -> str:
        Result(metrics={}, state={"thresholds": thresholds}).write(labelled)  # of blue, green and red
        words = ["predict", str(labelled), str(photos / "red" / "3.png"), "--device", "cpu"]
        assert main([*words, "--top", str(top)]) == 0
        return re.sub(r" [\d.]+ %", "", capsys.readouterr().out.rpartition(": ")[2].strip())

    least = said(1, 1, 0, top=3).rpartition(", ")[2]  # the least likely of all, since red is the likeliest
    assert least in ("blue", "green")
    assert said(1, 1, 0, top=1) == "red"
    assert said(1, 1, 1, top=1) == "no label; not red"
    assert said(*(float(name != least) for name in ("blue", "green", "red")), top=1) == f"{least}; not red"
    assert said(0, 0, 0, top=1).startswith("red, ")  # none that was decided for is left out


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_predict_prints_names_as_they_are_or_as_an_encoding_can(
    encoding: str, run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = tmp_path / "été 🌻.png"
    shutil.copy(photos / "red" / "3.png", picture)
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding=encoding))
    for more in ([], ["--json"]):
        assert main(["predict", str(run), str(picture), "--device", "cpu", *more]) == 0
    sys.stdout.flush()
    plain, row = printed.getvalue().decode(encoding).splitlines()
    assert json.loads(row)["path"] == str(picture)
    name = r"\u00e9t\u00e9 \ud83c\udf3b.png" if encoding == "ascii" else "été 🌻.png"
    assert plain.startswith(f"{tmp_path / name}: ")
    assert name in row


def test_a_finished_run_is_not_trained_or_reported_again(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(run.parent / "cache"))
    report, model = run / "report.html", run / "model.safetensors"
    written = [file.stat().st_mtime_ns for file in (report, model)]
    assert main(["train", "--resume", str(run), "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "6 of 6 epochs" in shown.err
    assert f"vitrail train {photos} --from {run}\n" in shown.err
    assert shown.out == f"report: {report}\n"
    assert [file.stat().st_mtime_ns for file in (report, model)] == written
    report.unlink()  # as after a kill between the last epoch and the report
    assert main(["train", "--resume", str(run), "--device", "cpu"]) == 0
    assert report.is_file()


def test_every_option_of_train_has_a_name_in_python() -> None:
    (verbs,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    options = [action.option_strings[-1] for action in verbs.choices["train"]._actions if action.option_strings]
    names = {option.lstrip("-").replace("-", "_") for option in options} - {"help", "set", "verify_resume"}
    names -= inspect.signature(vitrail.train).parameters.keys() | {field.name for field in fields(TrainConfig)}
    assert {"out", "lr"} <= names
    for name in names:
        with pytest.raises(ConfigError, match=r"--.*="):
            vitrail.train("demo", **{name: None})


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["predict", "pakaged", "x.jpg"], "packaged"),
        (["eval", "pakaged", "demo"], "packaged"),
        (["explain", "pakaged", "x.jpg"], "packaged"),
        (["probe", "pakaged", "demo"], "packaged"),
        (["predict", "my-rn", "x.jpg"], "runs/my-run"),
        (["predict", "my-run", "x.jpg"], "runs/my-run"),
        (["predict", "weights.v", "x.jpg"], "weights.v2"),
        (["predict", "vit32_smal", "x.jpg"], "vit32_small"),
        (["predict", "runs/my-rum", "x.jpg"], "runs/my-run"),
        (["predict", "run/my-run", "x.jpg"], "runs/my-run"),
        (["eval", "ruuns/my-rum", "demo"], "runs/my-run"),
    ],
)
def test_a_misspelt_model_gets_the_nearest_that_there_is(
    words: list[str], meant: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("runs/my-run", "weights.v2"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").touch()
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert words[1] in shown
    assert f"did you mean {meant!r}?" in shown


def test_a_run_to_go_on_with_is_named_where_it_is_misspelt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/one", "runs/not-a-run"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs/one/run.json").touch()
    for wrong, says in (("runs/noe", "did you mean 'runs/one'?"), ("runs/xyz", "one")):
        assert main(["train", "--resume", wrong]) == 2
        shown = capsys.readouterr().err
        assert wrong in shown
        assert says in shown


def test_eval_judges_other_images(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    page = tmp_path / "page.html"
    assert main(["eval", str(run), str(photos), "--json", "--html", str(page), "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "accuracy" in shown.out
    told = f"of these 90 images, {run} was trained on 81 and chose its best epoch by 9"
    assert told in shown.err
    assert told in json.loads(shown.out)["sections"][0]["text"]
    assert page.read_text().lower().startswith("<!doctype html>")


def test_eval_without_data_takes_the_images_that_validated_the_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    assert main(["eval", str(run), "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert "(validation): 9 images" in shown.out
    assert f"{run} chose its best epoch by 9" in shown.err
    vitrail.save(vitrail.create("vit32_small", dim=16, depth=1, num_heads=2, num_classes=3), tmp_path / "bare")
    assert main(["eval", str(tmp_path / "bare")]) == 2
    assert "DATA" in capsys.readouterr().err


def test_eval_in_fewer_bits_is_held_beside_float32(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vitrail.hardware.bf16_works", lambda: True)
    assert main(["eval", str(run), "--device", "cpu", "--precision", "bf16"]) == 0
    assert "same answer" in capsys.readouterr().out
    assert main(["eval", str(run), "--device", "cpu", "--precision", "fp8"]) == 2
    assert "8.9" in capsys.readouterr().err


def test_eval_keeps_images_as_training_does_so_that_the_same_images_score_the_same(tmp_path: Path) -> None:
    """Arrays of 20 pixels for a model of 32: rounded to whole levels at 32, they would be other images."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 24), ("test", 12)):
        np.save(tmp_path / f"{split}_images.npy", draw.integers(0, 256, (count, 20, 20, 3), dtype=np.uint8))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(count) % 3)
    small = {"options": {"dim": 16, "depth": 1, "num_heads": 2}, "epochs": 1, "batch_size": 8, "image_size": 32}
    run = vitrail.train(str(tmp_path), model="vit32_small", folder=tmp_path / "run", silent=True, device="cpu", **small)
    found = vitrail.evaluate(run.folder, tmp_path).metrics
    assert found["nll"] == pytest.approx(run.metrics["test_nll"], abs=1e-9)
    assert found["accuracy"] == run.metrics["test_accuracy"]
    assert vitrail.evaluate(run.folder).metrics == found


def test_doctor_audits_the_split_of_a_seed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def seen(*of: object, seed: int, **options: object) -> Splits:
        seeds.append(seed)
        return survey(*of, seed=seed, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("vitrail.data.sources.opening.survey", seen)
    monkeypatch.setattr("vitrail.training.cost.training_speed", lambda *_, **__: 1.0)
    assert main(["doctor", str(photos)]) == main(["doctor", str(photos), "--seed", "3"]) == 0
    assert seeds == [0, 3]


def test_doctor_sees_what_is_wrong(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(photos), "--json"]) == 0
    told = json.dumps(json.loads(capsys.readouterr().out))
    assert '"model": "vit32_conv"' in told  # as `train` would take
    assert all(words in told for words in ("batch size", "memory", "epoch"))


def test_options_may_stand_between_positional_arguments(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(photos / "red" / "3.png")
    assert main(["predict", str(run), "--top", "1", picture, "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith(f"{picture}: red ")


def test_verify_resume_proves_it(
    photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    words = ["train", str(photos), "--model", "vit32_small", "--batch-size", "27", "--verify-resume", "4"]
    assert main([*words, "--device", "cpu", *TINY]) == 0
    assert "equal" in capsys.readouterr().out


@pytest.fixture
def from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """A small checkpoint as timm has it on the hub, fetched already; its tensors by our names."""
    model = vitrail.create("vit_tiny_patch16", dim=32, depth=3, num_heads=2, image_size=32, num_classes=5)
    foreign, folder = Timm().write(model), tmp_path / "fetched"
    folder.mkdir()
    save_file(foreign.tensors, folder / "model.safetensors")
    about = {**foreign.config, "pretrained_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.2, 0.2]}}
    (folder / "config.json").write_text(json.dumps(about))
    monkeypatch.setattr(hub, "_fetch", lambda repository, revision, group: folder)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    return model.state_dict()


@pytest.mark.parametrize(
    ("words", "moves", "stays"),
    [
        (["--freeze-until", "blocks.1", "--layer-decay", "0.5"], "blocks.1.norm1.weight", "blocks.0.norm1.weight"),
        (["--lora", "4"], "blocks.0.attention.qkv.weight", "blocks.2.norm1.weight"),
    ],
)
def test_fine_tuning_from_the_hub(
    words: list[str],
    moves: str,
    stays: str,
    photos: Path,
    tmp_path: Path,
    from_the_hub: dict[str, Tensor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    train = ["train", str(photos), "--from", "hf-hub:timm/tiny", *words, "--epochs", "1", "--batch-size", "16"]
    assert main([*train, "--out", str(tmp_path / "run"), "--device", "cpu"]) == 0
    said = capsys.readouterr().err
    assert said.count("the head for 5 classes was replaced by a fresh one for 3") == 1
    assert "mean 0.4 0.5 0.6" in said
    assert "trainable parameters" in said
    model = vitrail.load(tmp_path / "run")
    assert model.labels == ("blue", "green", "red")
    assert torch.equal(model.state_dict()[stays], from_the_hub[stays])
    assert not torch.equal(model.state_dict()[moves], from_the_hub[moves])
    assert model.state_dict().keys() == from_the_hub.keys()  # nothing of LoRA is left
    recipe = json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]
    assert recipe["optimiser"]["layer_decay"] == (0.5 if "--layer-decay" in words else None)
    assert "hf-hub:timm/tiny" in (tmp_path / "run" / "report.html").read_text()


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
    assert "'optimiser'" in capsys.readouterr().err
    assert (tmp_path / "runs/demo/run.json").stat().st_mtime_ns == first
    assert main(["demo", *DEMO]) == 0
    assert (tmp_path / "runs/demo/run.json").stat().st_mtime_ns > first
    assert main(["demo", *DEMO, "--out", "runs/demo"]) == 2  # a folder that was named is never emptied
    assert "--resume runs/demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train"], "train needs data"),
        (["train", "nowhere/"], "nowhere"),
        (["train", "demo", "--recipe", "dmeo"], "did you mean 'demo'?"),
        (["train", "demo", "--set", "epoch=3"], "did you mean 'epochs'?"),
        (
            ["train", "demo", "--set", "learning_rate=1"],
            "here that is optimiser.lr",
        ),
        (["train", "demo", "--lora", "8", "--model", "vit32_small"], "--from"),
        (["train", "demo", "--set", "model=vit32_smal"], "did you mean 'vit32_small'?"),
        (["train", "demo", "--set", "folder=x"], "--set folder"),
        (["demo", "--set", "device=cpu"], "--set device"),
        (["train", "nowhere/", "--out", "/proc/x"], "/proc/x"),
        (["train", "demo", "--resume", "x"], "leave out data"),
        (["train", "--resume", "nowhere"], "nowhere"),
        (["predict", "x.jpg", "--top", "0"], "--top is 0; it must be 1 or more"),
        (["predict", "x.jpg", "--out", "table"], "'classify'"),
        (
            ["predict", "x.jpg", "--out", "a.csv", "--json"],
            "--out predictions.jsonl",
        ),
        (["predict", ""], "PATH is empty"),
        (["eval", "nowhere", "demo"], "nowhere"),
        (["predict", "nowhere", "x.jpg"], "nowhere"),
        (["doctor", "nowhere/"], "nowhere"),
        (["trian", "demo"], "did you mean 'train'?"),
        (["train", "demo", "--epochz=1"], "train has no option --epochz; did you mean '--epochs'?"),
        (["train", "--epochz", "1", "demo"], "train has no option --epochz; did you mean '--epochs'?"),
        (["train", "demo", "--num-epochs", "3"], "did you mean '--epochs'?"),
        (["train", "demo", "--batch_size", "8"], "did you mean '--batch-size'?"),
        (["train", "demo", "--weight-decay", "0"], "write --set optimiser.weight_decay="),
        (["train", "demo", "--precision", "bf61"], "precision is 'bf61'; did you mean 'bf16'?"),
        (["train", "nowhere/", "--precision", "fp32"], "nowhere does not exist"),
        (["demo", "--epochs", "3"], "demo has no option --epochs; write --set epochs="),
        (["predict", "x.jpg", "--gpu"], "predict has no option --gpu; known: device, "),
        (["eval", "packaged", "demo", "more"], "unexpected arguments: more"),
    ],
)
def test_a_mistake_gets_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("vitrail: error: ")
    assert says in shown.err
    assert "Traceback" not in shown.err
