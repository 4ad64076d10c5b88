"""The model inside the package: small, whole, offline, and as good as it says."""

import json
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.benchmarks import benchmark
from support.run_folder import record

import vitrail
from vitrail import packaged
from vitrail.cli import main
from vitrail.errors import CheckpointError
from vitrail.runs.record import Record, Result
from vitrail.runs.trained import open_model
from vitrail.training.run import train
from vitrail.training.start import licence_of


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    Image.new("RGB", (50, 40), "grey").save(tmp_path / "picture.jpg")
    return tmp_path / "picture.jpg"


def test_it_is_small_half_precision_and_whole() -> None:
    folder = packaged.find_packaged()
    assert sum((folder / name).stat().st_size for name in packaged.FILES) <= packaged.MAX_BYTES
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} == {torch.float16}
    model = vitrail.load(folder)
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())
    assert len(model.labels) == model.config.num_classes


def test_it_knows_no_folder_of_the_machine_that_trained_it() -> None:
    for name in ("run.json", "best.json", "config.json"):
        for word in (packaged.find_packaged() / name).read_text().split():
            assert not word.strip('",').startswith(("/", "~"))


def test_it_says_what_it_is() -> None:
    trained = open_model()
    assert trained.about.startswith("packaged: ")
    assert "M parameters, trained on cifar10, test accuracy 0.9729" in trained.about
    assert trained.about == open_model("packaged").about
    assert trained.record is not None
    assert trained.record.licence == "Apache-2.0"
    assert "1,000 images" in trained.task.calibration()


def test_it_knows_what_its_samples_show() -> None:
    trained, shown = open_model(), packaged.samples()
    assert sorted(shown) == sorted(trained.task.classes)
    told = {Path(found.path).stem: found.answer.candidates[0].label for found in trained.predict(shown.values(), top=1)}
    assert sum(name == label for name, label in told.items()) >= 8, told


def test_a_picture_alone_is_enough(picture: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(picture), "--top", "2", "--device", "cpu"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"{picture}: ")
    assert shown.out.count("%") == 2
    assert shown.err.startswith("vitrail: note: the model is packaged: ")
    assert main(["predict", "packaged", str(picture.parent), "--json", "--device", "cpu"]) == 0
    (row,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert row["answers"][0]["label"] in open_model().task.classes
    assert open_model().predict(picture, top=1)[0].answer.candidates[0].label == row["answers"][0]["label"]


def test_a_model_without_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "packaged"]) == 2
    assert "vitrail predict packaged" in capsys.readouterr().err


def test_it_can_be_judged(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    classes = open_model().task.classes
    for name in classes:
        place = tmp_path / "photos" / name.replace("/", "-")
        place.mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(place / "1.png")
    table = tmp_path / "table.csv"
    rows = [f"photos/{name.replace('/', '-')}/1.png,{name}" for name in classes]
    table.write_text("\n".join(["path,label", *rows]))
    assert main(["eval", "packaged", str(table), "--json", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["sections"][0]["values"]["accuracy"] == pytest.approx(1 / len(classes))  # one answer for black


def test_an_installation_without_it(
    picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packaged, "packaged_folder", lambda: tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        packaged.find_packaged()
    assert main(["predict", str(picture)]) == 2
    told = capsys.readouterr().err
    assert told.startswith("vitrail: error: this installation has no packaged model")
    assert "vitrail predict runs/my-run picture.jpg" in told


def test_one_is_made_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_packaged = benchmark("make_packaged")

    options = {"dim": 16, "depth": 1, "num_heads": 2, "patch": {"size": 14}}
    changes = {"model": "vit32_small", "image_size": 28, "options": options, "epochs": 1, "batch_size": 2000}
    train("demo", folder=tmp_path / "run", device="cpu", silent=True, **changes)
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["make_packaged.py", str(tmp_path / "run"), "--out", str(out)])
    make_packaged.main()
    said = capsys.readouterr().out
    assert "fp16" in said
    assert {path.name for path in out.iterdir()} == {*packaged.FILES, "SHA256SUMS"}
    record = Record.read(out)
    assert (record.source, record.start, record.notes) == ("fashion-mnist-12k", None, ())
    assert record.licence == "Apache-2.0"
    assert 0 < Result.read(out).metrics["test_accuracy"] < 1
    assert Result.read(out).state["temperature"]["images"] > 50
    assert "trained on fashion-mnist-12k, test accuracy" in open_model(out).about

    before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(make_packaged, "MAX_BYTES", 1000)
    with pytest.raises(SystemExit, match="1,000"):
        make_packaged.main()
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_paths_are_taken_out_of_what_is_shipped() -> None:
    make_packaged = benchmark("make_packaged")

    command = "vitrail train cifar10:/data/cifar --out /home/me/best"
    run = record(source="cifar10:/data/cifar", val="/data/val", notes=("/x",), command=command)
    shipped = make_packaged.described(run, "x")
    assert shipped.command == "vitrail train cifar10:cifar --out best"
    assert (shipped.source, shipped.val, shipped.notes) == ("cifar10", None, ())


def test_the_backbone_for_photographs_is_small_half_precision_and_says_where_it_is_from() -> None:
    folder = packaged.find_packaged(packaged.PHOTOS)
    assert sum((folder / name).stat().st_size for name in packaged.PHOTOS_FILES) <= packaged.MAX_PHOTOS_BYTES
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()} == {torch.float16}
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert "Apache" in (folder / "LICENSE").read_text()
    assert packaged.LICENCE in (folder / "ORIGIN.md").read_text()
    trained = open_model(packaged.PHOTOS)
    assert trained.preprocess_known
    assert trained.head is None


def test_the_backbone_sees_what_samples_show() -> None:
    """Two pictures of one thing, one mirrored, are nearer to each other than pictures of different things."""
    trained = open_model(packaged.PHOTOS)
    pixels = [Image.open(path).convert("RGB").resize((64, 64)) for path in packaged.samples().values()]
    images = torch.stack(
        [torch.frombuffer(bytearray(one.tobytes()), dtype=torch.uint8).view(64, 64, 3) for one in pixels]
    )
    images = trained.preprocess(images.permute(0, 3, 1, 2))
    with torch.no_grad():
        first, second = (
            torch.nn.functional.normalize(trained.backbone(one), dim=1) for one in (images, images.flip(3))
        )
    assert (first @ second.T).argmax(dim=1).tolist() == list(range(len(pixels)))


def test_a_run_from_packaged_weights_has_their_licence(tmp_path: Path) -> None:
    for name in packaged.NAMES:
        assert licence_of(name) == "Apache-2.0"
    record(licence="CC0-1.0").write(tmp_path)
    assert licence_of(tmp_path) == "CC0-1.0"
    assert licence_of(None) is None
