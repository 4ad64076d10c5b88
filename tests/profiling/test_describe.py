"""The report: rows that add up, equal layers in one row, and errors for bad input."""

import pytest
from support.counted import rows, small
from torch import nn

import vitrail
from vitrail.errors import ConfigError, InputError
from vitrail.profiling import sketch
from vitrail.report import Report


def test_block_of_attention_and_mlp_by_hand():
    tree = rows(vitrail.describe("vit_base_patch16", batch=2))
    tokens, dim = 197, 768
    assert tree["blocks.0-11.attention"]["MACs"] == 2 * 12 * (4 * tokens * dim**2 + 2 * tokens**2 * dim)
    assert tree["blocks.0-11.mlp"]["MACs"] == 2 * 12 * 8 * tokens * dim**2
    assert tree["patch"]["MACs"] == 2 * 196 * 768 * dim
    assert tree["head"]["MACs"] == 2 * dim * 1000


def test_layers_add_up():
    report = vitrail.describe("vit_base_patch16", image_size=(64, 96), batch=2)
    layers, totals = report["Layers"].rows, report["Totals"].values
    for column in ("parameters", "MACs", "activations"):
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
    model.blocks[2].drop_path = nn.Dropout()
    model.blocks[2].scale1 = nn.PReLU()
    assert {"blocks.0-1", "blocks.2", "blocks.3"} <= set(rows(vitrail.describe(model)))


def test_depth_opens_more_levels():
    shallow, deep = (rows(vitrail.describe(small(), depth=depth)) for depth in (1, 3))
    assert "blocks.0-1.mlp" not in shallow
    assert deep["blocks.0-1.mlp.fc1"]["MACs"] == 2 * 5 * 32 * 128
    for column in ("parameters", "MACs", "activations"):
        parts = [row[column] for name, row in deep.items() if name.startswith("blocks.0-1.attention.")]
        assert sum(parts) == deep["blocks.0-1.attention"][column]


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
    assert [report.title for report in described] == ["vit32_small", "ViT: vit32_small", "ViT: vit32_small"]


def test_hooks_are_removed_after_an_error():
    model = small()
    with pytest.raises(InputError, match="64 x 64"):
        vitrail.describe(model, image_size=64)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert model.training


def test_another_image_size_of_a_model_that_takes_all():
    model = small(dynamic_size=True)
    assert rows(vitrail.describe(model, image_size=(32, 64)))["patch"]["MACs"] == 8 * 768 * 32


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: vitrail.describe("vit_smal_patch16"), ConfigError, "'vit_small_patch16'"),
        (lambda: vitrail.describe(3), ConfigError, "model"),
        (lambda: vitrail.describe(nn.Linear(2, 2)), ConfigError, "model"),
        (lambda: vitrail.describe("vit32_small", batch=0), ConfigError, r"batch.* 0"),
        (lambda: vitrail.describe("vit32_small", image_size=33), InputError, "33 x 33"),
        (lambda: vitrail.describe(small(), image_size=(1, 2, 3)), ConfigError, "image_size"),
    ],
)
def test_bad_input_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_one_image_that_ends_as_one_place_stands_for_a_batch():
    assert "ResNet" in str(vitrail.describe("resnet18", image_size=32))
