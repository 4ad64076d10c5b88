"""Dropped, pruned and merged tokens: against loops that follow the papers, and what must not change."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from support import cost_formula as formula
from support.registered import pictures, tiny
from support.whole_graph import compiled_whole
from torch import Tensor

import vitrail
from vitrail.errors import ConfigError, Unsupported
from vitrail.layers.reduce import MergeConfig, PruneConfig, match, merge, spread
from vitrail.models.backbone import Backbone
from vitrail.profiling import cost, sketch

MERGE = {"kind": "merge", "amount": 3}
PRUNE = {"kind": "prune", "keep": 0.6, "blocks": (0, 2)}
KINDS = {"merge": MERGE, "prune": PRUNE, "prune-drop": PRUNE | {"fuse": False}}
every_kind = pytest.mark.parametrize("reduce", KINDS.values(), ids=KINDS.keys())


def model_of(name: str = "vit_tiny_patch16", **changes) -> Backbone:
    size = {"depth": 4, "image_size": (32, 40)}  # 4 x 5 patches
    return tiny(name, **size | changes)


def twin(model: Backbone, **changes) -> Backbone:
    """The same weights under a changed config."""
    other = model_of(**changes)
    other.load_state_dict(model.state_dict(), strict=True)
    return other.to(next(model.parameters()).dtype)


# --- the papers, in loops ---------------------------------------------------------------------------------------------


def explicit_attention(block, x: Tensor, sizes: list[float] | None) -> tuple[Tensor, Tensor, Tensor]:
    """One image N D: the branch N D, keys N d in the mean of heads, and attention A N N."""
    attention = block.attention
    heads, width = attention.num_heads, attention.head_dim
    q, k, v = attention.qkv(block.norm1(x)).unflatten(1, (3, heads, width)).permute(1, 2, 0, 3)  # A N d each
    logits = q @ k.transpose(1, 2) / math.sqrt(width)
    if sizes is not None:
        logits = logits + torch.tensor(sizes, dtype=x.dtype).log()
    shares = logits.softmax(dim=-1)
    return attention.projection((shares @ v).transpose(0, 1).flatten(1)), k.mean(dim=0), shares


def tome(model: Backbone, image: Tensor, amount: int) -> Tensor:
    """Section 3 of arXiv:2210.09461 for one image and one class token, token by token."""
    tokens, grid = model.embed(image[None])
    x, sizes = tokens[0], [1.0] * tokens.shape[1]
    members = [{index} for index in range(len(x))]
    for block in model.blocks:
        branch, keys, _ = explicit_attention(block, x, sizes)
        x = x + block.scale1(branch)
        first, second = list(range(0, len(x), 2)), list(range(1, len(x), 2))  # step 1: two sets
        edges = []
        for a in first[1:]:  # the class token is the first of them, and stays alone
            similar = [F.cosine_similarity(keys[a], keys[b], dim=0).item() for b in second]
            best = max(range(len(second)), key=similar.__getitem__)
            edges.append((similar[best], a, second[best]))  # step 2: one edge from each token of the first set
        chosen = sorted(edges, reverse=True)[: min(amount, (len(x) - 1) // 2)]  # step 3: the r most similar
        total, joined = {b: x[b] * sizes[b] for b in second}, {b: set(members[b]) for b in second}
        count = {b: sizes[b] for b in second}
        for _, a, b in chosen:  # step 4: the weighted mean
            total[b] = total[b] + x[a] * sizes[a]
            count[b] += sizes[a]
            joined[b] |= members[a]
        alone = [a for a in first if a not in {a for _, a, _ in chosen}]  # step 5: both sets together again
        x = torch.stack([x[a] for a in alone] + [total[b] / count[b] for b in second])
        members = [members[a] for a in alone] + [joined[b] for b in second]
        sizes = [sizes[a] for a in alone] + [count[b] for b in second]
        x = x + block.scale2(block.mlp(block.norm2(x), grid))
    places = {member: index for index, group in enumerate(members) for member in group}
    return model.norm(torch.stack([x[places[index]] for index in range(tokens.shape[1])]))


def evit(model: Backbone, image: Tensor, keep: float, blocks: tuple[int, ...], fuse: bool) -> Tensor:
    """Section 3 of arXiv:2202.07800 for one image and one class token."""
    tokens, grid = model.embed(image[None])
    x, canvas = tokens[0], tokens[0].clone()
    names = list(range(len(x)))  # which patch a token is; None for a fused one
    for number, block in enumerate(model.blocks):
        branch, _, shares = explicit_attention(block, x, None)
        x = x + block.scale1(branch)
        if number in blocks:
            looks = shares[:, 0].mean(dim=0)
            ranked = sorted(range(1, len(x)), key=lambda index: -looks[index].item())
            count = math.ceil(keep * len(ranked))
            for index, name in enumerate(names):
                if name is not None:
                    canvas[name] = x[index]
            staying, leaving = [0, *sorted(ranked[:count])], ranked[count:]
            fused = sum(looks[index] * x[index] for index in leaving)
            names = [names[index] for index in staying] + [None] * fuse
            x = torch.stack([x[index] for index in staying] + [fused] * fuse)
        x = x + block.scale2(block.mlp(block.norm2(x), grid))
    for index, name in enumerate(names):
        if name is not None:
            canvas[name] = x[index]
    return model.norm(canvas)


def flat(features) -> Tensor:
    return torch.cat([features.prefix, features.patches], dim=1)


@pytest.mark.parametrize("amount", [1, 3, 100])
@torch.no_grad()
def test_merging_is_the_paper(amount):
    model = model_of(reduce={"kind": "merge", "amount": amount}).double()
    images = pictures(model, dtype=torch.float64)
    expected = torch.stack([tome(model, image, amount) for image in images])
    torch.testing.assert_close(flat(model.features(images)), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("fuse", [True, False])
@torch.no_grad()
def test_pruning_is_the_paper(fuse):
    model = model_of(reduce=PRUNE | {"fuse": fuse}).double()
    images = pictures(model, dtype=torch.float64)
    expected = torch.stack([evit(model, image, 0.6, (0, 2), fuse) for image in images])
    torch.testing.assert_close(flat(model.features(images)), expected, atol=1e-10, rtol=1e-10)


# --- what must not change ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reduce", [{"kind": "merge", "amount": 0}, {"kind": "prune", "keep": 1.0}], ids=["merge", "prune"]
)
def test_nothing_reduced_is_the_plain_model(reduce):
    plain = model_of()
    same = twin(plain, reduce=reduce)
    images = pictures(plain)
    assert torch.equal(flat(same.features(images)), flat(plain.features(images)))
    for found, expected in zip(same.intermediates(images), plain.intermediates(images), strict=True):
        assert torch.equal(flat(found), flat(expected))


@pytest.mark.parametrize("registers", [0, 1, 4])
@torch.no_grad()
def test_merging_equal_tokens_changes_nothing(registers):
    """Without positions equal patches stay equal, and a token counts as often as patches are in it."""
    plain = model_of(position=(), registers=registers).double()
    merging = twin(plain, position=(), registers=registers, reduce={"kind": "merge", "amount": 4})
    few = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    images = few.tile(1, 1, 4, 5)
    torch.testing.assert_close(flat(merging.features(images)), flat(plain.features(images)), atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(merging(images), plain(images), atol=1e-10, rtol=1e-10)


@torch.no_grad()
def test_merging_pairs_of_equal_tokens_changes_nothing():
    """Patches 2 i and 2 i + 1 are alike; half of all tokens go in the first block, and none is missed."""
    plain = model_of(position=(), image_size=(32, 48), depth=1).double()
    merging = twin(plain, position=(), image_size=(32, 48), depth=1, reduce={"kind": "merge", "amount": 12})
    patches = torch.randn(2, 3, 4, 3, 8, 8, dtype=torch.float64).repeat_interleave(2, dim=3)  # B C h w p q
    images = patches.transpose(3, 4).flatten(4, 5).flatten(2, 3)
    torch.testing.assert_close(flat(merging.features(images)), flat(plain.features(images)), atol=1e-10, rtol=1e-10)


@every_kind
def test_features_keep_grid_order_and_count(reduce):
    model = model_of(reduce=reduce)
    features = model.features(pictures(model))
    assert features.patches.shape == (2, 20, 32)
    assert features.grid == (4, 5)
    assert features.pyramid[0].shape == (2, 32, 4, 5)
    assert len(model.intermediates(pictures(model))) == 4
    assert not torch.allclose(model(images := pictures(model)), twin(model)(images), atol=1e-3)


@every_kind
def test_the_last_intermediate_is_the_features_before_the_norm(reduce):
    model = model_of(reduce=reduce)
    images = pictures(model)
    last = model.intermediates(images, [-1])[0]
    torch.testing.assert_close(model.norm(flat(last)), flat(model.features(images)))


@every_kind
@pytest.mark.parametrize("name", ["vit_tiny_patch16", "deit_tiny_distilled_patch16"])
def test_prefix_tokens_are_never_reduced(reduce, name):
    model = model_of(name, registers=3, reduce=reduce)
    plain = model_of(name, registers=3)
    plain.load_state_dict(model.state_dict())
    images = pictures(model)
    first, expected = model.intermediates(images, [0])[0], plain.intermediates(images, [0])[0]
    torch.testing.assert_close(first.prefix, expected.prefix)


@every_kind
@pytest.mark.parametrize("placement", ["pre", "post", "res_post"])
def test_gradients_and_checkpointing(reduce, placement):
    model = model_of(reduce=reduce, norm_placement=placement, patch_drop=0.2, dropout=0.1, drop_path=0.2).train()
    images, found, calls = pictures(model), [], []
    handles = [block.register_forward_pre_hook(lambda *_: calls.append(1)) for block in model.blocks]
    for checkpointing in (False, True):
        torch.manual_seed(3)
        model.zero_grad()
        model.checkpointing = checkpointing
        model(images).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    torch.testing.assert_close(*found)
    assert len(calls) == 3 * len(handles)  # blocks are called, as hooks and sharding need it
    assert all(gradient.isfinite().all() and gradient.abs().max() > 0 for gradient in found[0].values())


def to_trace(reduce, **changes) -> Backbone:
    """As few blocks as show it whole: tracing takes a second for each."""
    return model_of(reduce=reduce, depth=2 if reduce is MERGE else 3, **changes)


@pytest.mark.parametrize("reduce", [MERGE, PRUNE], ids=["merge", "prune"])
def test_compiles_whole_and_exports_with_any_batch(reduce):
    model = to_trace(reduce)
    images = pictures(model, 3)
    torch.testing.assert_close(compiled_whole(model)(images), model(images))
    check_exports(model, strict=False)  # as `vitrail export` does


@pytest.mark.slow
def test_exports_strictly_too():
    check_exports(to_trace(MERGE), strict=True)


def check_exports(model, *, strict):
    shapes = {"images": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (pictures(model),), dynamic_shapes=shapes, strict=strict).module()
    images = pictures(model, 3)
    torch.testing.assert_close(program(images), model(images), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "reduce", [pytest.param(MERGE, id="merge"), pytest.param(PRUNE, id="prune", marks=pytest.mark.slow)]
)
def test_training_compiles_whole(reduce):
    model = to_trace(reduce, patch_drop=0.5).train()
    compiled = compiled_whole(model, backend="aot_eager")
    compiled(pictures(model)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@every_kind
def test_bfloat16_runs(reduce):
    model = model_of(reduce=reduce)
    images = pictures(model)
    assert copy.deepcopy(model).bfloat16()(images.bfloat16()).dtype == torch.bfloat16
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(images).isfinite().all()


@every_kind
def test_other_sizes_and_saved_configs(reduce, tmp_path):
    model = model_of(reduce=reduce, dynamic_size=True)
    images = torch.randn(2, 3, 24, 56)
    assert model.features(images).patches.shape == (2, 21, 32)
    vitrail.save(model, tmp_path / "model.safetensors")
    loaded = vitrail.load(tmp_path / "model.safetensors")
    assert loaded.config == model.config
    assert torch.equal(loaded.eval()(images), model(images))


# --- patch dropout ----------------------------------------------------------------------------------------------------


def test_patch_drop_works_in_training_alone():
    model = model_of(patch_drop=0.5)
    images = pictures(model)
    assert torch.equal(model(images), twin(model)(images))
    model.train()
    assert not torch.equal(model(images), model(images))


@pytest.mark.parametrize(("rate", "stay"), [(0.5, 10), (0.33, 14), (0.96, 1)])
def test_patch_drop_runs_on_the_patches_that_stay(rate, stay):
    model, seen = model_of(patch_drop=rate).train(), []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape))
    model(pictures(model))
    assert seen == [(2, 1 + stay, 32)]


@torch.no_grad()
def test_patch_drop_draws_for_each_sample_and_keeps_places():
    model = model_of(patch_drop=0.5, depth=0, final_norm="none").train()
    images = pictures(model, 1).expand(64, -1, -1, -1)
    whole = model.embed(images)[0][:, 1:]
    found = model.features(images).patches
    stays = (found == whole).all(dim=2)  # B N
    assert (stays.sum(dim=1) == 10).all()
    assert len({tuple(row.tolist()) for row in stays}) > 32
    assert stays.any(dim=0).all()
    mean = (whole * stays[..., None]).sum(dim=1) / 10
    torch.testing.assert_close(found.mean(dim=1), mean)  # what a mean pool reads is what was seen


# --- parts ------------------------------------------------------------------------------------------------------------


def test_match_by_hand():
    """A prefix of one; patches 1..6 point along angles; 2 joins 1 and 4 joins 5, by similarity."""
    angles = torch.tensor([0.0, 0.1, 0.12, 1.5, 2.5, 2.51, 0.7])
    features = torch.stack([angles.cos(), angles.sin()], dim=1)[None]
    # First set: 0 (prefix), 2, 4, 6; second set: 1, 3, 5.
    assert match(features, 2, num_prefix=1).tolist() == [[0, 2, 2, 3, 4, 4, 1]]
    assert match(features, 0, num_prefix=1).tolist() == [[0, 4, 1, 5, 2, 6, 3]]
    assert match(features, 1, num_prefix=2).tolist() == [[0, 1, 2, 4, 5, 5, 3]]


def test_merge_is_the_weighted_mean():
    tokens = torch.tensor([[[0.0], [6.0], [3.0]]])
    mean, sizes = merge(tokens, torch.tensor([[1.0, 1.0, 2.0]]), torch.tensor([[0, 1, 1]]), 2)
    assert mean.tolist() == [[[0.0], [4.0]]]
    assert sizes.tolist() == [[1.0, 3.0]]


def test_spread_fills_places():
    tokens, home = torch.tensor([[[9.0], [1.0], [3.0]]]), torch.tensor([[2, -1, 1, 2]])
    assert spread(tokens, home, torch.full((1, 4, 1), 7.0)).flatten().tolist() == [3.0, 7.0, 1.0, 3.0]
    assert spread(tokens, home, None).flatten().tolist() == pytest.approx([3.0, 7 / 3, 1.0, 3.0])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MergeConfig(amount=8), [(197, 189), (189, 181), (181, 173)]),
        (MergeConfig(amount=90), [(197, 107), (107, 54), (54, 28)]),
        (PruneConfig(keep=0.5, blocks=(1,)), [(197, 197), (197, 100), (100, 100)]),
        (PruneConfig(keep=0.5, blocks=(0, 1), fuse=False), [(197, 99), (99, 50), (50, 50)]),
    ],
)
def test_counts_by_hand(config, expected):
    assert config.counts(196, depth=3, num_prefix=1) == expected


@pytest.mark.parametrize(
    "reduce", [{"kind": "merge"}, {"kind": "prune"}, {"kind": "prune", "fuse": False, "blocks": [1]}]
)
def test_macs_fall_as_the_formula_says(reduce):
    model, plain = sketch("vit_small_patch16", reduce=reduce), sketch("vit_small_patch16")
    assert cost(model).macs == sum(formula.macs(model.config).values())
    assert cost(model).macs < cost(plain).macs
    assert cost(model).parameters == cost(plain).parameters


def test_a_vit_small_merges_to_published_cost():
    """ToMe's table: ViT-S at 224 with r = 13 takes 2.7 GFLOPs (multiply-accumulates) of 4.6."""
    merged = sketch("vit_small_patch16", reduce={"kind": "merge", "amount": 13})
    assert cost(merged).macs / 1e9 == pytest.approx(2.7, abs=0.06)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": "rope"}, r"'merge' .*'rope'"),
        ({"position": "relative"}, "'relative'"),
        ({"attention": "deformable"}, "'deformable'"),
        ({"norm": "group"}, "'group'"),
        ({"mlp": "conv_mlp"}, "MLP"),
        ({"reduce": None, "patch_drop": 0.5, "position": "rope"}, r"patch_drop .*position"),
        ({"reduce": PRUNE, "class_token": False, "pool": "mean"}, r"'prune' .*class token"),
    ],
)
def test_what_needs_all_tokens_is_refused(changes, message):
    with pytest.raises(Unsupported, match=message):
        model_of(**{"reduce": MERGE} | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reduce": PRUNE | {"blocks": (4,)}}, r"reduce.blocks.*4"),
        ({"reduce": PRUNE | {"keep": 0.0}}, r"keep .*0"),
        ({"reduce": "merging"}, "'merge'"),
        ({"patch_drop": 1.0}, "patch_drop is 1.0"),
    ],
)
def test_bad_numbers_are_named(changes, message):
    with pytest.raises(ConfigError, match=message):
        model_of(**changes)


@pytest.mark.parametrize("peer", ["timm", "hf"])
def test_peers_that_keep_all_tokens_are_named(peer, tmp_path):
    vitrail.save(model_of(reduce=MERGE), tmp_path / "ours")
    with pytest.raises(Unsupported, match="reduce"):
        vitrail.convert(tmp_path / "ours", tmp_path / "theirs", to=peer)
    vitrail.save(model_of(patch_drop=0.5, layer_scale=None), tmp_path / "dropping")
    file = vitrail.convert(tmp_path / "dropping", tmp_path / "plain", to=peer)
    assert torch.equal(
        vitrail.load(file).patch.projection.weight, vitrail.load(tmp_path / "dropping").patch.projection.weight
    )


def test_fresh_weights_are_those_of_the_plain_model():
    torch.manual_seed(0)
    plain = vitrail.create("vit_tiny_patch16", depth=1)
    torch.manual_seed(0)
    reduced = vitrail.create("vit_tiny_patch16", depth=1, reduce="merge", patch_drop=0.1)
    torch.testing.assert_close(reduced.state_dict(), plain.state_dict(), rtol=0, atol=0)
