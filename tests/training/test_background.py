"""A cold start: training begins while images are packed, with the bits of a run on packed images."""

import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.feeds.coming import Coming, Rewind
from vitrail.data.feeds.packing import Packed
from vitrail.data.sources import folder as folder_source
from vitrail.training import background, run
from vitrail.training.assemble import Packs, assemble, prepare_data
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.loop import Loop
from vitrail.training.plan import Plan, make_plan
from vitrail.training.verify import same_bits

pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="images are decoded by processes on systems with fork"),
]
SMALL = {
    "image_size": 16, "options": {"dim": 16, "depth": 1, "num_heads": 2}, "batch_size": 8, "epochs": 2,
    "schedule": {"warmup_epochs": 0},
}  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of images of many shapes; decoding shows in the log."""
    monkeypatch.setattr(background, "MANY", 1)
    draw = np.random.default_rng(0)
    for number in range(40):
        folder = tmp_path / "photos" / ("light" if number % 2 else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 128, (20, 30 + number, 3)) + 100 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"


def begin(plan: Plan, folder: Path, *, early: bool, resume: bool = False) -> tuple[Loop, Packs]:
    folder.mkdir(exist_ok=True)
    plan, packs = prepare_data(plan, World(), logs := Logs(folder, silent=True), background=early)
    loop = assemble(
        plan, packs, folder, world=World(), device=torch.device("cpu"), shard="ddp", logs=logs, blank=resume
    )
    return loop, packs


def cold(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / f"cache-{name}"))
    return tmp_path / name


@pytest.mark.parametrize("sampling", ["shuffled", pytest.param("balanced", marks=pytest.mark.slow)])
def test_a_cold_run_has_the_bits_of_a_packed_one_also_after_a_stop(
    photos: Path, tmp_path: Path, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(photos, changes={**SMALL, "sampling": sampling})
    packed, packs = begin(plan, cold("packed", tmp_path, monkeypatch), early=False)
    assert isinstance(packs.train, Packed)
    packed.run()
    coming, packs = begin(plan, cold("coming", tmp_path, monkeypatch), early=True)
    assert isinstance(packs.train, Coming)
    assert isinstance(packs.val, Coming)
    coming.run(until=2)
    coming.save()  # in the first epoch: waits for the packed images, whose checksum it holds
    resumed, packs = begin(plan, tmp_path / "coming", early=True, resume=True)
    assert isinstance(packs.train, Packed)
    resumed.resume()
    for loop in (coming, resumed):
        loop.run()
        one, other = packed.learner.tensors(), loop.learner.tensors()
        assert all(same_bits(one[name], other[name]) for name in one)
        assert packed.progress.history[-1]["val"] == loop.progress.history[-1]["val"]
    files = [sorted(path.name for path in tmp_path.rglob(f"cache-{name}/packed/*")) for name in ("packed", "coming")]
    assert files[0] == files[1]
    assert len(files[0]) == 2  # all images with room for crops, and those of validation


@pytest.mark.slow
def test_a_broken_image_starts_the_run_again(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(120):
        (photos / "dark" / f"more {number}.png").write_bytes((photos / "dark" / "0.png").read_bytes())
    (photos / "light" / "1.png").write_bytes(b"broken")
    folder = cold("broken", tmp_path, monkeypatch)
    loop, _ = begin(make_plan(photos, changes=SMALL), folder, early=True)
    with pytest.raises(Rewind):
        loop.run()
    assert not (folder / "checkpoints").exists()
    cold("again", tmp_path, monkeypatch)
    attempts = Counter[bool]()
    plain = run.prepare_data

    def early(*arguments: object, background: bool) -> object:
        attempts[background] += 1
        return plain(*arguments, background=attempts.total() == 1)

    monkeypatch.setattr(run, "prepare_data", early)
    found = run.train(photos, folder=tmp_path / "run", **SMALL)
    assert attempts.total() == 2
    assert "again" in capsys.readouterr().err
    assert len(found.packs.skipped) == 1


def test_a_cold_run_says_how_long_packing_took(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = run.prepare_data
    monkeypatch.setattr(run, "prepare_data", lambda *arguments, background: plain(*arguments, background=True))
    folder = cold("said", tmp_path, monkeypatch)
    assert isinstance(run.train(photos, folder=folder, **SMALL).packs.train, Coming)
    assert "beside training" in capsys.readouterr().err


def test_every_file_is_read_once(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation images are kept at another size than those to learn from."""
    reads = Counter[str]()
    read = folder_source.Files.read

    def counted(self: folder_source.Files, index: int) -> torch.Tensor:
        reads[self.where(index)] += 1
        return read(self, index)

    plan = make_plan(photos, changes=SMALL)  # it looks at some
    monkeypatch.setattr(folder_source.Files, "read", counted)
    _, packs = begin(plan, cold("once", tmp_path, monkeypatch), early=False)
    assert packs.train.stored != packs.val.stored
    assert set(reads.values()) == {1}
    assert len(reads) == 40
    assert torch.equal(
        packs.val.images[0],  # type: ignore[attr-defined]
        packs.val.stored.fit(plan.data.val.read(0)[None])[0][0],
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore::UserWarning:torch._inductor")
@pytest.mark.parametrize("compiled", [False, True])
def test_on_a_gpu_a_cold_run_is_a_packed_one(
    photos: Path, tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where steps are recorded while a thread still makes batches."""
    histories = []
    for name in ("cold", "warm"):  # the second finds the files of the first
        monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
        options = {**SMALL, "compile": compiled, "device": "cuda", "silent": True}
        histories.append(run.train(photos, folder=tmp_path / name, **options).history)
    cold_losses, losses = ([one["train"]["loss"] for one in history] for history in histories)
    assert cold_losses == pytest.approx(losses, rel=1e-3)


def test_splits_of_two_folders_have_the_files_of_a_packed_run(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in ("train", "val"):
        shutil.copytree(photos, tmp_path / "both" / split)
    plan = make_plan(tmp_path / "both", changes=SMALL)
    for name, early in (("packed", False), ("coming", True)):
        _, packs = begin(plan, cold(name, tmp_path, monkeypatch), early=early)
        assert isinstance(packs.val, Coming if early else Packed)
        packs.val.checksum()  # waits for all files
    files = [sorted(tmp_path.glob(f"cache-{name}/packed/*.pack")) for name in ("packed", "coming")]
    assert len(files[0]) == 2
    assert [file.name for file in files[0]] == [file.name for file in files[1]]
    assert [file.read_bytes() for file in files[0]] == [file.read_bytes() for file in files[1]]
