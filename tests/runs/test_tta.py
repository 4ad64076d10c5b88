"""Test-time views: which views there are, that their mean is an answer, and that it is stated apart."""

from typing import Any

import pytest
import torch
from support.registered import tiny
from support.small_data import photos
from support.small_tasks import classifier, regressor

from vitrail.data.preprocess import Preprocess
from vitrail.data.targets.depth_target import DepthTarget
from vitrail.data.targets.mask_target import MaskTarget
from vitrail.errors import Unsupported
from vitrail.models.heads import DptConfig, SegFormerConfig
from vitrail.runs.evaluate import evaluate_on
from vitrail.runs.trained import TrainedModel
from vitrail.runs.tta import COUNT, AveragedViews, views_of
from vitrail.tasks.depth import DepthConfig
from vitrail.tasks.many import ManyConfig
from vitrail.tasks.segment import SegmentConfig


def trained(task: Any) -> TrainedModel:
    config = task.backbone.config
    preprocess = Preprocess(image_size=config.image_size, channels=config.channels)
    return TrainedModel(source="tiny", backbone=task.backbone, preprocess=preprocess, head=task.eval())


def test_views() -> None:
    images = torch.arange(2 * 3 * 16 * 16, dtype=torch.uint8).view(2, 3, 16, 16)
    one, mirrored = views_of(images, "flip")
    assert torch.equal(one, images)
    assert torch.equal(mirrored.flip(3), images)
    many = views_of(images, "views")
    assert len(many) == COUNT["views"] == 10
    assert {(view.shape, view.dtype) for view in many} == {(images.shape, torch.uint8)}
    flat = torch.full((1, 3, 16, 16), 77, dtype=torch.uint8)
    assert all(torch.equal(view, flat) for view in views_of(flat, "views"))


def test_a_flip_and_its_image_get_the_same_answer() -> None:
    model = trained(classifier())
    images = torch.randint(0, 256, (3, model.preprocess.channels, *model.preprocess.image_size), dtype=torch.uint8)
    viewed = AveragedViews(model, "flip")
    torch.testing.assert_close(viewed.outputs(images)["logits"], viewed.outputs(images.flip(3))["logits"])
    mean = (model.outputs(images)["logits"].softmax(1) + model.outputs(images.flip(3))["logits"].softmax(1)) / 2
    torch.testing.assert_close(viewed.outputs(images)["logits"].softmax(1), mean)


def test_an_evaluation_states_it_apart() -> None:
    task = classifier(classes=("dark", "light"), model=tiny(num_classes=2))
    data = photos(20, size=task.backbone.config.image_size[0], channels=task.backbone.config.channels)
    plain, both = (evaluate_on(trained(task), data, tta=kind) for kind in (None, "flip"))
    assert both.metrics == plain.metrics
    assert both.views is not None
    assert both.views.metrics.keys() == plain.metrics.keys()
    titles = [section.title for section in both.report().sections]
    assert titles[:2] == ["Result", "With test-time flip (2 views an image)"]
    assert len(titles) == len(plain.report().sections) + 1


def test_tasks_without_a_mean_are_refused() -> None:
    with pytest.raises(Unsupported, match="--tta"):
        AveragedViews(trained(regressor()), "flip")


DENSE = {
    "segment": (SegmentConfig(head=SegFormerConfig(dim=8)), {"mask": MaskTarget(classes=("sky", "road", "car"))}),
    "depth": (DepthConfig(head=DptConfig(dim=8, widths=(4, 4, 8, 8))), {"depth": DepthTarget()}),
}


@pytest.mark.parametrize("kind", DENSE)
def test_maps_of_mirrored_images_are_turned_back(kind: str) -> None:
    config, schema = DENSE[kind]
    torch.manual_seed(0)
    model = trained(config.build(tiny("resnet18", num_classes=0), schema))
    images = torch.randint(0, 256, (2, 3, *model.preprocess.image_size), dtype=torch.uint8)
    viewed = AveragedViews(model, "flip")
    straight, mirrored = viewed.outputs(images), viewed.outputs(images.flip(3))
    for name, values in straight.items():
        torch.testing.assert_close(values, mirrored[name].flip(2))
    both = [model.of_view(view, mirrored=own) for view, own in ((images, False), (images.flip(3), True))]
    if kind == "segment":
        mean = (both[0]["shares"] + both[1]["shares"]) / 2
        assert torch.equal(straight["classes"], mean.argmax(dim=1).float())
    else:
        torch.testing.assert_close(straight["depth"], (both[0]["depth"] * both[1]["depth"]).sqrt())


def test_maps_have_no_mean_over_crops() -> None:
    config, schema = DENSE["segment"]
    task = config.build(tiny("resnet18", num_classes=0), schema)
    with pytest.raises(Unsupported, match="flip"):
        AveragedViews(trained(task), "views")
    several = ManyConfig(tasks={"segment": config, "depth": DENSE["depth"][0]})
    many = trained(several.build(tiny("resnet18", num_classes=0), {**schema, **DENSE["depth"][1]}))
    images = torch.randint(0, 256, (1, 3, *many.preprocess.image_size), dtype=torch.uint8)
    assert set(AveragedViews(many, "flip").outputs(images)) == {"segment.classes", "segment.confidence", "depth.depth"}
    with pytest.raises(Unsupported, match="flip"):
        AveragedViews(many, "views")
