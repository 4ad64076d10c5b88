"""Swin and Swin v2: published sizes, shifted windows, other image sizes, and initialisation."""

import warnings

import pytest
import torch
from support.published import Published, check_published, sizes
from support.registered import pictures, tiny

import vitrail
from vitrail.config import apply
from vitrail.errors import ConfigError, InputError, ResampledNotice
from vitrail.layers.attention import Site, WindowAttention
from vitrail.models.registry import resolve

# Parameters and multiply-accumulates by timm's table of results (results-imagenet.csv and model cards); the papers
# round them to 28 M and 4.5 G and so on.
PUBLISHED = {
    "swin_tiny_patch4_window7": Published(28.29, 4.51, "timm"),
    "swin_small_patch4_window7": Published(49.61, 8.77, "timm"),
    "swin_base_patch4_window7": Published(87.77, 15.47, "timm"),
    "swin_base_patch4_window12": Published(87.90, 47.19, "timm"),
    "swinv2_tiny_window8": Published(28.35, 5.96, "timm"),
    "swinv2_tiny_window16": Published(28.35, 6.68, "timm"),
    "swinv2_base_window12to16_192to256": Published(87.92, 22.02, "timm"),
    "swinv2_base_window12to24_192to384": Published(87.92, 55.25, "timm"),
}


@sizes(PUBLISHED)
def test_sizes_are_the_published_ones(name):
    check_published(name, PUBLISHED[name])


def test_every_preset_has_a_published_size():
    assert set(PUBLISHED) == set(vitrail.list_models("swin*"))


def test_blocks_shift_in_turn_but_not_where_one_window_is_all():
    with torch.device("meta"):
        model = vitrail.create("swin_tiny_patch4_window7")
    grids = model.config.grids((224, 224))
    assert grids == ((56, 56), (28, 28), (14, 14), (7, 7))
    shifts = [
        [block.attention.windows(grid).shift for block in stage.blocks]
        for stage, grid in zip(model.stages, grids, strict=True)
    ]
    assert shifts == [[(0, 0), (3, 3)], [(0, 0), (3, 3)], [(0, 0), (3, 3)] * 3, [(0, 0), (0, 0)]]


def test_odd_grids_are_padded_when_merged():
    _, config = resolve("swin_tiny_patch4_window7")
    assert config.grids((200, 232)) == ((50, 58), (25, 29), (13, 15), (7, 8))
    model = tiny("swin_tiny_patch4_window7")
    features = model.features(torch.randn(1, 3, 200, 232))
    assert [level.shape[2:] for level in features.pyramid] == [(25, 29), (13, 15), (7, 8), (4, 4)]


def test_an_image_that_patches_do_not_fill_is_refused():
    with pytest.raises(InputError, match=r"226 x 224 .* 224 x 224"):
        tiny("swin_tiny_patch4_window7", patch={"size": 4})(torch.randn(1, 3, 226, 224))


def test_tables_are_resampled_where_windows_change_and_then_alone():
    # Patches of 8 pixels: grids of 56, 28, 14, 7.
    model = tiny("swin_tiny_patch4_window7", image_size=(448, 448), attention={"size": 7})
    tables = {name: p.clone() for name, p in model.named_parameters() if name.endswith("table")}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.resize((512, 576))  # every window stays 7 x 7
    assert all(torch.equal(tables[name], dict(model.named_parameters())[name]) for name in tables)
    with pytest.warns(ResampledNotice, match=r"512 x 576 .*448 x 384"):
        model.resize((448, 384))  # 7 x 6 in the last stage
    assert [stage.blocks[0].attention.relative.window for stage in model.stages] == [(7, 7)] * 3 + [(7, 6)]


def test_version_two_moves_to_another_size_without_resampling():
    model = tiny("swinv2_tiny_window8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.resize((64, 160))
    assert model(pictures(model)).shape == (2, 5)


def test_version_two_keeps_its_biases_where_windows_change(tmp_path):
    model = tiny("swinv2_tiny_window8", image_size=(128, 128), attention={"size": 4})  # 16, 8, 4, 2: the last is cut
    images = torch.randn(1, 3, 64, 192)
    expected = model(images)
    model.resize((64, 192))
    assert model.config.trained_windows == ((4, 4), (4, 4), (4, 4), (2, 2))
    torch.testing.assert_close(model(images), expected)
    vitrail.save(model, tmp_path)
    torch.testing.assert_close(vitrail.load(tmp_path)(images), expected)
    assert model.resize((128, 128)).config.trained_windows == ((4, 4), (4, 4), (4, 4), (2, 2))


def test_version_two_has_one_trained_window_a_stage():
    with pytest.raises(ConfigError, match=r"trained_windows.* 2 .*depths"):
        vitrail.create("swinv2_tiny_window8", trained_windows=(8, 8))


def test_version_two_begins_with_branches_that_do_nothing():
    model = vitrail.create("swinv2_tiny_window8", dims=(8, 16, 24, 32), num_heads=(1, 2, 2, 4), image_size=64)
    images = torch.randn(1, 3, 64, 64)
    first = model.intermediates(images, layers=[0, 1])
    assert torch.equal(first[0].patches, first[1].patches)
    torch.testing.assert_close(first[0].pyramid[0], model.stem(images))


def test_any_attention_stands_in_the_stages():
    model = tiny("swin_tiny_patch4_window7", attention="softmax")
    assert not any(isinstance(module, WindowAttention) for module in model.modules())
    assert model(pictures(model)).shape == (2, 5)


def far(name, **options):
    """Whether patches farther apart than a window attend to each other: a grid of 16 x 16, shifted windows of 7."""
    config = apply(resolve(name)[1].attention, {"size": 7} | options)
    attention = config.build(Site(dim=8, num_heads=1, grid=(16, 16), block=1))
    assert attention.windows((16, 16)).shift == (3, 3)
    places = torch.cartesian_prod(torch.arange(16), torch.arange(16))
    apart = (places[:, None] - places).abs().amax(dim=2) >= 7
    return bool((attention.weights(torch.randn(1, 256, 8), (16, 16))[0, 0][apart] > 0).any())


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7", "swinv2_tiny_window8"])
def test_opposite_edges_of_the_image_do_not_meet(name):
    assert not far(name)
    assert far(name, padding="after_shift")  # as in timm's


def test_attention_maps_on_grids_that_windows_do_not_fill():
    tokens, grid = torch.randn(1, 80, 16), (8, 10)
    masked = tiny("swin_tiny_patch4_window7", attention={"size": 7}).stages[0].blocks[0].attention
    torch.testing.assert_close(masked.weights(tokens, grid).sum(dim=-1), torch.ones(1, 1, 80))
    seen = tiny("swin_tiny_patch4_window7", attention={"size": 7, "padding": "after_shift"}).stages[0].blocks[0]
    assert seen.attention.weights(tokens, grid)[0, 0, -1].sum() < 1


def test_heads_must_be_one_number_a_stage():
    with pytest.raises(ConfigError, match=r"num_heads.* 2 .*depths"):
        vitrail.create("swin_tiny_patch4_window7", num_heads=(1, 2))


@pytest.mark.slow  # the layer alone does so in its own tests, shifted and padded, and a model of each in the contract
@pytest.mark.parametrize(
    ("name", "size"), [("swin_tiny_patch4_window7", (64, 64)), ("swinv2_tiny_window8", (40, 56))], ids=str
)
def test_shifted_windows_compile_and_export(name, size):
    model = tiny(name, image_size=size, attention={"size": 3}, dims=(16,), depths=(2,), num_heads=(1,))
    images = pictures(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(images), model(images))
    program = torch.export.export(model, (images,), dynamic_shapes={"images": {0: torch.export.Dim("batch")}}).module()
    three = pictures(model, 3)
    torch.testing.assert_close(program(three), model(three), atol=1e-5, rtol=1e-5)
