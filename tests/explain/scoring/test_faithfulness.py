"""The report on maps: a faithful map wins, an unfaithful one loses."""

import sys

import pytest
import torch
from support.corner_model import Corner
from support.registered import pictures, tiny

from vitrail.errors import ConfigError, InputError
from vitrail.explain.methods.saliency import saliency
from vitrail.explain.scoring import removal
from vitrail.explain.scoring.faithfulness import areas, baselines, faithfulness, pointing
from vitrail.report import Report, Table


def corners(count: int = 6) -> tuple[Corner, torch.Tensor, torch.Tensor]:
    """The model, images that are bright in its corner, and where it is."""
    torch.manual_seed(0)
    images = torch.rand(count, 1, 16, 16)
    images[:, :, :8, :8] += 4
    masks = torch.zeros(count, 16, 16)
    masks[:, :8, :8] = 1
    return Corner(16), images, masks


def row(report: Report, name: str) -> dict[str, float]:
    table = report["Deletion and insertion"]
    assert isinstance(table, Table)
    return next(dict(one) for one in table.rows if one["map"] == name)  # type: ignore[arg-type]


def test_the_true_map_beats_the_baselines_and_the_false_one_does_not() -> None:
    model, images, masks = corners()
    report = faithfulness(model, images, {"true": masks, "false": -masks}, target=0, masks=masks)
    true, false, noise, centre = (row(report, name) for name in ("true", "false", "random", "centre"))
    assert true["deletion"] < centre["deletion"] < false["deletion"]
    assert true["deletion"] < noise["deletion"] < false["deletion"]
    assert true["insertion"] > noise["insertion"] > false["insertion"]
    found = areas(model, images, masks, 0).deletion
    assert true["deletion"] == pytest.approx(found.quantile(0.5).item())
    assert true["del. spread"] == pytest.approx((found.quantile(0.75) - found.quantile(0.25)).item())
    assert true["pointing"] == 1
    assert false["pointing"] == 0
    assert "random" in str(report)
    units = {name: unit for part in report.sections if isinstance(part, Table) for name, unit in part.columns.items()}
    assert (units["pointing"], units["deletion"]) == ("share", "")
    assert Report.from_json(report.to_json()).to_json() == report.to_json()


def test_one_map_has_no_name() -> None:
    model, images, masks = corners()
    report = faithfulness(model, images, masks, target=0)
    assert row(report, "map")["deletion"] < row(report, "random")["deletion"]
    assert "pointing" not in row(report, "map")


def test_randomisation_is_shown_by_method_and_part() -> None:
    torch.manual_seed(0)
    model = tiny()
    images = pictures(model, 3)
    maps = {name: saliency(model, images, name) for name in ("relevance", "gradient")}
    table = faithfulness(model, images, maps, randomise=True, steps=4)["Randomisation"]
    assert isinstance(table, Table)
    assert [one["shuffled down to"] for one in table.rows] == ["head", "block 1", "block 0", "embedding"]
    assert all(-1 <= float(one[name] or 0) <= 1 for one in table.rows for name in maps)
    assert any(one["gradient"] != one["relevance"] for one in table.rows)
    report = faithfulness(model, images, maps | {"mine": maps["gradient"]}, steps=1)
    for name in maps:  # the last part of the way is the whole of it
        assert row(report, name)["shuffled"] == table.rows[-1][name]
    assert "shuffled" not in row(report, "mine")
    assert "shuffled" not in row(report, "random")


def test_a_randomised_map_must_have_a_methods_name() -> None:
    model, images, masks = corners()
    with pytest.raises(ConfigError, match="method"):
        faithfulness(model, images, masks, target=0, randomise=True, steps=2)
    with pytest.raises(ConfigError, match="mine"):
        faithfulness(model, images, {"mine": masks}, target=0, randomise=True, steps=2)


def test_areas_are_the_same_in_batches_and_leave_the_mode_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, masks = corners()
    model.train()
    whole = areas(model, images, masks, 0)
    monkeypatch.setattr(removal, "MAX_BATCH", 4)
    monkeypatch.setattr(sys.modules["vitrail.explain.scoring.faithfulness"], "MAX_BATCH", 4)
    parts = areas(model, images, masks, 0)
    torch.testing.assert_close(whole.deletion, parts.deletion)
    torch.testing.assert_close(whole.insertion, parts.insertion)
    assert model.training


def test_baselines_know_nothing_but_the_size() -> None:
    found = baselines(torch.zeros(3, 1, 5, 7))
    assert found["random"].shape == found["centre"].shape == (3, 5, 7)
    assert found["centre"][1].argmax() == 2 * 7 + 3
    assert not torch.equal(found["random"][0], found["random"][1])
    assert torch.equal(found["random"], baselines(torch.ones(3, 1, 5, 7))["random"])


def test_pointing_reads_the_highest_place() -> None:
    maps = torch.zeros(2, 3, 3)
    maps[0, 1, 1] = maps[1, 0, 2] = 1
    masks = torch.zeros(2, 3, 3, dtype=torch.bool)
    masks[:, 1, 1] = True
    assert pointing(maps, masks).tolist() == [True, False]


def test_maps_of_another_shape_and_no_steps() -> None:
    model, images, masks = corners()
    with pytest.raises(InputError, match=r"\(6, 16, 16\)"):
        areas(model, images, masks[:, 0])
    with pytest.raises(InputError, match="masks"):
        faithfulness(model, images, masks, masks=masks[:2])
    with pytest.raises(InputError, match="NaN"):
        faithfulness(model, images, masks.log().sqrt())
    with pytest.raises(InputError, match="ndarray"):
        faithfulness(model, images, masks.numpy())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="list"):
        faithfulness(model, images, {"mine": masks.tolist()})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="random"):
        faithfulness(model, images, {"random": masks})
    with pytest.raises(ConfigError, match="grey"):
        faithfulness(model, images, masks, deletion="grey")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="steps is 0"):
        areas(model, images, masks, steps=0)


def test_several_maps_share_the_ends_of_their_curves() -> None:
    model, images, masks = corners(3)
    noise = baselines(images)["random"]
    passes: list[int] = []
    both = areas(model, images, torch.stack([masks, noise]), 0, steps=4, on_step=lambda: passes.append(1))
    assert len(passes) == 2 * 3
    for at, one in enumerate((masks, noise)):
        alone = areas(model, images, one, 0, steps=4)
        torch.testing.assert_close(both.deletion[at], alone.deletion)
        torch.testing.assert_close(both.insertion[at], alone.insertion)
