"""Counting against hand formulas, an independent framework count, published numbers and real runs."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from vitrail.errors import ConfigError, InputError, Unsupported
from vitrail.models.registry import list_models, resolve
from vitrail.models.vit import ViTConfig
from vitrail.profiling import Cost, cost, formula, sketch
from vitrail.profiling.count import blank_images, count
from vitrail.report import Report

NAMES = list_models()
PLAIN = [name for name in NAMES if isinstance(resolve(name)[1], ViTConfig)]
SMALL = {"dim": 32, "depth": 2, "num_heads": 2, "image_size": 32, "num_classes": 5}
VARIANTS = {
    "plain": ("vit_tiny_patch16", {}),
    "swiglu": ("vit_tiny_patch16", {"mlp": {"kind": "swiglu", "hidden": 48, "inner_norm": True}}),
    "narrow heads": ("vit_tiny_patch16", {"attention": {"head_dim": 8, "bias": "none"}}),
    "qk_norm": ("vit_tiny_patch16", {"attention": {"qk_norm": True, "inner_norm": True}}),
    "rope": ("vit_tiny_patch16", {"position": "rope", "registers": 3, "attention": {"qk_norm": True}}),
    "factored": ("vit_tiny_patch16", {"position": "factored", "pool": "class_mean", "layer_scale": 0.1}),
    "clip": ("vit_base_patch16_clip_quickgelu", {}),
    "siglip": ("vit_base_patch16_siglip", {}),
    "eva": ("eva02_base_patch14", {"image_size": 28, "mlp": {"hidden": 48}}),
    "rms": ("vit_tiny_patch16", {"norm": "rms", "position": "sincos2d"}),
    "no head": ("vit_tiny_patch16", {"num_classes": 0, "pool": "mean", "class_token": False}),
    "distilled": ("deit_tiny_distilled_patch16", {}),
}


def small(variant: str = "plain", **changes) -> vitrail.models.backbone.Backbone:
    name, own = VARIANTS[variant]
    return vitrail.create(name, **{**SMALL, **own, **changes})


def framework_macs(model) -> int:
    """torch's own count of a forward pass, without a fused kernel, on a batch without data."""
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(blank_images(model, None, 1))
    return counter.get_total_flops() // 2


def really_kept(model, images) -> int:
    """Bytes of all storages that a real forward pass in training saves, without the weights."""
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.train()(images)
    return sum(storage.nbytes() for storage in kept.values())


def kept(model, *, batch=1, image_size=None) -> int:
    return count(model, blank_images(model, image_size, batch)).total[2]


def rows(report) -> dict:
    return {row["layer"]: row for row in report["Layers"].rows}


# parameters and MACs


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vit_base_patch16", 86_567_656),
        ("vit_large_patch16", 304_326_632),
        ("vit_huge_patch14", 632_045_800),
        ("vit32_small", 5_362_762),
        ("vit32_base", 21_342_346),
        ("vit32_large", 75_722_250),
    ],
)
def test_published_parameter_counts(name, parameters):
    assert cost(name).parameters == parameters
    assert sum(formula.parameters(resolve(name)[1]).values()) == parameters


def test_published_macs():
    assert cost("vit32_small").macs / 1e9 == pytest.approx(0.365, abs=5e-4)
    assert 2 * cost("vit32_small").macs / 1e9 == pytest.approx(0.73, abs=5e-3)
    assert cost("vit_base_patch16").macs / 1e9 == pytest.approx(17.56, abs=0.05)  # with attention's own products


@pytest.mark.parametrize("name", PLAIN)
def test_counting_equals_the_formula(name):
    config = resolve(name)[1]
    expected = Cost(sum(formula.parameters(config).values()), sum(formula.macs(config).values()))
    assert cost(name) == expected


@pytest.mark.parametrize("name", NAMES)
def test_macs_equal_the_framework_count(name):
    # Two blocks are like all others, and the framework counts slowly.
    model = sketch(name, depth=2) if name in PLAIN else sketch(name)
    assert cost(model).macs == framework_macs(model)


@pytest.mark.parametrize("name", ["vit32_small", "vit_base_patch16"])
def test_macs_equal_the_framework_count_at_full_depth(name):
    assert cost(name).macs == framework_macs(sketch(name))


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_formula_framework_and_truth(variant):
    model = small(variant)
    found = cost(model)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.parameters == sum(formula.parameters(model.config).values())
    assert found.macs == framework_macs(model.to("meta"))
    assert found.macs == sum(formula.macs(model.config).values())


def test_block_of_attention_and_mlp_by_hand():
    tree = rows(vitrail.describe("vit_base_patch16", batch=2))
    tokens, dim = 197, 768
    assert tree["blocks.0-11.attention"]["MACs"] == 2 * 12 * (4 * tokens * dim**2 + 2 * tokens**2 * dim)
    assert tree["blocks.0-11.mlp"]["MACs"] == 2 * 12 * 8 * tokens * dim**2
    assert tree["patch"]["MACs"] == 2 * 196 * 768 * dim
    assert tree["head"]["MACs"] == 2 * dim * 1000


def test_convolutions_by_hand():
    class Convolutions(vitrail.models.backbone.Backbone):
        def __init__(self):
            super().__init__(vitrail.models.backbone.BackboneConfig(image_size=(8, 8)))
            self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1)
            self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
            self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)

        def forward(self, images):
            return self.up(self.depthwise(self.down(images)))

    model = Convolutions()
    assert cost(model).macs == 16 * 8 * 27 + 16 * 8 * 9 + 16 * 8 * 4 * 4
    assert cost(model).macs == framework_macs(model.to("meta"))


# kept activations


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("variant", VARIANTS)
def test_kept_bytes_equal_a_real_run_and_the_formula(variant, batch):
    model = small(variant)
    found = kept(model, batch=batch)
    if variant != "rms":  # a CPU runs it step by step
        assert found == really_kept(model, torch.randn(batch, 3, *model.config.image_size))
    assert found == sum(formula.kept(model.config, batch=batch).values())


@pytest.mark.parametrize("name", PLAIN)
def test_kept_bytes_equal_the_formula_for_every_name(name):
    config = replace(resolve(name)[1], depth=2)
    assert kept(sketch(name, depth=2), batch=2) == sum(formula.kept(config, batch=2).values())


@pytest.mark.parametrize(
    "changes", [{"dropout": 0.1, "drop_path": 0.1, "attention": {"dropout": 0.1}}, {"norm": "rms"}]
)
def test_kept_bytes_where_accelerators_differ_from_this_machine(changes):
    """Statistics in float32, masks of one byte, fused RMSNorm: the formula stands for the accelerator."""
    model = small(**changes).to(torch.bfloat16)
    assert kept(model, batch=4) == sum(formula.kept(model.config, batch=4, itemsize=2).values())


@pytest.mark.parametrize("fused", [True, False])
def test_checkpointing_keeps_the_inputs_of_blocks_alone(fused):
    model = small(attention={"fused": fused})
    model.checkpointing = True
    tokens = 4 * 5 * 32 * 4  # bytes of B P+N D
    report = rows(vitrail.describe(model, batch=4))
    assert report["blocks.0-1"]["kept"] == 2 * tokens
    assert kept(model, batch=4) == really_kept(model, torch.randn(4, 3, 32, 32))


def growth(*, fused: bool, checkpointing: bool) -> float:
    """The exponent of kept bytes in blocks against the number of tokens, at sizes where it has settled."""
    found = []
    for side in (64, 128):
        changes = {**SMALL, "image_size": 4 * side, "patch": {"size": 4}, "attention": {"fused": fused}}
        model = sketch("vit_tiny_patch16", **changes)
        model.checkpointing = checkpointing
        found.append((side * side, rows(vitrail.describe(model))["blocks.0-1"]["kept"]))
    (few, less), (many, more) = found
    return math.log(more / less) / math.log(many / few)


def test_kept_bytes_grow_quadratically_only_when_explicit_and_not_checkpointed():
    assert growth(fused=False, checkpointing=False) == pytest.approx(2, abs=0.1)
    assert growth(fused=False, checkpointing=True) == pytest.approx(1, abs=0.01)
    assert growth(fused=True, checkpointing=False) == pytest.approx(1, abs=0.01)
    assert growth(fused=True, checkpointing=True) == pytest.approx(1, abs=0.01)


def test_frozen_layers_keep_nothing():
    model = small()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    report = vitrail.describe(model)
    assert {name for name, row in rows(report).items() if row["kept"]} == {"head", "total"}
    assert report["Totals"].values["parameters that learn"] == 32 * 5 + 5


# the report


def test_layers_add_up():
    report = vitrail.describe("vit_base_patch16", image_size=(64, 96), batch=2)
    layers, totals = report["Layers"].rows, report["Totals"].values
    for column in ("parameters", "MACs", "kept"):
        top = [
            row[column] for row in layers if "." not in row["layer"].removeprefix("blocks.").removeprefix("position.")
        ]
        assert sum(top) == 2 * totals[column] == 2 * rows(report)["total"][column]
        inside = [row[column] for row in layers if row["layer"].startswith("blocks.0-11.")]
        assert sum(inside) == rows(report)["blocks.0-11"][column]
    assert totals["images"] == "2 x 3 x 64 x 96"


def test_blocks_fold_where_they_are_the_same():
    model = small(depth=4)
    assert "blocks.0-3" in rows(vitrail.describe(model))
    model.blocks[2].mlp = nn.Identity()
    assert {"blocks.0-1", "blocks.2", "blocks.3"} <= set(rows(vitrail.describe(model)))


def test_depth_opens_more_levels():
    shallow, deep = (rows(vitrail.describe(small(), depth=depth)) for depth in (1, 3))
    assert "blocks.0-1.mlp" not in shallow
    assert deep["blocks.0-1.mlp.fc1"]["MACs"] == 2 * 5 * 32 * 128
    for column in ("parameters", "MACs", "kept"):
        parts = [row[column] for name, row in deep.items() if name.startswith("blocks.0-1.attention.")]
        assert sum(parts) == deep["blocks.0-1.attention"][column]


def test_weights_read_without_a_call_belong_to_their_reader():
    deep = rows(vitrail.describe(small(), depth=3))
    assert "patch.projection" not in deep  # a matrix product with the convolution's weights
    assert deep["patch"]["parameters"] == 3 * 16 * 16 * 32 + 32


def test_report_survives_json_and_shows_its_config():
    report = vitrail.describe("eva02_base_patch14")
    assert Report.from_json(report.to_json()).to_json() == report.to_json()
    assert "http" not in report.to_html()
    assert max(map(len, str(report).splitlines())) <= 100
    assert report["Config"].values["position"] == "learned + rope, reference 16 x 16"
    assert report["Config"].values["mlp"] == "swiglu, hidden 2,048, inner_norm yes"


def test_name_sketch_and_model_agree():
    described = [vitrail.describe(it) for it in ("vit32_small", sketch("vit32_small"), vitrail.create("vit32_small"))]
    assert len({repr(report["Layers"].rows) for report in described}) == 1
    assert [report.title for report in described] == ["vit32_small", "ViT", "ViT"]


def test_describing_leaves_the_model_as_it_was():
    model = small(dropout=0.1).eval()
    model.blocks[0].train()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    state, flags = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    random = torch.get_rng_state()
    vitrail.describe(model)
    assert [module.training for module in model.modules()] == flags
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["head.weight"]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(tensor.device.type == "cpu" for tensor in model.state_dict().values())
    assert torch.equal(random, torch.get_rng_state())
    assert model(torch.randn(1, 3, 32, 32)).device.type == "cpu"


def test_hooks_are_removed_after_an_error():
    model = small()
    with pytest.raises(InputError, match="64 x 64"):
        vitrail.describe(model, image_size=64)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert model.training


def test_running_statistics_are_not_touched():
    class Normed(vitrail.models.backbone.Backbone):
        def __init__(self):
            super().__init__(vitrail.models.backbone.BackboneConfig(image_size=(8, 8)))
            self.norm = nn.BatchNorm2d(3)

        def forward(self, images):
            return self.norm(images)

    model = Normed()
    vitrail.describe(model, batch=2)
    assert model.norm.num_batches_tracked == 0
    assert torch.equal(model.norm.running_mean, torch.zeros(3))


def test_another_image_size_of_a_model_that_takes_all():
    model = small(dynamic_size=True)
    assert rows(vitrail.describe(model, image_size=(32, 64)))["patch"]["MACs"] == 8 * 768 * 32


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: vitrail.describe("vit_smal_patch16"), ConfigError, "did you mean 'vit_small_patch16'"),
        (lambda: vitrail.describe(3), ConfigError, "neither a vitrail model nor the name of one"),
        (lambda: vitrail.describe(nn.Linear(2, 2)), ConfigError, "neither a vitrail model nor"),
        (lambda: vitrail.describe("vit32_small", batch=0), ConfigError, "batch is 0; it must be 1 or more"),
        (lambda: vitrail.describe("vit32_small", image_size=33), InputError, "33 x 33"),
        (lambda: vitrail.describe(small(), image_size=(1, 2, 3)), ConfigError, "image_size is"),
        (lambda: cost(None), ConfigError, "neither"),
        (lambda: formula.kept(small(norm_placement="post").config), Unsupported, "norms elsewhere"),
    ],
)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
