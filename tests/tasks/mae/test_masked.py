"""Masked autoencoding: the masks, the loss by hand, the same numbers as Hugging Face's, and what cannot be masked."""

import pickle
import warnings
from pathlib import Path

import pytest
import torch
from parity.cases.hf import MAE as SIZES
from parity.cases.hf import build
from support.registered import pictures, tiny
from torch import nn

import vitrail
from vitrail.data.dataset import Batch
from vitrail.data.sources.embedded import read_embedded
from vitrail.errors import ConfigError, DataError, Unsupported
from vitrail.layers.patch import patchify
from vitrail.profiling.count import sketch
from vitrail.recipes import read_recipe
from vitrail.tasks.mae.masked import MAE, MAEConfig, RebuiltMeter, pick, unpatchify
from vitrail.training.config import TrainConfig, change

SMALL = {"dim": 32, "depth": 1, "num_heads": 2}


def task(mask=0.5, image_size=(32, 16), normalise_pixels=True, **changes) -> MAE:
    """A grid of 4 x 2 patches."""
    model = tiny(**{"num_classes": 0, "image_size": image_size, **changes})
    return MAEConfig(mask=mask, normalise_pixels=normalise_pixels, **SMALL).build(model, {})


def batch(images) -> Batch:
    return Batch(images, {}, torch.arange(len(images)))


def given(mae, order):
    """The task with an order of patches that is not drawn."""
    mae.shuffle = lambda _: order
    return mae


@pytest.mark.parametrize(("mask", "seen"), [(0.75, 2), (0.5, 4), (0.6, 3), (0.1, 7)])
def test_the_share_of_hidden_patches_is_exact(mask, seen):
    mae = task(mask)
    images = pictures(mae.backbone, 3)
    order = mae.shuffle(images)
    assert order.shape == (3, 8)
    assert mae.encode(images, order).shape == (3, 1 + seen, 32)
    hidden = mae.rebuild(images)["hidden"]
    assert hidden.shape == (3, 4, 2)
    assert hidden.sum(dim=(1, 2)).tolist() == [8 - seen] * 3


@pytest.mark.parametrize(
    ("name", "options", "size"),
    [
        ("vit_huge_patch14", {}, (512, 8, 16)),  # the paper's
        ("vit_base_patch16", {}, (512, 8, 16)),
        ("vit_small_patch16", {}, (256, 8, 8)),
        ("vit_tiny_patch16", {}, (128, 8, 4)),
        ("vit_tiny_patch16", {"dim": 64, "depth": 3, "num_heads": 4}, (64, 2, 2)),
        ("vit_tiny_patch16", {"dim": 16, "depth": 1, "num_heads": 1}, (32, 1, 1)),
        ("vit_tiny_patch16", {"depth": 0}, (128, 1, 4)),
    ],
)
def test_a_decoder_left_open_follows_the_model(name, options, size):
    """Runs that left it open resume by this: another rule would be another decoder."""
    assert MAEConfig().size(sketch(name, num_classes=0, **options).config) == size


def test_given_options_of_a_decoder_hold_and_the_rest_follows():
    model = tiny(num_classes=0).config
    assert MAEConfig(dim=512, depth=8, num_heads=16).size(model) == (512, 8, 16)
    assert MAEConfig(dim=192, num_heads=3).size(model) == (192, 2, 3)
    assert MAEConfig(dim=100, depth=5).size(model) == (100, 5, 2)  # heads divide the width
    mae = MAEConfig(mask=0.5).build(tiny(num_classes=0), {})
    assert (mae.decoder.mask_token.shape, len(mae.decoder.blocks)) == ((32,), 2)


@pytest.mark.parametrize("recipe", ["cifar10-small-mae", "cifar10-conv-mae"])
def test_recipes_give_their_decoders(recipe):
    config = change(TrainConfig(), read_recipe(recipe)).task
    assert config == MAEConfig(mask=0.75, dim=128, depth=2, num_heads=4)


def test_each_image_has_its_own_mask_and_a_seed_repeats_them():
    mae = task()
    images = pictures(mae.backbone, 16)
    torch.manual_seed(3)
    first, second = mae.shuffle(images), mae.shuffle(images)
    assert len({tuple(sorted(row[:4].tolist())) for row in first}) > 8
    assert not torch.equal(first, second)
    assert all(sorted(row) == list(range(8)) for row in first.tolist())
    torch.manual_seed(3)
    assert torch.equal(mae.shuffle(images), first)


def test_masked_patches_are_not_read_and_visible_ones_are_not_in_the_loss():
    images = torch.randn(2, 3, 32, 16)
    order = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]])
    mae = given(task(), order)
    seen, rebuilt = mae.encode(images, order), mae.reconstruct(mae.encode(images, order), order)
    changed = images.clone()
    changed[0, :, 16:], changed[1, :, :16] = 5.0, -5.0  # the lower half of one, the upper of the other: all hidden
    torch.testing.assert_close(mae.encode(changed, order), seen)
    # A visible target does not count; a hidden one does.
    loss = mae.loss(batch(images))["loss"]
    for place, counts in ((0, False), (5, True)):
        target = mae.target(images).clone()
        target[0, place] += 1.0
        wrong = given(task(), order)
        wrong.target, wrong.encode, wrong.reconstruct = lambda _, t=target: t, mae.encode, lambda *_: rebuilt
        assert (abs(wrong.loss(batch(images))["loss"] - loss) > 1e-3) == counts


def test_the_loss_by_hand():
    mae = task(normalise_pixels=False)
    order = torch.tensor([[3, 1, 0, 2, 7, 6, 5, 4]])
    images = torch.randn(1, 3, 32, 16)
    rebuilt = given(mae, order).reconstruct(mae.encode(images, order), order)
    total = 0.0
    for place in (7, 6, 5, 4):
        row, column = divmod(place, 2)
        patch = images[0, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
        total += (rebuilt[0, place].view(3, 8, 8) - patch).square().mean().item() / 4
    assert mae.loss(batch(images))["loss"].item() == pytest.approx(total, rel=1e-5)


def test_targets_are_normalised_patch_by_patch():
    images = torch.randn(2, 3, 32, 16) * 7 + 3
    target = task().target(images)
    torch.testing.assert_close(target.mean(dim=2), torch.zeros(2, 8), atol=1e-5, rtol=0)
    torch.testing.assert_close(target.std(dim=2), torch.ones(2, 8), atol=1e-5, rtol=0)
    torch.testing.assert_close(task(normalise_pixels=False).target(images), patchify(images, (8, 8)))
    flat = task().target(torch.full((1, 3, 32, 16), 0.7))
    assert torch.isfinite(flat).all()


def test_cutting_and_putting_together():
    images = torch.randn(2, 3, 24, 16)
    torch.testing.assert_close(unpatchify(patchify(images, (8, 4)), (3, 4), (8, 4)), images, rtol=0, atol=0)
    patches = torch.arange(6.0).view(1, 3, 2)
    assert pick(patches, torch.tensor([[2, 0]])).tolist() == [[[4.0, 5.0], [0.0, 1.0]]]


@torch.no_grad()
def copy_decoder(peer: nn.Module, mae: MAE) -> None:
    """A decoder of transformers into ours; pixels stand last there, first here."""
    ours, theirs = mae.decoder, peer.decoder
    pairs = [(ours.embed, theirs.decoder_embed), (ours.norm, theirs.decoder_norm)]
    for block, layer in zip(ours.blocks, theirs.decoder_layers, strict=True):
        pairs += [(block.norm1, layer.layernorm_before), (block.norm2, layer.layernorm_after)]
        pairs += [(block.attention.projection, layer.attention.o_proj)]
        pairs += [(block.mlp.fc1, layer.mlp.fc1), (block.mlp.fc2, layer.mlp.fc2)]
        parts = [getattr(layer.attention, f"{name}_proj") for name in "qkv"]
        block.attention.qkv.weight.copy_(torch.cat([part.weight for part in parts]))
        block.attention.qkv.bias.copy_(torch.cat([part.bias for part in parts]))
    for one, other in pairs:
        one.load_state_dict(other.state_dict())
    size = mae.patch_size[0]
    ours.mask_token.copy_(theirs.mask_token[0, 0])
    ours.pixels.weight.copy_(theirs.decoder_pred.weight.view(size, size, 3, -1).permute(2, 0, 1, 3).flatten(0, 2))
    ours.pixels.bias.copy_(theirs.decoder_pred.bias.view(size, size, 3).permute(2, 0, 1).flatten())


@pytest.mark.parametrize("normalise", [True, False])
def test_the_loss_and_what_is_rebuilt_are_those_of_hugging_face(tmp_path: Path, normalise):
    options = SIZES | {"decoder_intermediate_size": 128, "norm_pix_loss": normalise, "mask_ratio": 0.75}
    peer = build("ViTMAEForPreTraining", options).eval()
    peer.decoder.initialize_weights(4 * 4)  # its positions are computed, as ours are
    peer.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = vitrail.load(tmp_path)
    decoder = {"dim": 32, "depth": 1, "num_heads": 2}
    mae = MAEConfig(mask=0.75, normalise_pixels=normalise, **decoder).build(model, {}).eval()
    copy_decoder(peer, mae)
    images, noise = torch.randn(3, 3, 32, 32), torch.rand(3, 16)
    with torch.no_grad():
        theirs = peer(pixel_values=images, noise=noise)
        order = noise.argsort(dim=1)
        rebuilt = mae.reconstruct(mae.encode(images, order), order)
        loss = given(mae, order).loss(batch(images))["loss"]
    logits = theirs.logits.view(3, 16, 8, 8, 3).permute(0, 1, 4, 2, 3).flatten(2)  # B N (C p q)
    torch.testing.assert_close(rebuilt, logits, rtol=1e-5, atol=1e-5 * logits.abs().max().item())
    torch.testing.assert_close(loss, theirs.loss, rtol=1e-5, atol=0)
    hidden = torch.ones(3, 16).scatter(1, order[:, :4], 0.0)
    assert torch.equal(hidden, theirs.mask)


def test_it_learns_in_30_steps():
    images = read_embedded().train.array[:64].float() / 128 - 1
    model = vitrail.create(
        "vit32_small", image_size=28, channels=1, dim=32, depth=2, num_heads=2, dropout=0.0, num_classes=0
    )
    mae = MAEConfig(**SMALL).build(model, {}).train()
    optimiser = torch.optim.AdamW(mae.parameters(), lr=3e-3)
    before = mae.eval().outputs(images)["errors"][:, 0].mean().item()
    mae.train()
    for _ in range(30):
        loss = mae(batch(images))["loss"]
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    after = mae.eval().outputs(images)["errors"][:, 0].mean().item()
    assert after < 0.8 * before


def test_bf16_and_a_whole_graph():
    mae = task().train()
    images = pictures(mae.backbone, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = mae(batch(images))["loss"]
    assert loss.dtype == torch.float32
    loss.backward()
    assert all(parameter.grad is not None for parameter in mae.parameters())
    losses = []
    for way in (mae, torch.compile(mae, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(0)  # the same patches are hidden
        losses.append(way(batch(images))["loss"])
    torch.testing.assert_close(*losses)


def test_metrics_and_predictions_repeat_themselves_and_read_no_labels():
    mae = task().eval()
    images = pictures(mae.backbone, 6)
    errors = mae.outputs(images)["errors"]
    parts = [mae.outputs(some)["errors"] for some in (images[:2], images[2:])]
    torch.testing.assert_close(torch.cat(parts), errors)
    whole, first, second = mae.metrics(), mae.metrics(), mae.metrics()
    whole.update({"errors": errors}, {})
    first.update({"errors": errors[:4]}, {})
    second.update({"errors": errors[4:]}, {})
    first.merge(pickle.loads(pickle.dumps(second)))
    first.merge(mae.metrics())
    assert first.compute() == pytest.approx(whole.compute())


def test_explained_is_the_share_of_the_variance():
    meter = RebuiltMeter()
    # Two images: errors 1 and 3, values of mean 1 and 3, of mean square 5 and 11: variance 8 - 2^2 = 4.
    meter.update({"errors": torch.tensor([[1.0, 1.0, 5.0], [3.0, 3.0, 11.0]])}, {})
    assert meter.compute() == pytest.approx({"explained": 0.5, "loss": 2.0, "images": 2})
    with pytest.raises(DataError, match="empty"):
        RebuiltMeter().compute()


def test_a_prediction_keeps_what_was_seen():
    for normalise in (True, False):
        mae = task(normalise_pixels=normalise).eval()
        images = pictures(mae.backbone)
        found = mae.rebuild(images)
        hidden = found["hidden"].repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)[:, None].expand(-1, 3, -1, -1)
        torch.testing.assert_close(found["rebuilt"][~hidden], images[~hidden], rtol=0, atol=0)
        assert not torch.isclose(found["rebuilt"][hidden], images[hidden]).any(dim=0).all()


def test_heads_and_pools_do_not_learn():
    mae = task(num_classes=5, pool="attention")
    still = {name.split(".")[1] for name, parameter in mae.named_parameters() if not parameter.requires_grad}
    assert still == {"pool", "head"}
    mae.loss(batch(pictures(mae.backbone)))["loss"].backward()
    assert all((parameter.grad is not None) == parameter.requires_grad for parameter in mae.parameters())


@pytest.mark.parametrize("changes", [{"class_token": False, "pool": "mean"}, {"registers": 3}, {"position": "none"}])
def test_other_prefixes_and_positions(changes):
    mae = task(**changes)
    assert torch.isfinite(mae.loss(batch(pictures(mae.backbone)))["loss"])


@pytest.mark.parametrize("patch", [{"kind": "conv", "halvings": 3}, {"size": 12, "stride": 8, "padding": 2}])
def test_through_patches_that_overlap_nothing_hidden_is_seen(patch):
    mae = task(patch=patch, class_token=False, pool="mean").eval()
    images, order = pictures(mae.backbone, 1).requires_grad_(), torch.tensor([[5, 0, 3, 6, 1, 2, 4, 7]])
    mae.encode(images, order).square().sum().backward()
    reached = patchify(images.grad, mae.patch_size)[0].any(dim=1)
    assert reached.nonzero().flatten().tolist() == [0, 3, 5, 6]
    assert torch.isfinite(mae.train().loss(batch(images))["loss"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": "rope"}, "since 'rope' reads them from the whole grid"),
        ({"position": ["learned", "relative"]}, "since 'relative' reads them"),
        ({"patch": {"size": 12, "stride": 8}}, "3 x 1 patches do not tile one of 32 x 16 pixels"),
        ({"dynamic_size": True}, "dynamic_size=False"),
    ],
)
def test_models_that_cannot_be_masked_are_refused(changes, message):
    with pytest.raises(Unsupported, match=message):
        task(**changes)


def test_another_family_or_mechanism_is_refused(monkeypatch):
    model = tiny(num_classes=0)
    with pytest.raises(Unsupported, match=r"needs a plain ViT, .* this is a Linear"):
        MAEConfig().build(nn.Linear(2, 2), {})
    monkeypatch.setattr("vitrail.tasks.mae.masked.SoftmaxConfig", type("Other", (), {}))
    with pytest.raises(Unsupported, match=r"needs softmax attention, .* the model has 'softmax'"):
        MAEConfig().build(model, {})


@pytest.mark.parametrize("mask", [0.01, 0.99])
def test_a_mask_that_hides_all_or_nothing(mask):
    with pytest.raises(ConfigError, match="mask"):
        task(mask)
    with pytest.raises(ConfigError, match="mask is 0"):
        MAEConfig(mask=0.0)


def test_it_gives_no_answers():
    mae = task()
    with pytest.raises(Unsupported, match="fine-tune"):
        mae.decode(mae.outputs(pictures(mae.backbone)))
    with pytest.raises(Unsupported, match="fine-tune"):
        mae.same({}, {})
    with pytest.raises(Unsupported, match="fine-tune"):
        MAEConfig().build(None, {})
    with pytest.raises(Unsupported, match="explain"):
        mae.explain_target(mae.outputs(pictures(mae.backbone)), None)
