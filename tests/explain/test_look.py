"""What a page is made of, from real models: attention in cells, maps, scores, and sentences where there is none."""

import warnings

import pytest
import torch
from registered import image_size, option_sets, pictures, tiny

from vitrail.errors import ConfigError, InputError, Notice, Unsupported
from vitrail.explain.capture import capture
from vitrail.explain.look import MOST_CELLS, USUAL, attended, look, prefix_names
from vitrail.explain.page import gallery_page
from vitrail.explain.pictures import picture
from vitrail.explain.saliency import methods
from vitrail.tasks.predict import as_task


def seen_by(model, mask=None, **options):
    """A view of one random picture."""
    draw = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (model.config.channels, *model.config.image_size), generator=draw, dtype=torch.uint8)
    task = as_task(model)
    one = picture(image, model.config, name="a.png")._replace(mask=mask)
    (view,) = look(task, lambda images: images / 255, [one], model="tiny", **{"steps": 1, **options})
    return view


def test_attention_is_that_of_the_layers() -> None:
    model = tiny(image_size=(24, 16), registers=1)
    images = pictures(model, batch=1)
    layers, why = attended(model, images)
    assert why == ""
    with capture(model) as seen, torch.no_grad():
        model(images)
    for layer in layers:
        assert layer.step == 1
        assert layer.grid == seen.grid[layer.number] == (3, 2)
        assert layer.prefix == ("class token", "register 1")
        assert torch.allclose(layer.weights.float(), seen.attention[layer.number][0], atol=1e-3)
    assert [layer.number for layer in attended(model, images, [-1])[0]] == [1]


def test_fine_grids_are_shown_in_cells() -> None:
    model = tiny(image_size=(8 * 18, 8 * 20), depth=1)
    images = pictures(model, batch=1)
    (layer,), _ = attended(model, images)
    assert (layer.grid, layer.step, layer.cells) == ((18, 20), 2, (9, 10))
    assert max(layer.cells) <= MOST_CELLS
    assert torch.allclose(layer.weights.float().sum(dim=-1), torch.ones(2, 91), atol=2e-3)
    with capture(model) as seen, torch.no_grad():
        model(images)
    whole = seen.attention[0][0, :, 1:, 1:].view(2, 9, 2, 10, 2, 9, 2, 10, 2)  # A, queries, keys
    cells = whole.mean(dim=(2, 4)).sum(dim=(4, 6)).reshape(2, 90, 90)
    assert torch.allclose(layer.weights[:, 1:, 1:].float(), cells, atol=1e-3)


def test_a_view_has_answers_maps_and_scores() -> None:
    view = seen_by(tiny(), methods=["relevance", "rollout"], target="3", top=2)
    assert view.target == "3"
    assert len(view.answers) == 2
    assert view.answers[0][1] >= view.answers[1][1]
    assert list(view.maps) == ["relevance", "rollout"]
    assert all(found.shape == view.image.shape[1:] for found in view.maps.values())
    assert list(view.scores) == ["relevance", "rollout", "random", "centre"]
    assert [score.baseline for score in view.scores.values()] == [False, False, True, True]
    assert all(0 <= score.insertion <= 1 and 0 <= score.deletion <= 1 for score in view.scores.values())
    assert view.classless == ["rollout"]
    shuffled = {name: score.shuffled for name, score in view.scores.items()}
    assert shuffled["random"] == shuffled["centre"] == 1
    assert all(-1 <= shuffled[name] < 0.999 for name in view.maps)  # weights decide what these show
    assert all(score.pointing is None for score in view.scores.values())
    assert seen_by(tiny(), attention=False).layers == []


@pytest.mark.parametrize("name", option_sets())
def test_every_model_can_be_looked_at_at_another_size(name: str) -> None:
    """Each set of options that some registered name has, at a size other than that which it is built for."""
    torch.manual_seed(0)
    model = tiny(name)
    other = image_size(model.config, (2, 3))
    assert other != model.config.image_size
    if name.startswith("mixer"):
        with pytest.raises(InputError, match="takes the size that it is built for alone"):
            model.resize(other)
        other = model.config.image_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # positions are resampled
        view = seen_by(model.resize(other))
    sensible = set(methods(model))
    assert list(view.maps) == [method for method in USUAL if method in sensible]
    assert {"grad_cam", "gradient"} <= set(view.maps)
    assert ("relevance" in view.maps) == (view.layers != [] and not view.why)
    assert all(found.shape == other and found.isfinite().all() for found in view.maps.values())
    assert view.layers or view.why.endswith(".")
    for layer in view.layers:
        rows = len(layer.prefix) + layer.cells[0] * layer.cells[1]
        assert layer.weights.shape[1:] == (rows, rows)
        sums = layer.weights.float().sum(dim=-1)  # less than 1 where a window looks at padding
        assert 0 < sums.min() <= sums.max() < 1.005


def test_a_mask_says_whether_the_highest_point_is_on_the_object() -> None:
    model = tiny()
    for inside in (True, False):
        mask = torch.full(model.config.image_size, not inside)
        mask[8:16, 4:12] = inside  # the middle of 24 x 16 pixels
        scores = seen_by(model, mask=mask, methods=["gradient"]).scores
        assert list(scores) == ["gradient", "random", "centre"]
        assert scores["centre"].pointing is inside
    highest = int(seen_by(model, methods=["gradient"]).maps["gradient"].argmax())
    mask = torch.zeros(model.config.image_size, dtype=torch.bool)
    mask.view(-1)[highest] = True
    scores = seen_by(model, mask=mask, methods=["gradient"]).scores
    assert [score.pointing for score in scores.values()] == [True, False, False]


def test_models_without_attention_say_why() -> None:
    view = seen_by(tiny("resnet50"))
    assert view.layers == []
    assert view.why == "ResNet has no attention to look at. Methods that need no attention are shown."
    assert "relevance" not in view.maps
    mixed = seen_by(tiny("xcit_nano_12_p16"))
    assert "mixes channels, not tokens" in mixed.why
    with pytest.raises(Unsupported, match="no attention to look at"):
        seen_by(tiny("resnet50"), layers=[0])
    with pytest.raises(Unsupported, match="no attention"):
        seen_by(tiny("resnet50"), methods=["rollout"])


def test_what_does_not_exist_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="layer 9 does not exist; there are 2 attention layers"):
        seen_by(tiny(), layers=[9])
    with pytest.raises(ConfigError, match="there is no class 'cat'"):
        seen_by(tiny(), target="cat")
    with pytest.raises(ConfigError, match="did you mean 'rollout'"):
        seen_by(tiny(), methods=["rollot"])


def test_prefix_tokens_have_names() -> None:
    assert prefix_names(tiny(), 1) == ("class token",)
    assert prefix_names(tiny("deit_tiny_distilled_patch16"), 2) == ("class token", "distillation token")
    assert prefix_names(tiny(class_token=False, pool="mean", registers=2), 2) == ("register 1", "register 2")


def test_a_page_of_a_real_model() -> None:
    from made_views import gallery

    assert "How true the maps are" in gallery_page(gallery(seen_by(tiny())))
