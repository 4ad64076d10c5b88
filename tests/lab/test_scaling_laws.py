import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from vitrail.lab import scaling_laws
from vitrail.lab.fitting import Fit
from vitrail.lab.scaling_laws import ScalingLaws, _fitted, _formula, _made, _split
from vitrail.lab.small_models import macs, small_vit
from vitrail.report import Text
from vitrail.report.charts_series import Series


def test_a_tiny_run_has_a_fit_for_each_axis() -> None:
    torch.manual_seed(0)
    settings = replace(
        ScalingLaws.quick, train=64, test=32, dims=(8, 12, 16, 24, 32), counts=(8, 16, 24, 32), depth=1, looks=2,
        how=Fit(steps=2, batch=16),
    )  # fmt: skip
    found = ScalingLaws().measure(settings, seed=0, device=torch.device("cpu"))
    assert [run["dim"] for run in found["widths"]] == [8, 12, 16, 24, 32]
    assert [run["images"] for run in found["counts"]] == [8, 16, 24, 32, 64]
    assert found["fits"].keys() == {"parameters", "images", "compute"}
    assert found["half"].keys() == {"parameters", "images"}
    losses = [look["loss"] for look in found["widths"][0]["looks"]]
    assert losses == sorted(losses, reverse=True)
    assert found["widths"][0]["looks"][-1]["compute"] == 3 * found["widths"][0]["macs"] * 2 * 16


def test_a_loss_that_depends_on_the_steps_decides_nothing() -> None:
    for case in (ScalingLaws().true_case(), ScalingLaws().false_case()):
        assert ScalingLaws().verdict([{**case[0], "half": {"parameters": 0.9, "images": 1.0}}]).outcome == "undecided"


def test_the_kept_back_size_is_predicted_from_the_others() -> None:
    x = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    found = _fitted(x, [*[0.5 + 2 / value for value in x[:-1]], 1.0])
    assert math.isclose(found["miss"], 0.5 + 2 / 32 - 1, abs_tol=1e-3)


def test_a_loss_that_rises_again_is_no_power_law() -> None:
    """A loss that falls by a tenth and is then flat would be met within 10 % by any law."""
    (made,) = ScalingLaws().true_case()
    losses = [1.1, 1.01, 1.0, 1.0, 1.01, 1.02, 1.03]
    runs = [{**run, "loss": loss} for run, loss in zip(made["widths"], losses, strict=True)]
    flat = {**made, "widths": runs, "fits": {**made["fits"], "parameters": _fitted(range(1, 8), losses)}}
    verdict = ScalingLaws().verdict([flat])
    assert verdict.outcome == "fails"
    assert "largest size has a lower loss than the one in the middle (parameters)" in verdict.text


def test_numbers_at_the_ends_of_the_fit_are_told() -> None:
    (made,) = ScalingLaws().true_case()
    ended = {**made, "fits": {**made["fits"], "images": made["fits"]["images"] | {"floor": 0.0}}}
    told = {check.text: check.status for check in ScalingLaws().verdict([ended]).checks if "end of what" in check.text}
    assert sorted(told.values()) == ["fails", "holds", "holds"]
    highest = {
        **made,
        "fits": {**made["fits"], "images": made["fits"]["images"] | {"floor": made["counts"][-1]["loss"]}},
    }
    told = {
        check.text: check.status for check in ScalingLaws().verdict([highest]).checks if "end of what" in check.text
    }
    assert sorted(told.values()) == ["fails", "holds", "holds"]


def test_the_best_width_for_each_budget() -> None:
    runs = [
        {"parameters": 10, "looks": [{"compute": 1.0, "loss": 1.0}, {"compute": 10.0, "loss": 0.9}]},
        {"parameters": 100, "looks": [{"compute": 1.0, "loss": 2.0}, {"compute": 100.0, "loss": 0.5}]},
    ]
    found = _split(runs)
    assert found["frontier"][0] == {"compute": 1.0, "loss": 1.0, "parameters": 10}
    assert math.isclose(found["frontier"][-1]["compute"], 100.0)
    assert found["frontier"][-1]["parameters"] == 100
    assert found["exponent"] > 0


def test_the_formula_of_the_source_has_a_twelfth_of_the_operations() -> None:
    """A block has 12 d^2 weights; two operations for each, three times (forward, two backward): 72 d^2 a token."""
    model = small_vit(dim=512, depth=6, patch=7, image_size=28, channels=1, num_classes=10)
    settings = replace(ScalingLaws.quick, depth=6)
    assert math.isclose(_formula(settings, 512, macs(model, (1, 28, 28)))["ratio"], 1 / 12, rel_tol=0.05)


def test_the_law_that_is_drawn_is_the_mean_of_the_laws_of_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Sequence[tuple[float, float]]] = {}

    def keep(title: str, lines: Sequence[Series], *_: object, **__: object) -> Text:
        drawn[title] = lines[-1].points
        return Text(title, "")

    monkeypatch.setattr(scaling_laws, "chart", keep)
    results = [_made(lambda x: 1 + (x / 1000) ** -0.5), _made(lambda x: 1 + (x / 1000) ** -2.5)]
    ScalingLaws().figures(results)
    size, loss = drawn["Loss by parameters"][-1]
    assert loss == pytest.approx(1 + ((size / 1000) ** -0.5 + (size / 1000) ** -2.5) / 2, rel=1e-3)
