"""A whole run: from data to a model, and what is left in its folder."""

import errno
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.small_data import Made, photos, split

from vitrail.checksums import read_checksums
from vitrail.data.dataset import Splits
from vitrail.data.targets import LabelsTarget
from vitrail.errors import ConfigError, DataError, TrainingError
from vitrail.models.checkpoint import load
from vitrail.report.intervals import wilson
from vitrail.runs.record import Record, Result
from vitrail.training.loop import Loop
from vitrail.training.run import Run, data_name, train

SMALL = {
    "model": "vit32_small", "image_size": 16, "options": {"dim": 32, "depth": 2, "num_heads": 2}, "batch_size": 16,
    "epochs": 2, "device": "cpu", "silent": True, "augment": {"crop": "shift", "padding": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    data = split(photos(64, size=16), test=10)
    return train(data, folder=tmp_path_factory.mktemp("runs") / "one", **SMALL, optimiser={"lr": 3e-3}, ema=0.9)


def test_every_phase_of_a_run_is_timed(done: Run) -> None:
    phases = done.seconds
    assert {"open", "read images", "build", "first step", "train", "validate", "save", "evaluate"} <= phases.keys()
    assert phases["other"] <= 0.1 * sum(phases.values())


def test_a_run_gives_a_model_metrics_and_history(done: Run) -> None:
    assert done.metrics["accuracy"] > 0.9
    assert done.metrics["test_accuracy"] > 0.9
    assert [entry["epoch"] for entry in done.history] == [1, 2]
    assert not done.model.training
    assert done.model.labels == ("dark", "light")


def test_the_folder_is_a_checkpoint_of_the_best_model(done: Run) -> None:
    model = load(done.folder)
    assert model.labels == ("dark", "light")
    assert all(torch.equal(value, done.model.state_dict()[name]) for name, value in model.state_dict().items())
    names = {item.name for item in done.folder.iterdir()}
    files = {"model.safetensors", "config.json", "best.json", "run.json"}
    assert names == {*files, "SHA256SUMS", "metrics.jsonl", "checkpoints"}
    assert read_checksums(done.folder).keys() == files


def test_run_json_says_what_was_decided(done: Run) -> None:
    record = Record.read(done.folder)
    assert record.recipe["optimiser"]["lr"] == 3e-3
    assert record.schema["label"].classes == ("dark", "light")
    assert record.task.kind == record.recipe["task"]["kind"] == "classify"
    assert "made for a test" in record.notes
    assert {"torch", "vitrail", "device", "precision"} <= record.environment.keys()


def test_the_report_is_written(done: Run) -> None:
    page = done.report()
    text = page.read_text()
    assert page == done.folder / "report.html"
    assert "vit32_small" in text
    right = round(10 * done.metrics["test_accuracy"])
    assert f"Correct on {right} of 10 images" in text
    assert "validation accuracy" in text
    page.unlink()


def test_a_finished_run_resumes_to_itself(
    done: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Loop, "_step", lambda *_: pytest.fail("it trains again"))
    before = {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()}
    again = train(done.plan.data, folder=done.folder, resume=True, device="cpu")
    assert again.metrics == done.metrics
    assert again.history == done.history
    assert (done.ended_before, again.ended_before) == (False, True)
    assert "already complete, after 2 of 2 epochs" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in done.folder.rglob("*") if path.is_file()} == before


def test_a_run_that_stopped_early_says_so_when_it_is_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    still = {"optimiser": {"lr": 1e-20}, "schedule": {"warmup_epochs": 0}, "early_stop": 1, "epochs": 9}
    data = split(photos(16, size=16))
    train(data, folder=tmp_path / "run", **SMALL | still)
    train(data, folder=tmp_path / "run", resume=True, device="cpu")
    assert "stopped early, after 2 of 9 epochs" in capsys.readouterr().err


def test_a_resume_with_another_model_or_recipe_is_refused(done: Run) -> None:
    with pytest.raises(TrainingError, match=r"recipe\.model was vit32_small, is vit32_base"):
        train(done.plan.data, folder=done.folder, resume=True, model="vit32_base", device="cpu", silent=True)
    with pytest.raises(TrainingError, match=r"recipe\.epochs was 2, is 5"):
        train(done.plan.data, folder=done.folder, resume=True, epochs=5, device="cpu", silent=True)
    with pytest.raises(TrainingError, match=r"data\.images was 64, is 40"):
        train(split(photos(40, size=16)), folder=done.folder, resume=True, device="cpu", silent=True)
    other = split(photos(64, size=16), test=10)
    other.train.array[5] = 0
    with pytest.raises(TrainingError, match="checksum"):
        train(other, folder=done.folder, resume=True, device="cpu", silent=True)
    train(done.plan.data, folder=done.folder, resume=True, keep=1, device="cpu", silent=True)


def test_a_folder_with_a_run_is_not_overwritten(done: Run) -> None:
    with pytest.raises(TrainingError, match="already"):
        train(done.plan.data, folder=done.folder, **SMALL)


def test_data_that_do_not_exist() -> None:
    with pytest.raises(DataError, match="does not exist"):
        train("nowhere/at/all", device="cpu", silent=True)


def test_no_data_and_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data"):
        train(device="cpu")
    with pytest.raises(TrainingError, match="resume"):
        train(folder=tmp_path, resume=True, device="cpu")


def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a test fail that gets as far as opening data."""
    monkeypatch.setattr("vitrail.training.run.make_plan", lambda *_, **__: pytest.fail("the data were opened"))


@pytest.mark.parametrize("place", ["file", "file/run", "file/deep/run", "/proc/run"])
def test_a_folder_that_cannot_be_written_is_noticed_first(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_work(monkeypatch)
    (tmp_path / "file").touch()
    folder = tmp_path / place
    with pytest.raises(TrainingError, match="cannot write"):
        train("demo", folder=folder, **SMALL)
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("folder", [None, "elsewhere/run"])
def test_a_read_only_place_is_noticed_first(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(suffix: str | None, prefix: str | None, place: Path) -> str:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))

    no_work(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)  # the system refuses nothing to root
    with pytest.raises(TrainingError, match=rf"{folder or 'runs'}: .*Permission denied"):
        train("demo", folder=folder, **SMALL)


@pytest.mark.parametrize(
    ("keyword", "hint"),
    [
        ("out", "what the command line calls --out is folder= in Python"),
        ("layer_decay", 'what the command line calls --layer-decay is optimiser={"layer_decay": ...} in Python'),
        ("learning_rate", 'here that is optimiser={"lr": ...}'),
        ("num_epochs", "here that is epochs="),
        ("foldr", "did you mean 'folder'?"),
        ("epoch", "did you mean 'epochs'?"),
    ],
)
def test_an_unknown_keyword_is_refused_with_the_one_that_was_meant(
    keyword: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_work(monkeypatch)
    with pytest.raises(ConfigError, match=re.escape(f"{keyword} is not an option of train or of a recipe; {hint}")):
        train("demo", device="cpu", **{keyword: 1})


def test_a_batch_larger_than_the_data_shrinks_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = SMALL | {"batch_size": 512, "epochs": 1, "silent": False, "accumulate": 3}
    run = train(split(photos(20, size=16)), folder=tmp_path / "run", **options)
    assert run.config.batch_size == 18
    said = capsys.readouterr().err
    assert "batch_size is 18" in said
    assert "made for a test" in said
    assert "best epoch 1: accuracy" in said


def test_one_process_says_that_it_has_nothing_to_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = SMALL | {"epochs": 1, "silent": False}
    train(split(photos(20, size=16)), folder=tmp_path / "run", shard="fsdp", **options)
    assert "--shard fsdp is ignored" in capsys.readouterr().err


def test_a_batch_that_does_not_divide(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="divisible by accumulate 3"):
        train(split(photos(64, size=16)), folder=tmp_path / "run", **SMALL, accumulate=3)


def test_a_run_in_low_precision_is_validated_with_the_weights_that_are_saved(
    done: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(done.folder, tmp_path / "run"))
    best = Result.read(folder)
    rounded = {**best.metrics, "nll": best.metrics["nll"] + 0.01}  # as products in bf16 leave it
    Result(metrics=rounded, state=best.state).write(folder)
    monkeypatch.setattr("vitrail.training.assemble.choose_precision", lambda *_: ("bf16", ""))
    run = train(split(photos(64, size=16), test=10), folder=folder, resume=True, device="cpu", silent=True)
    assert run.metrics["nll"] == pytest.approx(best.metrics["nll"])
    assert Result.read(folder).metrics["nll"] == run.metrics["nll"]


def test_lora_is_merged_into_what_is_kept(done: Run, tmp_path: Path) -> None:
    options = {name: value for name, value in SMALL.items() if name not in ("model", "image_size", "options")}
    run = train(
        split(photos(32, size=16)),
        folder=tmp_path / "run",
        start=done.folder,
        recipe={},
        **options,
        lora=2,
        eval_every=2,
    )
    assert "blocks.0.attention.qkv.lora_a" not in load_file(run.folder / "model.safetensors")
    state = load_file(sorted((run.folder / "checkpoints").iterdir())[-1])
    a, b, plain = (state[f"model.backbone.blocks.0.attention.qkv.{name}"] for name in ("lora_a", "lora_b", "weight"))
    assert (b @ a).abs().max() > 1e-5
    assert torch.allclose(load(run.folder).blocks[0].attention.qkv.weight, plain + b @ a, atol=1e-6)


def test_several_labels_are_learned_from_a_teacher_and_reported(tmp_path: Path) -> None:
    def labelled(count: int) -> Made:
        plain = photos(count, size=16)
        labels = torch.stack([plain.targets["label"], torch.arange(count) % 3 == 0], dim=1).float()
        return Made(plain.array, {"labels": labels}, {"labels": LabelsTarget(classes=("light", "third"))})

    data = Splits(labelled(48), labelled(24), None)
    teacher = train(data, folder=tmp_path / "teacher", **SMALL, optimiser={"lr": 3e-3})
    assert teacher.metrics["auc"] > 0.6
    run = train(data, folder=tmp_path / "student", teacher=tmp_path / "teacher", **SMALL, task={"method": "hard"})
    kept = Result.read(tmp_path / "teacher")
    thresholds = torch.tensor(kept.state["thresholds"])
    assert kept.metrics == teacher.metrics  # at these thresholds
    (listener,) = run.plan.build_task().teacher
    assert listener.gives(thresholds.logit()[None] + 1e-4).tolist() == [[1, 1]]
    assert listener.gives(thresholds.logit()[None] - 1e-4).tolist() == [[0, 0]]
    assert {"loss", "teacher", "agreement"} == run.history[0]["train"].keys()
    page = run.report().read_text()
    assert ">AUC<" in page
    exact = run.metrics["exact"]  # at the thresholds that are kept, as in the report's tables
    low, high = wilson(exact, 24)
    assert f"{100 * low:.1f} to {100 * high:.1f} %" in page
    again = train(data, folder=run.folder, resume=True, device="cpu", silent=True)
    assert again.metrics == run.metrics


def test_folders_are_named_after_the_data_and_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = SMALL | {"epochs": 1}
    names = [train(split(photos(32, size=16)), **options).folder for _ in range(2)]
    assert names == [Path("runs/made-vit32_small"), Path("runs/made-vit32_small-2")]


@pytest.mark.parametrize(
    ("name", "source", "word"),
    [
        ("/data/emoji", "/data/emoji", "emoji"),
        ("/data/emoji/train", "/data/emoji", "emoji"),
        ("/data/emoji/Training/", "/data/emoji/Training/", "emoji"),
        ("/data/emoji/train.csv", "/data/emoji/train.csv", "emoji"),
        ("/data/emoji/labels.csv", "/data/emoji/labels.csv", "labels"),
        ("/data/my emoji/train", "/data/my emoji", "my-emoji"),
        ("/data/trains", "/data/trains", "trains"),
        ("/data/faces (train)", "/data/faces", "faces"),
        ("/data/faces (blue)", "/data/faces (blue)", "faces-(blue)"),
        ("/cache/cifar-10-python.tar.gz (train)", "cifar10", "cifar10"),
        ("/here/batches (train)", "cifar10:/here", "cifar10"),
        ("train", ".", "birds"),
        (".", ".", "birds"),
        ("../train", "..", "all"),
        ("/train", "/train", "data"),
        ("made", None, "made"),
    ],
)
def test_a_run_is_called_after_its_data_and_not_after_a_split(
    name: str, source: str | None, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all" / "birds").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "all" / "birds")
    assert data_name(name, source) == word


def test_a_compiled_run_learns_what_a_plain_one_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.compile
    calls = []

    def quick(*arguments: object, **options: object) -> object:
        calls.append(options)
        return plain(*arguments, **{**options, "backend": "aot_eager"})  # graphs without a compiler's forty seconds

    monkeypatch.setattr(torch, "compile", quick)
    plainly = SMALL["options"] | {"dropout": 0.0, "attention": {"dropout": 0.0}}  # compiled code draws other numbers
    options = SMALL | {"epochs": 1, "batch_size": 16, "options": plainly}
    data = split(photos(32, size=16))  # two steps
    compiled, eager = (train(data, folder=tmp_path / str(way), **options, compile=way) for way in (True, False))
    assert len(calls) == 1
    assert compiled.history[0]["step"] == 2
    assert compiled.history[0]["train"]["loss"] == pytest.approx(eager.history[0]["train"]["loss"], rel=1e-5)
    for name, value in eager.model.state_dict().items():
        torch.testing.assert_close(compiled.model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_a_run_of_a_named_source_is_stopped_by_sigterm_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = photos(48, size=16)
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "train_images.npy", data.array.permute(0, 2, 3, 1).numpy())
    np.save(tmp_path / "data" / "train_labels.npy", data.targets["label"].numpy())
    options = SMALL | {"silent": False, "ema": 0.9}
    train(tmp_path / "data", folder=tmp_path / "through", **options)
    step = Loop._step

    def stopped(loop: Loop, parts: list) -> None:
        if loop.progress.step == 1:
            signal.raise_signal(signal.SIGTERM)
        step(loop, parts)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(Loop, "_step", stopped)
        train(tmp_path / "data", folder=tmp_path / "stopped", **options)
    assert left.value.code == 143
    assert f"vitrail train --resume {tmp_path / 'stopped'}" in capsys.readouterr().err
    train(folder=tmp_path / "stopped", resume=True, device="cpu")
    said = capsys.readouterr().err
    assert "after step 3, in epoch 2 of 2" in said
    assert "Validation is" not in said  # what was chosen is said once
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("through", "stopped"))
    assert all(torch.equal(first[name], second[name]) for name in first)
