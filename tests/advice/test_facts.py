"""Facts of data: counted, looked at, and as the doctor found them."""

from pathlib import Path

import pytest
from support.advised import facts
from support.compared_runs import COUNT, labelled

from vitrail.advice.facts import facts_of, known_task, look
from vitrail.data.audit.doctor import examine
from vitrail.data.sources.opening import survey
from vitrail.errors import ConfigError


def test_facts_of_a_folder(tmp_path: Path) -> None:
    source = labelled(tmp_path / "photos")
    (source / "train" / "cat" / "again.png").write_bytes((source / "train" / "cat" / "0.png").read_bytes())
    splits = survey(source)
    found = facts_of(str(source), splits, examine(splits), look(splits.train))
    assert (found.task, found.images, found.classes, found.pixels) == ("classify", COUNT + 1, 2, 32)
    assert not found.grey
    assert found.duplicates == 1
    assert found.imbalance == pytest.approx(7 / 6)
    assert any("dentical" in line for line in found.doctor)
    with pytest.raises(ConfigError, match="unknown task"):
        facts_of(str(source), splits, examine(splits), look(splits.train), task="cook")
    with pytest.raises(ConfigError, match="boxes"):
        facts_of(str(source), splits, examine(splits), look(splits.train), task="detect")


def test_a_task_that_reads_no_labels_is_refused() -> None:
    with pytest.raises(ConfigError, match="support"):
        known_task("mae")
    assert known_task("detect").target_kinds == ("boxes",)


def test_distance_counts_doublings() -> None:
    like = {"pixels": 128, "images": 1000, "grey": False}
    assert facts().distance(like) == 0
    assert facts().distance({**like, "pixels": 32}) == 2
    assert facts().distance({**like, "images": 4000}) == 1
    assert facts().distance({**like, "grey": True}) == 0.5
    assert facts(pixels=4000).distance({**like, "pixels": 300}) == 0  # both are large
