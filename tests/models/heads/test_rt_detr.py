"""RT-DETR: every parameter learns, noised boxes do not change the answer, plain and staged backbones."""

import pytest
import torch
from support.registered import tiny

from vitrail.errors import ConfigError
from vitrail.models.heads import RtDetrConfig
from vitrail.models.heads.detector import Noised

SMALL = {"dim": 16, "num_heads": 2, "hidden": 24, "decoder_depth": 2, "queries": 5}


def made(name="resnet18", **options):
    torch.manual_seed(0)
    model = tiny(name).eval()
    head = RtDetrConfig(**SMALL | options).build(model, 3)
    return head, model.features(torch.randn(2, 3, *model.config.image_size))


def noised(count=6):
    labels, true = torch.randint(3, (2, count)), torch.ones(2, count, dtype=torch.bool)
    boxes = torch.rand(2, count, 4) * 0.4 + 0.1
    return Noised(labels, boxes, labels, boxes, true, true, 2)


@pytest.mark.parametrize("name", ["resnet18", "vit_tiny_patch16"])
def test_every_parameter_learns(name):
    head, features = made(name)
    found = head.train()(features, noised())
    assert found.found.logits.shape == (2, 2, 5, 3)
    assert found.noised.boxes.shape == (2, 2, 6, 4)
    assert found.proposals.logits.shape == (1, 2, 5, 3)
    sum(part.boxes.sum() + part.logits.sum() for part in found if part is not None).backward()
    assert [name for name, one in head.named_parameters() if one.grad is None] == []


def test_noised_boxes_do_not_change_the_answer():
    head, features = made()
    head.eval()
    alone = head(features)
    assert alone[1:] == (None, None, None)
    torch.testing.assert_close(head(features, noised()).found.boxes, alone.found.boxes)


def test_more_queries_than_tokens_are_refused():
    head, features = made(queries=9000)
    with pytest.raises(ConfigError, match="queries"):
        head(features)
