"""The ViT against the one-page reference, and the options of later variants."""

import pytest
import torch
from reference_vit import ReferenceViT, to_vitrail
from support.registered import pictures, randomise, tiny
from torch import nn

from vitrail.errors import ConfigError
from vitrail.models.registry import create

SHAPES = {
    "square": {"H": 32, "W": 32, "C": 3, "p": 8, "D": 32, "L": 2, "k": 2, "K": 5},
    "tall": {"H": 48, "W": 16, "C": 1, "p": 16, "D": 24, "L": 1, "k": 3, "K": 7},
    "wide": {"H": 8, "W": 20, "C": 4, "p": 4, "D": 16, "L": 3, "k": 1, "K": 2},
}


def twins(H, W, C, p, D, L, k, K, **changes):
    reference = randomise(ReferenceViT(H, W, C, p, D, L, k, K)).double()
    size = {"image_size": (H, W), "channels": C, "patch": {"size": p}, "num_classes": K}
    model = create("vit_tiny_patch16", dim=D, depth=L, num_heads=k, **size, **changes).double().eval()
    model.load_state_dict(to_vitrail(reference, channels=C), strict=True)
    return reference, model, torch.randn(2, C, H, W, dtype=torch.float64)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_is_the_reference(shape, fused):
    reference, model, images = twins(**shape, attention={"fused": fused})
    torch.testing.assert_close(model(images), reference(images), atol=1e-12, rtol=1e-12)


def test_is_the_reference_step_by_step():
    reference, model, images = twins(**SHAPES["square"])
    z = reference.embed(images)
    torch.testing.assert_close(model.embed(images)[0], z, atol=1e-12, rtol=1e-12)
    for features, block in zip(model.intermediates(images), reference.blocks, strict=True):
        z = block(z)
        torch.testing.assert_close(torch.cat([features.prefix, features.patches], dim=1), z, atol=1e-12, rtol=1e-12)


def test_gradients_are_the_reference():
    reference, model, images = twins(**SHAPES["tall"])
    reference(images).square().sum().backward()
    model(images).square().sum().backward()
    torch.testing.assert_close(model.prefix.class_token.grad, reference.x_class.grad[0], atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(model.patch.projection.weight.grad.flatten(1), reference.E.weight.grad)


@pytest.mark.parametrize("option", [{"attention": {"temperature": 1.1}}, {"norm": {"eps": 1e-2}}, {"embed_norm": True}])
def test_the_reference_tells_options_apart(option):
    shape = SHAPES["square"]
    reference, model, images = twins(**shape)
    other = create("vit_tiny_patch16", **{**_options(shape), **option}).double().eval()
    other.load_state_dict(model.state_dict(), strict=False)
    assert not torch.allclose(other(images), reference(images), atol=1e-6)


def _options(shape):
    return {
        "dim": shape["D"],
        "depth": shape["L"],
        "num_heads": shape["k"],
        "image_size": (shape["H"], shape["W"]),
        "patch": {"size": shape["p"]},
        "num_classes": shape["K"],
    }


@pytest.mark.parametrize(("final_norm", "where"), [("tokens", "norm"), ("pooled", "pool_norm"), ("none", "")])
def test_final_norm_stands_where_it_is_asked(final_norm, where):
    model = tiny(final_norm=final_norm, pool="mean")
    found = [name for name in ("norm", "pool_norm") if isinstance(getattr(model, name), nn.LayerNorm)]
    assert found == ([where] if where else [])
    images = pictures(model)
    tokens = model.intermediates(images, [-1])[0].patches
    expected = {
        "tokens": lambda: model.norm(tokens).mean(dim=1),
        "pooled": lambda: model.pool_norm(tokens.mean(dim=1)),
        "none": lambda: tokens.mean(dim=1),
    }[final_norm]()
    torch.testing.assert_close(model.pooled(model.features(images)), expected)


@pytest.mark.parametrize(("class_token", "registers"), [(True, 0), (True, 4), (False, 0), (False, 3)])
def test_prefix_counts_class_token_and_registers(class_token, registers):
    model = tiny(class_token=class_token, registers=registers, pool="mean")
    features = model.features(pictures(model))
    assert features.prefix.shape == (2, class_token + registers, 32)
    assert features.patches.shape == (2, 6, 32)


def test_no_head_gives_the_pooled_vector():
    model = tiny(num_classes=0, pool="class_mean")
    images = pictures(model)
    features = model.features(images)
    expected = torch.cat([features.prefix[:, 0], features.patches.mean(dim=1)], dim=1)
    torch.testing.assert_close(model(images), expected)


def test_head_bias_can_be_left_out():
    assert tiny(head_bias=False).head.bias is None
    assert tiny(head_bias=True).head.bias is not None


def test_drop_path_grows_with_depth():
    model = create("vit_tiny_patch16", depth=4, drop_path=0.3)
    rates = [block.drop_path.rate for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])


def test_dropout_works_in_training_alone():
    model = tiny(dropout=0.5)
    images = pictures(model)
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))


def test_intermediates_of_no_layer_are_none():
    model = tiny()
    assert model.intermediates(pictures(model), []) == []


@pytest.mark.parametrize("layer", [2, -3])
def test_a_layer_that_is_not_there_is_named(layer):
    model = tiny()
    with pytest.raises(ConfigError, match=f"layer {layer} .*2 blocks"):
        model.intermediates(pictures(model), [0, layer])


@pytest.mark.parametrize("pool", ["class", "class_mean"])
def test_a_pool_that_reads_a_missing_class_token_is_refused(pool):
    with pytest.raises(ConfigError, match=rf"'{pool}' .*class_token"):
        create("vit_tiny_patch16", class_token=False, pool=pool)
