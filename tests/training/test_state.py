"""Checkpoints: whole, checked, rotating; resumed only as the run they are of."""

import contextlib
import copy
import resource
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.registered import tiny
from support.small_run import bits, resumed, same_bits, small_loop

from vitrail.errors import Notice, TrainingError, WriteError
from vitrail.models.checkpoint.vitrail import describe_model
from vitrail.training.distributed import ShardedStore, World
from vitrail.training.loop import Loop
from vitrail.training.state import Header, Progress, Store, completed, differences


def test_everything_is_restored(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    loop.run(until=3)
    loop.save()
    again = resumed(tmp_path)
    assert again.progress == loop.progress
    assert same_bits(bits(loop), bits(again))
    assert again.learner.ema.updates == 3
    names = {name.split(".")[0] for name in bits(again)}
    assert names == {"model", "ema", "optimiser"}
    assert any(tensor.any() for name, tensor in bits(again).items() if name.endswith("exp_avg_sq"))


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_nothing_that_an_optimiser_keeps_is_left_out(kind: str, tmp_path: Path) -> None:
    loop = small_loop(tmp_path, optimiser={"kind": kind})
    loop.run(until=1)
    saved = {id(tensor) for tensor in loop.learner.tensors().values()}
    kept = [tensor for moments in loop.learner.optimiser.state.values() for tensor in moments.values()]
    assert kept
    assert all(id(tensor) in saved for tensor in kept)


def test_the_loss_scale_of_fp16_is_restored(tmp_path: Path) -> None:
    def scaled(loop: Loop) -> Loop:
        loop.learner.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        return loop

    loop = scaled(small_loop(tmp_path))
    loop.run(until=3)
    state = loop.learner.scaler.state_dict()
    assert (state["scale"], state["_growth_tracker"]) == (16.0, 1)  # grown once, half way to the next time
    loop.save()
    again = scaled(small_loop(tmp_path))
    again.resume()
    assert again.learner.scaler.state_dict() == state
    for each in (loop, again):
        each.run()
    assert same_bits(bits(loop), bits(again))
    assert again.learner.scaler.get_scale() == loop.learner.scaler.get_scale() == 128.0


def test_the_newest_are_kept_and_the_best(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, keep=2)
    store = loop.store
    for step in range(1, 7):
        loop.progress.step = step
        loop.progress.best_step = 2
        store.save(loop.learner, loop.progress, loop.identity)
    assert store.steps() == [2, 5, 6]


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    loop.run(until=2)
    loop.save()
    loop.run(until=3)
    newest = loop.save()
    content = bytearray(newest.read_bytes())
    content[-5] ^= 1
    newest.write_bytes(content)
    with pytest.warns(Notice, match="step-000000003.safetensors is damaged"):
        assert resumed(tmp_path).progress.step == 2
    newest.write_bytes(content[:100])
    with pytest.warns(Notice, match="damaged"):
        assert resumed(tmp_path).progress.step == 2


def test_where_no_checkpoint_is_before_a_damaged_one_none_is_promised(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    for until in (1, 2):
        loop.run(until=until)
        loop.save().write_bytes(b"torn")
    with pytest.warns(Notice) as notices, pytest.raises(TrainingError, match="checkpoint"):
        loop.store._newest()
    first, last = (str(notice.message) for notice in notices)
    assert "step-000000002" in first
    assert first.endswith("; the checkpoint before it is used")
    assert "step-000000001" in last
    assert last.endswith("; no checkpoint is before it")


def test_nothing_to_resume_from(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="--resume"):
        resumed(tmp_path)


def test_checkpoints_of_the_other_kind_are_not_overlooked(tmp_path: Path) -> None:
    (tmp_path / "sharded" / "step-000000004").mkdir(parents=True)
    with pytest.raises(TrainingError, match="fsdp"):
        Store(tmp_path / "sharded")._newest()
    (tmp_path / "whole").mkdir()
    (tmp_path / "whole" / "step-000000004.safetensors").touch()
    with pytest.raises(TrainingError, match="ddp"):
        ShardedStore(tmp_path / "whole", keep=3, world=World())._newest()


def test_another_model_or_recipe_is_refused_with_all_differences(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    loop.run(until=1)
    loop.save()
    with pytest.raises(TrainingError) as refused:
        resumed(tmp_path, model={"dim": 64}, optimiser={"lr": 0.5})
    message = str(refused.value)
    assert "recipe.optimiser.lr was 0.003, is 0.5" in message
    assert "model.dim was 32, is 64" in message
    assert "depth" not in message


def test_a_run_from_before_an_option_resumes_with_its_default(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    loop.run(until=1)
    recipe = copy.deepcopy(dict(loop.identity["recipe"]))
    del recipe["augment"]["flip_vertical"], recipe["augment"]["mosaic"]
    loop.identity = {**loop.identity, "recipe": recipe}
    loop.save()
    resumed(tmp_path)
    with pytest.raises(TrainingError, match=r"augment\.mosaic was 0\.0, is 0\.5"):
        resumed(tmp_path, augment={"mosaic": 0.5})


def test_models_and_preprocessing_from_before_an_option_have_its_default() -> None:
    model = describe_model(tiny())
    saved = {"recipe": {"model": "x"}, "model": copy.deepcopy(model), "preprocess": {"image_size": [8, 8]}}
    del saved["model"]["config"]["registers"]
    found = completed(saved)
    assert differences(found["model"], model) == []
    assert found["preprocess"]["crop"] == 1.0
    assert completed({"recipe": {"gone": 1}, "data": 3}) == {"recipe": {"gone": 1}, "data": 3}


def test_leftovers_of_a_kill_are_not_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for name in (".step-000000009.safetensors.abc", "step-9.safetensors", "step-000000009"):
        (tmp_path / "checkpoints" / name).touch()
    assert Store(tmp_path / "checkpoints").steps() == []


@contextlib.contextmanager
def small_files_only(limit: int) -> Iterator[None]:
    """Every further byte of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    loop.run(until=1)
    loop.save()
    loop.run(until=2)
    with small_files_only(50_000), pytest.raises(WriteError, match="cannot write"):
        loop.save()
    assert [item.name for item in (tmp_path / "checkpoints").iterdir()] == ["step-000000001.safetensors"]
    assert resumed(tmp_path).progress.step == 1


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").touch()
    loop = small_loop(tmp_path)
    with pytest.raises(WriteError, match="cannot write"):
        loop.save()


def test_header_round_trip() -> None:
    progress = Progress(epoch=2, done=1, step=9, best=0.5, sums={"loss": 0.1 + 0.2}, history=[{"epoch": 1}])
    header = Header({"recipe": {"lr": 0.1}}, progress, {"ema": 3, "scaler": {}})
    assert Header.from_json(header.to_json()) == header


def test_differences_are_named_by_their_path() -> None:
    assert differences({"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": 2, "c": (1, 2)}, "d": None}) == ["a.b was 1, is 2"]
    assert differences({"a": 1}, {}) == ["a was 1, is None"]
    assert differences({"a": "x" * 100}, {"a": "y"}) == [f"a was {'x' * 57}..., is y"]


def test_sums_survive_exactly(tmp_path: Path) -> None:
    loop = small_loop(tmp_path)
    loop.run(until=3)
    loop.save()
    total = resumed(tmp_path).progress.sums["loss"]
    assert torch.tensor(total).item() == loop.totals["loss"].item()


def test_a_kill_before_old_checkpoints_were_removed_is_made_up_for(tmp_path: Path) -> None:
    loop = small_loop(tmp_path, keep=2, save_steps=1)
    loop.run(until=3)
    kept = loop.store.steps()
    shutil.copy(loop.store.file(3), loop.store.file(1))
    again = resumed(tmp_path, keep=2, save_steps=1)
    assert again.store.steps() == kept == [2, 3]
