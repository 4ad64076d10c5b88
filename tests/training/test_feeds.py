"""A run on streamed images: the bits of one on packed images, also after a stop; and how the feed is chosen."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.data.feeds import choice
from vitrail.data.feeds.streamed import Streamed
from vitrail.training.assemble import assemble, prepare_data
from vitrail.training.distributed import World
from vitrail.training.logs import Logs
from vitrail.training.loop import Loop
from vitrail.training.plan import Plan, make_plan
from vitrail.training.run import train
from vitrail.training.verify import same_bits

SMALL = {
    "image_size": 16, "options": {"dim": 16, "depth": 1, "num_heads": 2}, "batch_size": 8, "epochs": 2,
    "schedule": {"warmup_epochs": 0},
}  # fmt: skip


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two classes of images that are not square."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("vitrail.data.feeds.streamed.default_workers", lambda: 1)
    draw = np.random.default_rng(0)
    for number in range(24):
        folder = tmp_path / "photos" / ("light" if number % 2 else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 128, (20, 30 + number, 3)) + 100 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"


def loop(plan: Plan, folder: Path, until: int | None, *, resume: bool = False) -> Loop:
    plan, packs = prepare_data(plan, World(), logs := Logs(folder, silent=True))
    made = assemble(
        plan, packs, folder, world=World(), device=torch.device("cpu"), shard="ddp", logs=logs, blank=resume
    )
    if resume:
        made.resume()
    made.run(until)
    return made


def test_a_run_on_streamed_images_has_the_bits_of_one_on_packed_images(photos: Path, tmp_path: Path) -> None:
    packed, streamed = (make_plan(photos, changes={**SMALL, "feed": feed}) for feed in ("packed", "streamed"))
    for name in ("packed", "streamed"):
        (tmp_path / name).mkdir()
    whole = loop(packed, tmp_path / "packed", None)
    part = loop(streamed, tmp_path / "streamed", 3)  # in the middle of the second epoch
    part.save()
    resumed = loop(streamed, tmp_path / "streamed", None, resume=True)
    assert isinstance(resumed.feed.data, Streamed)
    one, other = whole.learner.tensors(), resumed.learner.tensors()
    assert all(same_bits(one[name], other[name]) for name in one)
    assert whole.progress.history[-1]["val"] == resumed.progress.history[-1]["val"]


@pytest.mark.slow
def test_a_run_says_that_it_streams_and_why_and_does_so_again_when_it_is_resumed(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "MOST", 1000)
    run = train(photos, folder=tmp_path / "run", silent=True, **SMALL | {"epochs": 1})
    assert run.config.feed == "streamed"
    assert any("streamed" in note and "1000 B" in note for note in run.plan.notes)
    assert not list(tmp_path.rglob("*.pack"))
    assert run.evaluation.results["images"] > 0
    monkeypatch.undo()
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    again = train(folder=tmp_path / "run", resume=True, silent=True)
    assert (again.ended_before, again.config.feed) == (True, "streamed")
    assert not list(tmp_path.rglob("*.pack"))
