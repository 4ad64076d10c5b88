"""What a run of boxes, masks or depth begins with where nothing is named."""

from pathlib import Path

import pytest
from support.annotated import depth, masks, voc
from support.small_data import Made, photos

from vitrail.data.dataset import Splits
from vitrail.data.targets.boxes_target import Box, BoxesTarget
from vitrail.models.heads import UNetConfig
from vitrail.models.heads.rt_detr import RtDetrConfig
from vitrail.packaged import PHOTOS
from vitrail.tasks.detect.detection import DetectConfig
from vitrail.training.first_dense import default_on, first_dense, first_dense_on, over
from vitrail.training.first_model import Sampled
from vitrail.training.plan import Plan, make_plan

LARGE = Sampled(480, 640, grey=False)


def boxes(count: int, *, most: int = 2, size: int = 96) -> Splits:
    every = [[Box((1, 1, 9 + number, 9), "cell") for number in range(most)] for _ in range(count)]
    target, values = BoxesTarget.of(every, ("cell",))
    data = Made(photos(count, size=size).array, {"boxes": values}, {"boxes": target})
    return Splits(data, data, None, ())


def planned(data: Splits | Path, **changes: object) -> Plan:
    return make_plan(data, changes=changes)


def test_boxes_begin_with_packaged_weights_and_a_light_head_and_it_is_said() -> None:
    plan = planned(boxes(24))
    assert plan.start == PHOTOS
    assert isinstance(plan.task.head, RtDetrConfig)  # type: ignore[attr-defined]
    assert plan.task.head.dim == 128  # type: ignore[attr-defined]
    assert plan.config.image_size == (96, 96)
    (note,) = [note for note in plan.notes if "no model was named" in note]
    assert PHOTOS in note
    assert "--model" in note


def test_few_images_are_seen_more_often() -> None:
    assert planned(boxes(24)).config.epochs == 100
    assert planned(boxes(300)).config.epochs == 20


def test_there_are_queries_for_the_densest_image() -> None:
    assert planned(boxes(16, most=130)).task.head.queries == 200  # type: ignore[attr-defined]


def test_images_are_large_enough_for_the_queries() -> None:
    assert planned(boxes(16, size=70)).config.image_size == (96, 96)  # 64 x 64 has 84 tokens, and there are 100 queries
    assert planned(boxes(16, most=130)).config.image_size == (128, 128)


def test_a_caller_overrides_parts_of_it() -> None:
    data = boxes(24)
    plan = make_plan(data, changes={"epochs": 3, "augment": {"flip": False}, "task": {"head": {"dim": 64}}})
    assert (plan.config.epochs, plan.config.augment.flip, plan.config.augment.crop) == (3, False, "jitter")
    assert plan.task.head.dim == 64  # type: ignore[attr-defined]
    assert planned(data, image_size=[64, 128]).config.image_size == (64, 128)
    other = make_plan(data, changes={"task": {"head": {"kind": "detr"}}})
    assert (other.start, other.task.head.kind) == (PHOTOS, "detr")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "named", [{"model": "resnet18"}, {"start": "packaged"}, {"recipe": "bccd-rtdetr"}, {"changes": {"options": {}}}]
)
@pytest.mark.filterwarnings("ignore::vitrail.errors.HeadNotice")
def test_what_is_named_is_taken(named: dict[str, object]) -> None:
    plan = make_plan(boxes(24), **named)  # type: ignore[arg-type]
    assert plan.start != PHOTOS


def test_small_images_and_other_tasks_are_as_before() -> None:
    data = boxes(16).train
    assert first_dense(data, Sampled(48, 64, grey=False), {}, DetectConfig()) is None
    assert first_dense(data, Sampled(0, 0, grey=False), {}, DetectConfig()) is None
    assert first_dense(data, LARGE, {"freeze_until": "stages.2"}, DetectConfig()) is None
    assert first_dense(data, LARGE, {}, DetectConfig()) is not None


def test_large_images_are_made_smaller_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def size() -> tuple[int, int]:
        found = first_dense(boxes(16).train, LARGE, {}, DetectConfig())
        assert found is not None
        height, width = found.changes["image_size"]
        return height, width

    monkeypatch.setattr("vitrail.training.first_dense._device_kind", lambda: "cpu")
    assert size() == (256, 320)
    monkeypatch.setattr("vitrail.training.first_dense._device_kind", lambda: "cuda")
    assert size() == (480, 640)


def test_several_tasks_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)
    data = depth(masks(voc(tmp_path, 6)), count=6)
    plan = make_plan(data, task="segment,depth", changes={"tasks": {"depth": {"head": {"dim": 32}}}})
    heads = {name: one.head for name, one in plan.task.tasks.items()}  # type: ignore[attr-defined]
    assert plan.start == PHOTOS
    assert isinstance(heads["segment"], UNetConfig)
    assert heads["depth"].dim == 32


def test_advice_and_audit_are_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = voc(tmp_path / "boxes", 6)
    assert first_dense_on(data) is None  # small images
    assert default_on(data)[0].startswith("a new")
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)
    found = first_dense_on(data)
    assert found is not None
    told = default_on(data)
    assert (told.about, told.recipe["start"]) == (found.about, PHOTOS)  # type: ignore[index]
    assert told.recipe["task"]["kind"] == "detect"  # type: ignore[index]
    assert "RT-DETR" in found.about


def test_nested_options_go_over_one_another() -> None:
    assert over({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "d": {"e": 5}}) == {
        "a": {"b": 1, "c": 4},
        "d": {"e": 5},
    }
