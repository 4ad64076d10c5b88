"""The attention of a decoder's query to the image, for detectors with and without sampled points."""

import pytest
import torch
from support.registered import tiny

from vitrail.data.targets.boxes_target import BoxesTarget
from vitrail.models.heads import DeformableDetrConfig, DetrConfig, RtDetrConfig
from vitrail.tasks.detect import DetectConfig

SMALL = {"dim": 16, "num_heads": 2, "hidden": 16, "decoder_depth": 2, "queries": 5, "encoder_depth": 1}
HEADS = [
    DetrConfig(**SMALL),
    DeformableDetrConfig(**SMALL, levels=2),
    DeformableDetrConfig(**SMALL, levels=2, two_stage=False, denoising=0),
    RtDetrConfig(**SMALL),
]
LOSS = {"detr": "softmax"}


def build(head):
    torch.manual_seed(0)
    config = DetectConfig(head=head, most=4, class_loss=LOSS.get(head.kind, "varifocal"))
    return config.build(
        tiny("resnet18", num_classes=0, image_size=64), {"boxes": BoxesTarget(classes=("a", "b"))}
    ).eval()


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.kind)
def test_maps_sum_to_one_and_differ_by_box(head):
    task, images = build(head), torch.randn(2, 3, 64, 64)
    found = [task.cross_attention(images, torch.tensor([box, box])) for box in (0, 3)]
    for maps in found:
        assert maps.shape == (2, 64, 64)
        assert bool((maps >= 0).all())
        torch.testing.assert_close(maps.sum(dim=(1, 2)), torch.ones(2))
    assert not torch.allclose(*found)
    assert not any(module._forward_pre_hooks for module in task.modules())


def test_sampled_points_are_where_the_map_is():
    task = build(DeformableDetrConfig(**SMALL, levels=2))
    with torch.no_grad():  # all points in the centre of the query's box
        for layer in task.head.decoder:
            layer.cross.offsets.weight.zero_()
            layer.cross.offsets.bias.zero_()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        found = task.head(task.backbone.features(images)).found
        row = int(task.head.best(found.logits[-1], task.count)[0][0, 0])
        centres = torch.stack([found.boxes[0, 0, row, :2]])  # of the box that the second layer starts at
        (seen,) = task.cross_attention(images, torch.tensor([0]))
    ys, xs = torch.meshgrid(torch.arange(64.0) + 0.5, torch.arange(64.0) + 0.5, indexing="ij")
    middle = torch.stack([(seen * xs).sum(), (seen * ys).sum()]) / 64
    assert float((middle - centres[0]).abs().max()) < 0.15


def test_the_part_of_a_box_is_the_box():
    task = build(DetrConfig(**SMALL))
    boxes = torch.tensor([[[1.0, 2.0, 5.0, 4.0], [0.0, 0.0, 8.0, 8.0]]])
    part = task.explained_part({"boxes": boxes}, torch.tensor([0]), (8, 8))
    assert part.shape == (1, 8, 8)
    assert part[0].nonzero().amin(0).tolist() == [2, 1]
    assert part[0].nonzero().amax(0).tolist() == [3, 4]
    assert int(part.sum()) == 8


def test_a_box_is_followed_whatever_its_rank():
    task, images = build(DetrConfig(**SMALL)), torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        outputs = task.outputs(images)
        follows = task.explained_for(outputs)
        score = follows(images).sigmoid()
        assert bool((score >= outputs["scores"] - 1e-5).all())  # a box overlaps itself
        order = torch.tensor([3, 2, 1, 0])
        turned = task.explained_for({name: values[:, order] for name, values in outputs.items()})
        torch.testing.assert_close(turned(images).sigmoid(), score[:, order])
        assert follows(torch.randn(3, 3, 64, 64)).shape == (3, 4)
