"""What a run of boxes, masks or depth begins with where nothing is named."""

from pathlib import Path

import pytest
import torch
from support.annotated import depth, masks, voc
from support.small_data import Made, photos

from vitrail.data.dataset import Splits
from vitrail.data.sources.opening import find
from vitrail.data.targets.boxes_target import Box, BoxesTarget
from vitrail.models.heads import UNetConfig
from vitrail.models.heads.rt_detr import RtDetrConfig
from vitrail.packaged import PHOTOS
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.detect.detection import DetectConfig
from vitrail.training.first_dense import default_on, first_dense, first_dense_on, over
from vitrail.training.first_model import Sampled
from vitrail.training.plan import Plan, make_plan
from vitrail.training.run import train

LARGE = Sampled(480, 640, grey=False)
CPU, GPU = torch.device("cpu"), torch.device("cuda")  # planned for, not used


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


def test_other_tasks_and_what_cannot_be_read_are_as_before() -> None:
    data = boxes(16).train
    assert first_dense(data, LARGE, {}, ClassifyConfig(), device=CPU) is None
    assert first_dense(data, Sampled(0, 0, grey=False), {}, DetectConfig(), device=CPU) is None
    assert first_dense(data, LARGE, {"freeze_until": "stages.2"}, DetectConfig(), device=CPU) is None
    assert first_dense(data, LARGE, {}, DetectConfig(), device=CPU) is not None


def test_small_images_get_a_new_model_with_a_small_head() -> None:
    plan = planned(boxes(16, size=48))
    assert (plan.start, plan.config.model, plan.task.head.dim) == (None, "vit32_conv", 128)  # type: ignore[attr-defined]
    assert plan.preprocess.image_size == (48, 48)
    (note,) = [note for note in plan.notes if "no model was named" in note]
    assert "small RT-DETR head" in note
    named = make_plan(boxes(16, size=48), changes={"task": {"head": {"kind": "detr"}}})
    assert named.task.head.kind == "detr"  # type: ignore[attr-defined]


def test_the_smallest_images_are_enlarged_until_each_query_has_a_token() -> None:
    plan = planned(boxes(16, size=8))
    assert plan.preprocess.image_size == (20, 20)
    task = plan.build_task().eval()
    assert task.outputs(torch.rand(1, 3, 20, 20))["boxes"].shape[1] == 100


def test_small_images_of_several_tasks_have_small_heads() -> None:
    plan = make_plan("scenes:8:48x48", task="segment,depth")
    heads = {name: one.head for name, one in plan.task.tasks.items()}  # type: ignore[attr-defined]
    assert (plan.start, heads["depth"].dim) == (None, 128)
    assert isinstance(heads["segment"], UNetConfig)


def test_large_images_are_made_smaller_on_a_cpu() -> None:
    def size(device: torch.device) -> tuple[int, int]:
        found = first_dense(boxes(16).train, LARGE, {}, DetectConfig(), device=device)
        assert found is not None
        height, width = found.changes["image_size"]
        return height, width

    assert size(CPU) == (256, 320)
    assert size(GPU) == (480, 640)


def test_a_plan_is_for_the_device_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a GPU, and a run on its CPU."""
    monkeypatch.setattr("vitrail.hardware._best", lambda: "cuda")
    monkeypatch.setattr("vitrail.hardware.torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("vitrail.hardware.torch.cuda.device_count", lambda: 1)
    data = boxes(16, size=400)
    assert make_plan(data).config.image_size == (416, 416)
    assert make_plan(data, device=CPU).config.image_size == (320, 320)
    monkeypatch.setattr("vitrail.training.run.train_plan", lambda plan, *_, **__: plan)
    assert train(data, device="cpu", silent=True).config.image_size == (320, 320)


def test_several_tasks_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)
    data = depth(masks(voc(tmp_path, 6)), count=6)
    plan = make_plan(data, task="segment,depth", changes={"tasks": {"depth": {"head": {"dim": 32}}}})
    heads = {name: one.head for name, one in plan.task.tasks.items()}  # type: ignore[attr-defined]
    assert plan.start == PHOTOS
    assert isinstance(heads["segment"], UNetConfig)
    assert heads["depth"].dim == 32


def test_advice_and_audit_are_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = find(voc(tmp_path / "boxes", 6)).train
    small = first_dense_on(data, device=CPU)
    assert small is not None
    assert default_on(data, device=CPU) == (small.about, "vit32_conv@40", None)
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)
    found = first_dense_on(data, device=CPU)
    assert found is not None
    told = default_on(data, device=CPU)
    assert (told.about, told.recipe["start"]) == (found.about, PHOTOS)  # type: ignore[index]
    assert told.recipe["task"]["kind"] == "detect"  # type: ignore[index]
    assert "RT-DETR" in found.about


def test_nested_options_go_over_one_another() -> None:
    assert over({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"c": 4}, "d": {"e": 5}}) == {
        "a": {"b": 1, "c": 4},
        "d": {"e": 5},
    }
