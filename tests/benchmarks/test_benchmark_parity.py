"""The benchmark of parity: it names families, and ends with an error where a model is not its peer's."""

import json

import pytest
from parity.compare import Case, Outputs, ours
from support.benchmarks import benchmark as load_benchmark
from support.registered import tiny
from torch import Tensor, nn

import vitrail

benchmark = load_benchmark("parity")


def off_by(share: float):
    def run(model: nn.Module, images: Tensor) -> Outputs:
        found = ours(model, images)
        return found._replace(logits=found.logits * (1 + share))

    return run


@pytest.fixture
def cases(monkeypatch):
    """A peer that is ourselves: one case agrees, one is off by more than rounding explains."""

    def case(name: str, share: float) -> Case:
        return Case(name, "twin", lambda: tiny("vit_tiny_patch16"), vitrail.save, off_by(share), (24, 16))

    found = (case("vit", 1e-7), case("vit, another", 1e-3))
    monkeypatch.setattr(benchmark, "all_cases", lambda: found)
    for others in ("head_cases", "padded_cases", "at_usual_sizes"):
        monkeypatch.setattr(benchmark, others, tuple)


@pytest.mark.usefixtures("cases")
def test_a_model_that_is_another_ends_with_an_error(tmp_path):
    with pytest.raises(SystemExit, match=r"1 of 2 .*another"):
        benchmark.main(["--json", str(tmp_path / "parity.json")])
    good, bad = json.loads((tmp_path / "parity.json").read_text())["rows"]
    assert (good["family"], good["peer"], good["model"], good["image_size"]) == ("vit", "twin", "vit", "24x16")
    assert (good["logits"], bad["logits"]) == pytest.approx((1e-7, 1e-3), rel=1e-2)
    assert good["features"] == bad["features"] == 0


def test_a_model_that_is_the_peers_ends_well(capsys):
    benchmark.main(["--only", "dat_tiny"])
    told = capsys.readouterr().out
    assert "dat " in told
    assert "1 configurations, worst relative error" in told


@pytest.mark.usefixtures("cases")
def test_a_name_that_is_in_no_case_ends_with_an_error():
    with pytest.raises(SystemExit, match=r"resnet.*twin"):
        benchmark.main(["--only", "resnet"])


def test_an_answer_that_is_another_ends_with_an_error(monkeypatch, capsys):
    row = {"model": "DPT", "processor": "DPTImageProcessor", "input": "64x64", "photographs": 4, "grey_levels": 0.0}
    monkeypatch.setattr(benchmark, "measure_answers", lambda case: {**row, "depth": 1e-3})
    monkeypatch.setattr(benchmark, "photographs", lambda: {"china": None})
    with pytest.raises(SystemExit, match="DPT"):
        benchmark.main(["--only", "DPTImageProcessor"])
    assert "1.0e-03" in capsys.readouterr().out
