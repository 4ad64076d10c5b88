"""Light over pictures: attention held against what the last block is given, slopes against a head done by hand."""

import pytest
import torch
from support.registered import one_of_each_family, pictures, tiny
from torch import nn

from vitrail.errors import Unsupported
from vitrail.models.backbone import Backbone
from vitrail.training.overlay import heat_map


def small(**changes) -> Backbone:
    """A ViT of two blocks on 2 x 3 patches, all of its weights at random."""
    model = tiny(image_size=(16, 24), patch={"size": 8}, num_classes=3, **changes)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model


def last_attention(model: Backbone, images: torch.Tensor) -> torch.Tensor:
    """The matrix of the last block over what it is given in a plain pass, mean of the heads: B P+N P+N."""
    given = []
    hook = model.blocks[-1].attention.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.no_grad():
        model.eval()(images)
        hook.remove()
        return model.blocks[-1].attention.weights(given[0], (2, 3)).mean(dim=1)


@pytest.mark.parametrize("placement", ["pre", "post", "res_post"])
@pytest.mark.parametrize("registers", [0, 2])
def test_the_class_token_looks_as_the_last_block_does(placement, registers):
    model = small(norm_placement=placement, registers=registers, dropout=0.1)
    images = torch.rand(3, 3, 16, 24)
    whole = last_attention(model, images)
    found = heat_map(model.train(), images)
    assert model.training
    assert found.words == "where the class token looks"
    assert found.maps.shape == (3, 2, 3)
    torch.testing.assert_close(found.maps.flatten(1), whole[:, 0, 1 + registers :])
    assert (found.maps.sum(dim=(1, 2)) < 1).all()


@pytest.mark.parametrize("prefix", [0, 3])
def test_the_attention_of_pooled_patches_is_shown(prefix):
    model = small(pool="mean", class_token=prefix > 0, registers=max(prefix - 1, 0))
    images = torch.rand(3, 3, 16, 24)
    found = heat_map(model, images)
    assert found.words == "the attention that patches receive"
    torch.testing.assert_close(
        found.maps.flatten(1), last_attention(model, images)[:, prefix:, prefix:].mean(dim=1), atol=1e-6, rtol=1e-5
    )


def test_a_pooling_query_shows_where_it_looks():
    model = small(pool="attention", class_token=False).eval()
    images = torch.rand(2, 3, 16, 24)
    found = heat_map(model, images)
    assert found.words == "what the pooling query attends to"
    torch.testing.assert_close(found.maps.sum(dim=(1, 2)), torch.ones(2))
    torch.testing.assert_close(
        found.maps.flatten(1), model.pool.weights(model.features(images).patches)[:, :, 0].mean(dim=1).detach()
    )


def test_without_an_attention_matrix_grad_cam_is_shown():
    model = small(pool="mean", class_token=False, attention="linformer").eval()
    images = torch.rand(3, 3, 16, 24)
    found = heat_map(model, images)
    assert found.words == "the effect of each patch on the answer"
    with torch.no_grad():
        features = model.features(images)
        weight = model.head.weight[model.classify(features).argmax(dim=1)]  # B D
        # The head is linear and reads the mean: a patch adds its product with the head's row, over their number.
        by_hand = torch.einsum("bnd,bd->bn", features.patches, weight).relu() / 6
    torch.testing.assert_close(found.maps.flatten(1), by_hand, atol=1e-6, rtol=1e-5)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_tokens_that_were_merged_are_lit_in_their_places():
    model = small(pool="mean", class_token=False, reduce={"kind": "merge", "amount": 2})
    found = heat_map(model, torch.rand(2, 3, 16, 24))
    assert found.words == "the effect of each patch on the answer"
    assert found.maps.shape == (2, 2, 3)


@pytest.mark.parametrize("name", one_of_each_family())
def test_every_family_has_something_to_show(name):
    model = tiny(name).train()
    images = pictures(model)
    found = heat_map(model, images)
    assert model.training
    grid = model.config.grid(model.config.image_size)
    assert found.maps.shape == (len(images), *grid)
    assert found.maps.isfinite().all()
    assert (found.maps >= 0).all()
    assert found.maps.any()
    assert found.words
    assert found.text.endswith(".")


def test_a_model_without_blocks_has_no_heat_map():
    with pytest.raises(Unsupported, match="no patch has a positive effect"):
        heat_map(small(depth=0), torch.rand(1, 3, 16, 24))
