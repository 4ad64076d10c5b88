"""A head that is fitted at once: scikit-learn's solution, the task's own loss, cached features, a whole run."""

import json
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from support.registered import tiny
from support.small_data import clouds, photos, split
from torch import nn

import vitrail
from vitrail.data.targets import ClassTarget, LabelsTarget, NumbersTarget
from vitrail.errors import ConfigError, HeadNotice, Unsupported
from vitrail.models.registry import create
from vitrail.packaged import PHOTOS
from vitrail.tasks.classify import ClassifyConfig
from vitrail.tasks.regress import RegressConfig
from vitrail.training import linear_head
from vitrail.training.linear_head import PENALTIES, Known, fit_head
from vitrail.training.run import train

FOUR = ClassTarget(classes=("a", "b", "c", "d"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))


def task_on(width: int, config=None, target=FOUR, outputs: int = 4):
    """A task whose model has a head for features of a width."""
    model = tiny(num_classes=outputs)
    model.head = nn.Linear(width, outputs)
    return (config or ClassifyConfig()).build(model, {target.field: target})


def test_it_is_logistic_regression_with_the_penalty_that_folds_choose() -> None:
    (x, y), (new, _) = clouds(300, seed=0), clouds(100, seed=1)
    task = task_on(x.shape[1])
    penalty, mirrored, losses, width = fit_head(task, Known(x, {"label": y}))
    assert width == x.shape[1]
    assert penalty in PENALTIES
    assert not mirrored
    assert all(0 < loss < 1 for loss in losses)
    scaler = StandardScaler().fit(x.double().numpy())
    peer = LogisticRegression(C=1 / (penalty * 300), tol=1e-8, max_iter=2000)
    peer.fit(scaler.transform(x.double().numpy()), y.numpy())
    theirs = peer.predict_proba(scaler.transform(new.double().numpy()))
    ours = task.backbone.head(new).softmax(dim=1).detach().numpy()
    assert ours == pytest.approx(theirs, abs=2e-3)


def test_the_loss_is_that_of_the_task() -> None:
    """Weights of rare classes, several labels, and numbers: whatever the task minimises."""
    x, y = clouds(300, seed=0)
    rare = torch.cat([torch.where(y != 3)[0], torch.where(y == 3)[0][:3]])
    counts = []
    for weights in ("none", "inverse"):
        task = task_on(x.shape[1], ClassifyConfig(class_weights=weights))
        task.fit({"label": y[rare]})
        fit_head(task, Known(x[rare], {"label": y[rare]}))
        counts.append(int((task.backbone.head(x).argmax(dim=1) == 3).sum()))
    assert counts[1] > counts[0]
    labels = task_on(x.shape[1], target=LabelsTarget(classes=FOUR.classes))
    fit_head(labels, Known(x, {"labels": nn.functional.one_hot(y, 4).float()}))
    assert (labels.backbone.head(x).argmax(dim=1) == y).float().mean() > 0.8
    truth = x[:, :1] * 3 + 5
    numbers = task_on(x.shape[1], RegressConfig(), NumbersTarget(names=("depth",)), 1)
    numbers.fit({numbers.field: truth})
    fit_head(numbers, Known(x, {numbers.field: truth}))
    found = numbers.backbone.head(x) * numbers.std + numbers.mean
    assert (found - truth).abs().mean() < 0.2


def test_mirrored_images_are_learned_from_where_folds_say_so() -> None:
    """Two draws of the same clouds help as more images do; those with wrong labels do not."""
    (x, y), (more, same) = clouds(60, seed=0), clouds(60, seed=1)
    order = torch.cat([torch.where(same == label)[0] for label in range(4)])
    rows = torch.cat([torch.where(y == label)[0] for label in range(4)])
    count = min(len(rows), len(order))
    known = Known(x[rows[:count]], {"label": y[rows[:count]]})
    useful = Known(more[order[:count]], {"label": same[order[:count]]})
    wrong = Known(more[order[:count]], {"label": (same[order[:count]] + 1) % 4})
    assert fit_head(task_on(x.shape[1]), known, useful).mirrored
    assert not fit_head(task_on(x.shape[1]), known, wrong).mirrored


@pytest.mark.parametrize("useful", [True, False])
def test_cells_of_the_image_are_read_where_folds_say_so(useful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = clouds(120, seed=0)
    cells = x if useful else torch.randn(len(x), 40, generator=torch.Generator().manual_seed(0))
    means = torch.randn(len(x), 3, generator=torch.Generator().manual_seed(1)) if useful else x
    task = task_on(means.shape[1] + cells.shape[1])
    monkeypatch.setattr(type(task.backbone), "width_of_means", means.shape[1])
    fit = fit_head(task, Known(torch.cat([means, cells], dim=1), {"label": y}))
    assert fit.width == (means.shape[1] + cells.shape[1] if useful else means.shape[1])
    assert bool(task.backbone.head.weight[:, means.shape[1] :].any()) is useful
    assert str(fit.width) in str(fit)


def test_images_of_a_group_are_in_one_fold() -> None:
    """Ten almost equal images of each thing, whose label is chance: only folds of whole groups see that it is."""
    torch.manual_seed(0)
    things, labels = torch.randn(30, 8), torch.randint(4, (30,))
    x = (things[:, None] + 0.01 * torch.randn(30, 10, 8)).flatten(0, 1)
    known, groups = Known(x, {"label": labels.repeat_interleave(10)}), [str(index // 10) for index in range(300)]
    apart, together = fit_head(task_on(8), known, groups=groups), fit_head(task_on(8), known)
    assert apart.penalty > together.penalty
    assert sum(apart.losses) > sum(together.losses)
    few = fit_head(task_on(8), known, groups=["one"] * 150 + ["two"] * 150)  # fewer than folds
    assert few == together


def test_folds_of_groups_are_about_equal() -> None:
    def sizes(groups: list[str]) -> list[int]:
        fold = linear_head._folds(len(groups), groups)
        assert all(len({int(fold[at]) for at, name in enumerate(groups) if name == one}) == 1 for one in set(groups))
        return sorted(torch.bincount(fold, minlength=3).tolist())

    assert sizes(["a"] * 96 + ["b", "c", "d", "e"]) == [2, 2, 96]
    assert sizes([str(number % 30) for number in range(300)]) == [100, 100, 100]


def test_an_unlike_image_gets_no_absurd_answer_from_a_feature_that_hardly_ever_differs() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(200, 20), torch.randn(200, 1)
    x[:, 7] = 1e-4 * y[:, 0] + 1e-4 * torch.randn(200)  # goes with the truth, but varies by nothing
    task = task_on(20, RegressConfig(), NumbersTarget(names=("depth",)), 1)
    task.fit({task.field: y})
    fit_head(task, Known(x, {task.field: y}))
    unlike = torch.zeros(1, 20)
    unlike[0, 7] = 1.0  # as far as other features go
    assert task.backbone.head(unlike).abs().item() < 40


def test_a_constant_feature_has_no_weight_and_a_few_images_are_enough() -> None:
    x, y = clouds(5, seed=0)
    x[:, 1] = 7.0
    task = task_on(x.shape[1])
    fit_head(task, Known(x, {"label": y}))
    assert task.backbone.head.weight[:, 1].abs().max() == 0
    assert task.backbone.head.weight.isfinite().all()


def test_a_run_is_fitted_in_one_pass_and_used_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(num_classes=0)
    vitrail.save(model, tmp_path / "weights")
    data = split(photos(60, size=16), val=12, test=20)
    run = train(data, start=tmp_path / "weights", probe="linear", folder=tmp_path / "run", device="cpu", silent=True)
    assert {"read features", "fit the head", "validate", "save"} <= run.seconds.keys()
    assert run.metrics["test_accuracy"] > 0.9
    assert run.best_epoch == 1
    assert run.report().is_file()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["recipe"]["probe"] == "linear"
    body = {name: tensor for name, tensor in run.backbone.state_dict().items() if not name.startswith("head.")}
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in body.items())
    again = vitrail.open(tmp_path / "run", device="cpu")
    assert again.evaluate(data.test).metrics["accuracy"] == run.metrics["test_accuracy"]
    # The second time no image passes through the model to be learned from.
    monkeypatch.setattr(linear_head, "make_feed", None)
    second = train(data, start=tmp_path / "weights", probe="linear", folder=tmp_path / "two", device="cpu", silent=True)
    assert second.metrics == run.metrics


def test_a_run_reads_mirrored_images_where_the_recipe_flips(tmp_path: Path) -> None:
    vitrail.save(tiny(num_classes=0), tmp_path / "weights")
    options = {"start": tmp_path / "weights", "probe": "linear", "device": "cpu", "silent": True}
    run = train(split(photos(60, size=16), val=12), folder=tmp_path / "run", augment={"flip": True}, **options)
    assert len(list((tmp_path / "cache" / "features").glob("*.safetensors"))) == 2
    assert run.metrics["accuracy"] > 0.9


def test_fine_tuning_starts_from_a_fitted_head(tmp_path: Path) -> None:
    vitrail.save(tiny(num_classes=0), tmp_path / "weights")
    data, options = split(photos(60, size=16), val=12), {"epochs": 1, "optimiser": {"lr": 1e-9}, "ema": None}
    changes = {"start": tmp_path / "weights", "device": "cpu", "silent": True, **options}
    fitted = train(data, fit_head=True, folder=tmp_path / "fitted", **changes)
    assert {"read features", "fit the head"} <= fitted.seconds.keys()
    plain = train(data, folder=tmp_path / "plain", **changes)
    assert fitted.metrics["accuracy"] > 0.9 > plain.metrics["accuracy"]


def test_without_weights_those_of_the_package_are_probed(tmp_path: Path) -> None:
    with pytest.warns(HeadNotice, match="replaced"):
        run = train(split(photos(40)), probe="linear", folder=tmp_path / "run", device="cpu", silent=True)
    assert run.plan.start == "packaged"
    assert run.plan.config.freeze_until == "head"


def test_what_cannot_be_probed_is_refused(tmp_path: Path) -> None:
    model = create("deit_tiny_distilled_patch16", image_size=16, dim=32, depth=1, num_heads=2, num_classes=2)
    target = ClassTarget(classes=("a", "b"))
    with pytest.raises(Unsupported, match="linear head"):
        fit_head(ClassifyConfig().build(model, {"label": target}), Known(torch.randn(8, 32), {}))
    with pytest.raises(ConfigError, match="probe"):
        train(split(photos(40)), probe="tree", folder=tmp_path / "run", silent=True)
    with pytest.raises(ConfigError, match="class_weights"):
        train(
            split(photos(40)), start=PHOTOS, probe="linear", sampling="balanced", folder=tmp_path / "run", silent=True
        )
