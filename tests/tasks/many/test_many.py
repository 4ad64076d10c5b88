"""Many tasks on one backbone; the contract suites run it through all tools."""

import copy
from typing import Any

import pytest
import torch
from support.registered import tiny
from support.task_case import OPTIONS
from torch import Tensor

from vitrail.config import from_dict, to_dict
from vitrail.data.augment.augmentation import AugmentConfig, MixConfig
from vitrail.data.dataset import Batch
from vitrail.data.targets import BoxesTarget, ClassTarget, DepthTarget, MaskTarget, NumbersTarget, Schema
from vitrail.data.targets.mask_target import IGNORE
from vitrail.errors import ConfigError, DataError
from vitrail.models.backbone import Backbone
from vitrail.tasks.many import Many, ManyConfig
from vitrail.tasks.many.many_answer import ManyAnswer
from vitrail.tasks.many.many_meter import known_part
from vitrail.tasks.many.many_names import joined, part_of
from vitrail.tasks.task import Task, TaskConfig

SIZE = 32
CLASSES = ("left", "right")
SCHEMA: Schema = {
    "label": ClassTarget(classes=CLASSES),
    "boxes": BoxesTarget(classes=CLASSES, most=3),
    "mask": MaskTarget(classes=CLASSES),
    "depth": DepthTarget(),
}
# Heads without batch norm and noise: these see all images of a batch together.
PARTS: dict[str, dict[str, Any]] = {
    "classify": {},
    "detect": {"head": OPTIONS["detect"]["head"] | {"denoising": 0}, "most": 10},
    "segment": {"head": {"kind": "linear"}},
    "depth": OPTIONS["depth"],
}


def config(*names: str) -> ManyConfig:
    return from_dict(ManyConfig, {"tasks": {name: PARTS[name] for name in names or PARTS}})


def backbone() -> Backbone:
    torch.manual_seed(0)
    return tiny("vit_tiny_patch16", num_classes=0, image_size=SIZE)


def many(*names: str) -> Many:
    torch.manual_seed(1)
    return config(*names).build(backbone(), config(*names).learns(SCHEMA))


def batch(count: int = 6, seed: int = 0) -> Batch:
    """Every image has every target."""
    draw = torch.Generator().manual_seed(seed)
    boxes = torch.zeros(count, 3, 7)
    boxes[:, :, 4] = -1
    boxes[:, 0] = torch.tensor([4.0, 6, 20, 25, 1, 0, 300])
    targets = {
        "label": torch.arange(count) % 2,
        "boxes": boxes,
        "mask": torch.randint(0, 2, (count, SIZE, SIZE), generator=draw, dtype=torch.uint8),
        "depth": 1 + torch.rand(count, SIZE, SIZE, generator=draw),
    }
    return Batch(torch.randn(count, 3, SIZE, SIZE, generator=draw), targets, torch.arange(count))


def thirds(whole: Batch) -> Batch:
    """Boxes for the first third alone, masks for the second, depth for the last; classes for the last two images."""
    third = len(whole.ids) // 3
    targets = {name: values.clone() for name, values in whole.targets.items()}
    targets["boxes"][third:, :, 4] = -2
    targets["mask"][:third] = targets["mask"][2 * third :] = IGNORE
    targets["depth"][: 2 * third] = 0
    targets["label"][:-2] = -1
    return whole._replace(targets=targets)


def twin(task: Many, name: str) -> Task:
    """The single task with the same weights."""
    own = task.tasks[name]
    assert isinstance(own, Task)
    model = copy.deepcopy(task.backbone).with_head(own.config.num_outputs(own.schema))
    alone = own.config.build(model, own.schema)
    if name in task.heads:
        model.head.load_state_dict(task.heads[name]["head"].state_dict())
    alone.load_state_dict(own.state_dict(), strict=False)
    alone.load_state(own.state())
    return alone.train(task.training)


def rows_of(task: Task, some: Batch) -> Batch:
    """The images that have the targets of a task."""
    known = known_part(task.schema, some.targets)
    rows = slice(None) if known.rows is None else known.rows
    return Batch(some.images[rows], known.targets, some.ids[rows])


@pytest.mark.parametrize("learning", [True, False], ids=["training", "evaluation"])
def test_losses_of_partly_annotated_images_are_those_of_single_tasks_with_their_own_images(learning: bool) -> None:
    task, some = many().train(learning), thirds(batch())
    found = task.loss(some)
    expected = {}
    for name in PARTS:
        alone = twin(task, name)
        own = rows_of(alone, some)
        assert len(own.ids) == 2
        expected[name] = alone.loss(own)["loss"]
        torch.testing.assert_close(found[f"{name}.loss"], expected[name].detach())
    factors = {name: task.tasks[name].likelihood.loss for name in PARTS}
    assert found["loss"].item() == pytest.approx(sum(factors[name] * expected[name].item() for name in PARTS), rel=1e-5)


def test_metrics_of_partly_annotated_images_are_those_of_single_tasks() -> None:
    task, some = many().eval(), thirds(batch(12))
    with torch.no_grad():
        outputs = task.outputs(some.images)
        meter = task.metrics()
        meter.update(outputs, some.targets)
        found = meter.compute()
        assert found["images"] == 12
        best = []
        for name in PARTS:
            alone = twin(task, name)
            own = rows_of(alone, some)
            single = alone.metrics()
            single.update(alone.outputs(own.images), own.targets)
            assert found[f"{name}.images"] == len(own.ids)
            assert found[f"{name}.{alone.best_metric}"] == pytest.approx(single.compute()[alone.best_metric], abs=1e-6)
            best.append(found[f"{name}.{alone.best_metric}"])
    assert found["score"] == pytest.approx(sum(best) / len(best))
    wrong = task.errors(outputs, some.targets)
    assert wrong.shape == (12,)


def test_a_metric_of_which_less_is_better_counts_against_the_score() -> None:
    chosen = from_dict(ManyConfig, {"tasks": {"classify": {"best_metric": "nll"}, "depth": PARTS["depth"]}})
    task, some = chosen.build(backbone(), chosen.learns(SCHEMA)).eval(), batch()
    meter = task.metrics()
    with torch.no_grad():
        meter.update(task.outputs(some.images), some.targets)
    found = meter.compute()
    assert found["score"] == pytest.approx((found["depth.delta1"] - found["classify.nll"]) / 2)
    assert "minus classify" in task.about_metrics["score"].meaning


def test_an_image_without_targets_changes_nothing() -> None:
    task, some = many().eval(), batch(4)
    blank = {name: SCHEMA[name].unknown(values) for name, values in some.targets.items() if name in ("label", "boxes")}
    blank |= {"mask": torch.full((SIZE, SIZE), IGNORE, dtype=torch.uint8), "depth": torch.zeros(SIZE, SIZE)}
    more = {name: torch.cat([values, blank[name][None]]) for name, values in some.targets.items()}
    wider = Batch(torch.cat([some.images, torch.randn(1, 3, SIZE, SIZE)]), more, torch.arange(5))
    first, second = task.loss(some), task.loss(wider)
    for name in PARTS:
        torch.testing.assert_close(first[f"{name}.loss"], second[f"{name}.loss"])


def test_a_batch_without_a_target_of_a_task_gives_its_parameters_gradients_of_zero() -> None:
    task, some = many("segment", "depth").train(), batch()
    some.targets["depth"].zero_()
    found = task.loss(some)
    assert float(found["depth.loss"]) == 0
    found["loss"].backward()
    for name, parameter in task.named_parameters():
        assert parameter.grad is not None, name
    assert not any(bool(one.grad.any()) for one in task.tasks["depth"].parameters())
    assert task.uncertainty.s.grad.tolist()[1] == 0


def test_the_backbone_runs_once_and_is_stored_once() -> None:
    task, runs = many().eval(), list[int]()
    hook = task.backbone.blocks[0].register_forward_hook(lambda *_: runs.append(1))
    task.loss(batch())
    task.outputs(batch().images)
    task.explained()(batch().images)
    hook.remove()
    assert len(runs) == 3
    names = list(task.state_dict())
    assert sum("blocks.0.norm1.weight" in name for name in names) == 1
    assert any(name.startswith("heads.classify.") for name in names)
    alone = sum(p.numel() for p in task.backbone.parameters())
    heads = sum(p.numel() for p in [*task.tasks.parameters(), *task.heads.parameters(), task.uncertainty.s])
    assert sum(p.numel() for p in task.parameters()) == alone + heads


def test_a_copy_has_a_backbone_of_its_own() -> None:
    task = many().eval()
    other = copy.deepcopy(task)
    with torch.no_grad():
        for parameter in other.backbone.parameters():
            parameter.zero_()
        images = batch().images
        before, after = task.outputs(images), other.outputs(images)
    assert not torch.equal(before["segment.confidence"], after["segment.confidence"])
    assert torch.equal(after["depth.depth"][0], after["depth.depth"][1])


def test_complete_targets_can_be_recorded() -> None:
    task, some = many("segment", "depth"), batch()
    task.fit(some.targets)
    assert task.capturable
    assert not task.partial
    task.fit(thirds(some).targets)
    assert not task.capturable
    assert task.partial == {"segment", "depth"}
    with pytest.raises(DataError, match="depth"):
        task.fit(some.targets | {"depth": torch.zeros(6, SIZE, SIZE)})


@pytest.mark.parametrize(
    ("asked", "name"),
    [("detect:3", "detect:box 3"), ("classify:right", "classify:right"), ("segment:1", "segment:right")],
)
def test_an_output_is_explained_by_its_task_and_name_or_number(asked: str, name: str) -> None:
    task, images = many().eval(), batch(2).images
    with torch.no_grad():
        outputs = task.outputs(images)
    chosen = task.explain_target(outputs, asked)
    assert [task.output_names[index] for index in chosen.tolist()] == [name, name]
    assert task.output_names[int(task.explain_target(outputs, "depth")[0])] == "depth:depth"
    with pytest.raises(ConfigError, match=r"known: .*segment"):
        task.explain_target(outputs, "nothing")
    for wrong in ("detect:77", "detect:nothing"):
        with pytest.raises(ConfigError, match="not a box"):
            task.explain_target(outputs, wrong)


def test_a_name_that_only_the_task_knows_is_one_of_its_own_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    task, images = many().eval(), batch(1).images
    with torch.no_grad():
        outputs = task.outputs(images)
    monkeypatch.setattr(task.tasks["segment"], "explain_target", lambda *_: torch.tensor([1]))
    (index,) = task.explain_target(outputs, "segment:another name").tolist()
    assert task.output_names[index] == "segment:right"


def test_answers_in_layers() -> None:
    task = many().eval()
    task.load_state({"detect": {"threshold": 0.0}})
    with torch.no_grad():
        (answer,) = task.decode(task.outputs(batch(1).images))
    assert isinstance(answer, ManyAnswer)
    assert list(answer.to_json()) == list(PARTS)
    assert "depth: " in answer.text()
    image = torch.zeros(3, SIZE, SIZE, dtype=torch.uint8)
    layered = image
    for name in ("depth", "segment", "detect"):
        layered = answer.answers[name].draw(layered)
    assert torch.equal(answer.draw(image), layered)
    only = ManyAnswer({"classify": answer.answers["classify"]})
    assert only.draw(image) is None
    assert answer.parts()["detect"].bars()[0].label == "box 0"
    assert any(bar.label == "detect:box 0" for bar in answer.bars())


def test_names() -> None:
    values = {"a.x": 1, "a.y.z": 2, "ab.x": 3}
    assert part_of(values, "a") == {"x": 1, "y.z": 2}
    assert joined({"a": {"x": 1, "y.z": 2}, "ab": {"x": 3}}) == values


@pytest.mark.parametrize(
    ("tasks", "word"),
    [
        ([], "names"),
        (["mae", "detect"], "mae"),
        (["distill", "detect"], "distill"),
        (["detekt"], "detect"),
        ({"path": {"kind": "detect"}}, "path"),
        ({"a b": {"kind": "detect"}}, "a b"),
        ({"one": {"kind": "detect"}, "two": {"kind": "detect"}}, "one, two"),
        (["detect", "detect"], "different"),
        (3, "list"),
        ({"detect": {"mots": 3}}, "most"),
    ],
)
def test_sets_of_tasks_that_are_refused(tasks: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        from_dict(ManyConfig, {"tasks": tasks})


def test_a_config_is_read_as_it_was_written() -> None:
    first = from_dict(ManyConfig, {"tasks": {"place": {"kind": "classify", "label_smoothing": 0.1}, "depth": {}}})
    assert isinstance(first.tasks["place"], TaskConfig.kinds["classify"])
    plain = to_dict(first)
    assert plain["tasks"]["place"]["kind"] == "classify"
    assert from_dict(ManyConfig, {"tasks": plain["tasks"]}) == first
    numbers = NumbersTarget(names=("x",))
    with pytest.raises(ConfigError, match="depth"):
        first.learns({"label": SCHEMA["label"], "numbers": numbers})


def test_two_tasks_with_heads_of_the_backbones_own_kind() -> None:
    numbers = NumbersTarget(names=("x", "y", "z"))
    both = from_dict(ManyConfig, {"tasks": ["classify", "regress"]})
    task = both.build(backbone(), {"label": SCHEMA["label"], "numbers": numbers}).eval()
    with torch.no_grad():
        outputs = task.outputs(batch().images)
    assert (outputs["classify.logits"].shape[1], outputs["regress.numbers"].shape[1]) == (2, 3)
    assert task.width_of("regress.numbers") == 3
    assert task.width_of("classify.logits") == 2
    values: Tensor = torch.randn(6, 3)
    values[2] = torch.nan
    found = task.loss(Batch(batch().images, {"label": batch().targets["label"], "numbers": values}, torch.arange(6)))
    assert bool(torch.isfinite(found["loss"]))


def test_notes_name_the_options_of_their_task() -> None:
    _, augment, _, notes = config().adapt(SCHEMA, AugmentConfig(), MixConfig(mixup=0.2))
    assert not augment.crops
    assert any(note.startswith("depth: ") and "tasks.depth." in note for note in notes)
    assert any(note.startswith("detect: Mixup") for note in notes)
