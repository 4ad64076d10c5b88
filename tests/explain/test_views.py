"""Views of pictures from real models: answers, maps, scores, attention, and reasons where there is none."""

import warnings

import pytest
import torch
from support.made_views import gallery
from support.registered import image_size, one_of_each_design, option_sets, tiny
from support.small_tasks import as_task

from vitrail.data.preprocess import Preprocess
from vitrail.data.targets import NumbersTarget
from vitrail.errors import ConfigError, InputError, Notice, Unsupported
from vitrail.explain.methods.saliency import methods
from vitrail.explain.page.gallery import View
from vitrail.explain.page.render import gallery_page
from vitrail.explain.pictures import fitted_picture
from vitrail.explain.views import USUAL, picture_views
from vitrail.models.backbone import Backbone
from vitrail.tasks.regress import RegressConfig
from vitrail.tasks.task import Task


def explained(model: Backbone | Task, mask: torch.Tensor | None = None, **options: object) -> View:
    """A view of one random picture."""
    draw, task = torch.Generator().manual_seed(0), as_task(model)
    config = task.backbone.config
    image = torch.randint(0, 256, (config.channels, *config.image_size), generator=draw, dtype=torch.uint8)
    preprocess = Preprocess(image_size=config.image_size, channels=config.channels)
    picture = fitted_picture(image, preprocess, name="a.png")._replace(mask=mask)
    (view,) = picture_views(task, preprocess, [picture], model="tiny", **{"steps": 1, **options})  # type: ignore[arg-type]
    return view


def test_a_view_has_an_answer_maps_and_scores() -> None:
    view = explained(tiny(), methods=["relevance", "rollout"], target="3", top=2, scores="full")
    assert view.target == "3"
    assert 0 < view.score < 1
    assert len(view.bars) == 2
    assert view.bars[0].share >= view.bars[1].share
    assert view.answer == f"{view.bars[0].label} {view.bars[0].text}"
    assert list(view.maps) == ["relevance", "rollout"]
    assert all(values.shape == view.image.shape[1:] for values in view.maps.values())
    assert list(view.scores) == ["relevance", "rollout", "random", "centre"]
    assert all(0 <= score.insertion <= 1 and 0 <= score.deletion <= 1 for score in view.scores.values())
    assert view.untargeted == ["rollout"]
    assert all(-1 <= view.scores[name].shuffled < 0.999 for name in view.maps)  # they depend on the weights
    assert explained(tiny(), attention=False).layers == []


def test_scores_are_quick_by_default_and_left_out_on_request() -> None:
    quick = explained(tiny(), methods=["gradient"])
    assert all(score.shuffled is None for score in quick.scores.values())
    assert "--scores full" in quick.note
    none = explained(tiny(), methods=["gradient"], scores="none")
    assert none.scores == {}
    assert list(none.maps) == ["gradient"]


def test_a_regression_is_explained_by_the_number_that_is_named() -> None:
    torch.manual_seed(0)
    schema = {"numbers": NumbersTarget(names=("age", "height"))}
    task = RegressConfig().build(tiny(num_classes=2), schema)
    first, second = (explained(task, target=name, methods=["gradient"], steps=2) for name in (None, "height"))
    assert (first.target, second.target) == ("age", "height")
    assert [bar.label for bar in first.bars] == ["age", "height"]
    assert not torch.equal(first.maps["gradient"], second.maps["gradient"])
    assert all(0 < score.insertion < 1 for score in second.scores.values())
    assert "height" in gallery_page(gallery(second))
    with pytest.raises(ConfigError, match="did you mean 'height'"):
        explained(task, target="heigth")


def test_progress_says_what_is_being_done() -> None:
    reported: list[tuple[str, int, int]] = []
    explained(tiny(), methods=["gradient"], steps=3, progress=lambda *report: reported.append(report))
    texts = list(dict.fromkeys(text for text, _, _ in reported))
    assert texts == ["answer", "gradient", "attention", "insertion and deletion"]
    done = [count for _, count, _ in reported]
    assert done == sorted(done)
    assert reported[-1][1] == reported[-1][2] == 7  # one each, and two steps of two curves


DESIGNS = one_of_each_design()
NAMES = dict.fromkeys([*DESIGNS, *option_sets()])
MODELS = [pytest.param(name, marks=[] if name in DESIGNS else pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_can_be_explained_at_another_size(name: str) -> None:
    """Each set of options that some registered name has, at a size other than that which it is built for."""
    torch.manual_seed(0)
    model = tiny(name)
    other = image_size(model.config, (2, 3))
    assert other != model.config.image_size
    if name.startswith("mixer"):
        with pytest.raises(InputError, match="takes only"):
            model.resize(other)
        other = model.config.image_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # positions are resampled
        view = explained(model.resize(other))
    sensible = set(methods(model))
    assert list(view.maps) == [method for method in USUAL if method in sensible]
    assert {"grad_cam", "gradient"} <= set(view.maps)
    assert ("relevance" in view.maps) == (view.layers != [] and not view.missing)
    assert all(values.shape == other and values.isfinite().all() for values in view.maps.values())
    assert view.layers or view.missing.endswith(".")
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
        scores = explained(model, mask=mask, methods=["gradient"]).scores
        assert list(scores) == ["gradient", "random", "centre"]
        assert scores["centre"].pointing is inside
    highest = int(explained(model, methods=["gradient"]).maps["gradient"].argmax())
    mask = torch.zeros(model.config.image_size, dtype=torch.bool)
    mask.view(-1)[highest] = True
    scores = explained(model, mask=mask, methods=["gradient"]).scores
    assert [score.pointing for score in scores.values()] == [True, False, False]


def test_models_without_attention_say_why() -> None:
    view = explained(tiny("resnet50"))
    assert view.layers == []
    assert "ResNet has no attention" in view.missing
    assert "relevance" not in view.maps
    mixed = explained(tiny("xcit_nano_12_p16"))
    assert "mixes channels" in mixed.missing
    with pytest.raises(Unsupported, match="no attention"):
        explained(tiny("resnet50"), layers=[0])
    with pytest.raises(Unsupported, match="no attention"):
        explained(tiny("resnet50"), methods=["rollout"])


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="layer 9"):
        explained(tiny(), layers=[9])
    with pytest.raises(ConfigError, match="'cat'"):
        explained(tiny(), target="cat")
    with pytest.raises(ConfigError, match="did you mean 'rollout'"):
        explained(tiny(), methods=["rollot"])


def test_a_page_of_a_real_model() -> None:
    assert "How faithful the maps are" in gallery_page(gallery(explained(tiny())))
