"""Deformable DETR: queries of training, masks between them, proposals, options that exclude each other."""

import pytest
import torch
from support.registered import tiny

from vitrail.errors import ConfigError
from vitrail.models.backbone import Features
from vitrail.models.heads import DeformableDetrConfig
from vitrail.models.heads.deformable_detr import DeformableDetr, cell_centres
from vitrail.models.heads.detector import Noised

SMALL = {"dim": 16, "num_heads": 2, "hidden": 24, "encoder_depth": 1, "decoder_depth": 2, "queries": 5, "levels": 3}


def features():
    levels = tuple(torch.randn(2, width, 16 >> level, 12 >> level) for level, width in enumerate((8, 12, 16)))
    return Features(levels[-1].flatten(2).mT, (4, 3), torch.zeros(2, 0, 16), levels)


def head_of(**changes):
    torch.manual_seed(0)
    return DeformableDetr(DeformableDetrConfig(**SMALL | changes), (8, 12, 16), 3)


def noised(count=6, groups=2):
    labels, true = torch.randint(3, (2, count)), torch.ones(2, count, dtype=torch.bool)
    boxes = torch.rand(2, count, 4) * 0.4 + 0.1
    return Noised(labels, boxes, labels, boxes, true, true, groups)


@pytest.mark.parametrize("two_stage", [False, True])
def test_training_has_all_kinds_of_queries(two_stage):
    head = head_of(two_stage=two_stage, extra_queries=3).train()
    found = head(features(), noised())
    assert found.found.logits.shape == (2, 2, 5, 3)
    assert found.extra.boxes.shape == (2, 2, 3, 4)
    assert found.noised.boxes.shape == (2, 2, 6, 4)
    assert (found.proposals is not None) == two_stage
    sum(part.boxes.sum() + part.logits.sum() for part in found if part is not None).backward()
    unused = [name for name, parameter in head.named_parameters() if parameter.grad is None]
    assert unused == []


def test_queries_of_training_do_not_change_the_answer():
    head, given = head_of(extra_queries=3), features()
    alone = head.eval()(given)
    assert (alone.extra, alone.noised, alone.proposals) == (None, None, None)
    with_all = head.train()(given, noised())
    torch.testing.assert_close(with_all.found.logits, alone.found.logits)
    torch.testing.assert_close(with_all.found.boxes, alone.found.boxes)


def test_groups_of_noised_boxes_are_apart():
    head, given, noise = head_of(), features(), noised()
    before = head.train()(given, noise).noised.boxes
    moved = noise._replace(boxes=torch.cat([noise.boxes[:, :3], noise.boxes[:, 3:] * 0.5], dim=1))
    after = head(given, moved).noised.boxes
    torch.testing.assert_close(after[:, :, :3], before[:, :, :3])
    assert not torch.allclose(after[:, :, 3:], before[:, :, 3:])


def test_refined_boxes_do_not_send_gradients_to_earlier_layers():
    head = head_of(two_stage=False, denoising=0)
    found = head.train()(features())
    (gradient,) = torch.autograd.grad(found.found.boxes[1].sum(), head.boxes[0][-1].weight)
    assert not gradient.any()


def test_without_refinement_the_layers_share_a_head():
    assert len(head_of(refine=False, two_stage=False).boxes) == 1
    assert len(head_of().boxes) == 3, "one for each layer, one for proposals"


def test_two_stages_need_refinement():
    with pytest.raises(ConfigError, match="refine"):
        DeformableDetrConfig(refine=False)


def test_more_queries_than_tokens_are_refused():
    with pytest.raises(ConfigError, match="queries"):
        head_of(queries=5000)(features())


def test_a_plain_vit_has_a_simple_pyramid():
    model = tiny("vit_tiny_patch16")
    head = DeformableDetrConfig(**SMALL).build(model, 3).eval()
    _, grids, _ = head.encode(model.features(torch.randn(1, 3, *model.config.image_size)))
    rows, columns = model.config.grid(model.config.image_size)
    assert grids == [(2 * rows, 2 * columns), (rows, columns), (-(-rows // 2), -(-columns // 2))]


def test_centres_are_inside():
    assert cell_centres((1, 2), torch.zeros(1)).tolist() == [[0.25, 0.5], [0.75, 0.5]]
