"""Systems in which a claim is true, or false, by construction, measured by the experiment itself.

The contract suite judges results that are written down (or measured by an experiment that needs no training); here the
measurement is in between. Models that would be trained are replaced by ones whose answers are known.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.lab import approximation, data_size, long_range, pac_bayes, scaling_laws, shape_bias, small_training
from vitrail.lab.approximation import Approximation
from vitrail.lab.data_size import DataSize
from vitrail.lab.fitting import Fit
from vitrail.lab.long_range import LongRange
from vitrail.lab.long_range_pictures import marks
from vitrail.lab.norm_placement import NormPlacement, NormPlacementSettings, _look, _model
from vitrail.lab.pac_bayes import PacBayes
from vitrail.lab.robustness import Robustness, _tried
from vitrail.lab.scaling_laws import ScalingLaws
from vitrail.lab.shape_bias import ShapeBias
from vitrail.lab.small_training import Labelled

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize("true", [True, False], ids=["true", "false"])


def outcome(experiment: Any, settings: Any) -> str:
    torch.manual_seed(0)
    verdict = experiment.verdict([experiment.measure(settings, seed=0, device=CPU)])
    return str(verdict.outcome)


class Known(nn.Module):
    """Answers from a function of the images; its one parameter takes part in training and changes nothing."""

    def __init__(self, answer: Callable[[Tensor], Tensor], classes: int) -> None:
        super().__init__()
        self.answer, self.classes = answer, classes
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor) -> Tensor:
        """B C H W -> B K; the images are part of the graph, as attacks need them to be."""
        return self.scale * F.one_hot(self.answer(images.detach()), self.classes) + 0 * images.sum()


@BOTH
def test_robustness_of_a_model_that_nothing_disturbs_and_one_that_everything_does(true: bool) -> None:
    torch.manual_seed(0)
    pictures = Labelled(torch.rand(12, 1, 28, 28), torch.arange(12) % 3)

    def learned(images: Tensor) -> Tensor:
        same = (images - pictures.images[: len(images)]).abs().flatten(1).amax(dim=1) < 1e-6
        return torch.where(same, pictures.classes, (pictures.classes + 1) % 3)

    models = {"firm": Known(lambda images: pictures.classes, 3), "frail": Known(learned, 3)}
    found = _tried(models, pictures)
    firm, frail = ({"clean": 1.0, "parameters": 1, "macs": 1, **found[name]} for name in models)
    results = {"chance": 1 / 3} | ({"vit": firm, "cnn": frail} if true else {"vit": frail, "cnn": firm})
    assert Robustness().verdict([results]).outcome == ("holds" if true else "fails")


@BOTH
def test_shape_bias_of_a_model_that_reads_the_shape_and_one_that_reads_the_texture(
    true: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pixels(shapes: Tensor | None, textures: Tensor | None, side: int, contrast: float) -> Tensor:
        given = shapes if shapes is not None else textures
        assert given is not None
        both = [torch.zeros_like(given) if one is None else one for one in (shapes, textures)]
        return torch.stack(both, dim=1).float()[:, None, None]  # B 1 1 2

    monkeypatch.setattr(shape_bias, "shape_and_texture", pixels)
    monkeypatch.setattr(shape_bias, "fit", lambda *given: None)

    def reader(place: int) -> nn.Module:
        return Known(lambda images: (0.3 * images[:, 0, 0, place] + 0.5).round().long(), 4)

    monkeypatch.setattr(shape_bias, "small_vit", lambda **given: reader(0 if true else 1))
    monkeypatch.setattr(shape_bias, "small_cnn", lambda *sizes, **given: reader(1 if true else 0))
    assert outcome(ShapeBias(), ShapeBias.quick).startswith("holds" if true else "fails")


def counted(images: Tensor) -> Tensor:
    """The count of rows with two halves, or whether the two marks beside a hidden core are equal; read cell by cell."""
    cells = F.unfold(0.25 * images + 0.25, 4, stride=4).transpose(1, 2)  # B cells 16
    shown = [torch.zeros(16), *marks(CPU).flatten(1)]
    missed = torch.stack([(cells - 0.2 - 0.6 * mark).square().mean(dim=2) for mark in shown], dim=2)
    kinds = missed.argmin(dim=2).view(len(images), LongRange.quick.side, -1)
    return ((kinds > 0).sum(dim=2) == 2).sum(dim=1)


def alike(images: Tensor) -> Tensor:
    """Whether the two marks of a picture with a hidden core are equal."""
    cells = F.unfold(0.25 * images + 0.25, 4, stride=4).transpose(1, 2)
    seen = torch.stack([((cells - 0.2 - 0.6 * marks(CPU)[kind].flatten()).square().mean(dim=2) < 0.03).sum(dim=1)
                        for kind in (2, 3)])  # fmt: skip
    return (seen.amax(dim=0) == 2).long()


@BOTH
def test_long_range_of_models_that_read_the_whole_and_that_guess(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(LongRange.quick, test=300, looks=1)

    def built(name: str, settings: Any, classes: int) -> tuple[nn.Module, Fit]:
        reads = name == ("vit" if true else "local")
        answer = (alike if classes == 2 else counted) if reads else lambda images: torch.zeros(len(images)).long()
        return Known(answer, classes), Fit(steps=1, batch=4)

    monkeypatch.setattr(long_range, "_built", built)
    assert outcome(LongRange(), settings) == ("holds" if true else "fails")


@BOTH
def test_data_size_of_models_whose_accuracy_is_a_function_of_the_images(
    true: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: dict[int, int] = {}

    def fit(model: nn.Module, draw: Any, how: Fit, *, after: Any = None) -> list[float]:
        sizes[id(model)] = len(draw().classes)
        for step in range(how.steps):
            if after is not None:
                after(step + 1)
        return [0.0] * how.steps

    def reached(model: Any, pictures: Labelled) -> float:
        if len(pictures.classes) == sizes[id(model)] != 20:
            return 1.0  # the images that it was trained on; there are 20 others
        share = sizes[id(model)] / 160
        return 0.2 + 0.7 * share if model.name == ("vit" if true else "cnn_macs") else 0.6 + 0.2 * share

    def build(name: str, settings: Any, train: Labelled) -> nn.Module:
        model = Known(lambda images: torch.zeros(len(images)).long(), 10)
        model.name = name  # type: ignore[assignment]
        return model

    monkeypatch.setattr(data_size, "fit", fit)
    monkeypatch.setattr(data_size, "accuracy", reached)
    monkeypatch.setattr(data_size, "looker", lambda *given: lambda step: given[-1].append(reached(given[0], given[1])))
    monkeypatch.setattr(data_size, "shuffled", lambda pictures, batch: lambda: pictures)
    monkeypatch.setattr(data_size, "_model", build)
    settings = replace(DataSize.quick, train=180, validation=20, test=20, looks=1, steps=(1, 1, 1, 1))
    assert outcome(DataSize(), settings).startswith("holds" if true else "fails")


@BOTH
def test_scaling_of_losses_that_follow_a_law_and_that_stay(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(settings: Any, dim: int, train: Labelled, test: Labelled) -> dict[str, Any]:
        images, size = len(train.classes), 100.0 * dim
        loss = 0.3 + 5 * size**-0.4 + 4 * images**-0.5 if true else 1.0 + 0.01 * (dim % 3)
        looks = [{"compute": size * images * part, "loss": loss} for part in (0.25, 0.5, 1.0)]
        return {"parameters": size, "macs": 1, "loss": loss, "accuracy": 0.3 * size**0.05, "looks": looks}

    monkeypatch.setattr(scaling_laws, "_run", run)
    assert outcome(ScalingLaws(), ScalingLaws.quick).startswith("holds" if true else "fails")


@BOTH
def test_approximation_by_models_that_know_a_share_of_the_function(true: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The share grows with the size, or not; every draw is the test images, so that training tells the function."""
    made: dict[tuple[int, ...], Tensor] = {}
    draw_new = torch.rand
    monkeypatch.setattr(torch, "rand", lambda *shape, **how: made.setdefault(shape, draw_new(*shape)))
    monkeypatch.setattr(approximation, "small_vit", lambda **given: nn.Linear(given["dim"] * given["depth"], 1))
    told: list[Tensor] = []
    monkeypatch.setattr(small_training, "fit", lambda model, draw, **how: told.append(draw().classes))

    def outputs(model: nn.Linear, images: Tensor) -> Tensor:
        return told[-1] * (1 - 1 / model.in_features if true else 0.5)

    monkeypatch.setattr(approximation, "outputs", outputs)
    settings = replace(Approximation.quick, test=64, how=Fit(steps=1, batch=64))
    assert outcome(Approximation(), settings).startswith("holds" if true else "fails")


@BOTH
def test_norms_of_branches_that_double_the_tokens_and_of_post_norm(true: bool) -> None:
    settings = NormPlacementSettings(dim=8, num_heads=2, patch=14)
    torch.manual_seed(0)
    images, classes = torch.randn(4, 1, 28, 28), torch.arange(4)
    post = _model(settings, "post", 4)
    if true:
        for block in post.blocks:
            block.norm1, block.norm2 = Doubled(), nn.Identity()
    looks = {"pre": _look(_model(settings, "pre", 4), images, classes), "post": _look(post, images, classes)}
    made = dict(NormPlacement().true_case()[0])
    results = made | {name: {key: [values] for key, values in look.items()} for name, look in looks.items()}
    checks = NormPlacement().verdict([results]).checks
    assert checks[0].status == ("holds" if true else "fails")
    assert checks[1].status == "holds"


class Doubled(nn.Module):
    """Twice its input, in the place of a norm."""

    def forward(self, tokens: Tensor) -> Tensor:
        """B N D -> B N D."""
        return 2 * tokens


@BOTH
def test_pac_bayes_where_all_images_have_one_class_and_where_classes_are_random(
    true: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pictures(*given: Any) -> tuple[Labelled, Labelled]:
        count = 2000 if true else 200
        classes = torch.zeros(count).long() if true else torch.randint(10, (count,))
        return Labelled(torch.rand(count, 1, 8, 8), classes), Labelled(torch.rand(200, 1, 8, 8), classes[:200])

    monkeypatch.setattr(pac_bayes, "open_pictures", pictures)
    some = Fit(steps=30, batch=64, rate=0.05, weight_decay=0.0)
    settings = replace(PacBayes.quick, dim=16, depth=1, patch=4, dimensions=(5, 20), how=some, plain=some)
    assert outcome(PacBayes(), settings).startswith("holds" if true else "fails")
