"""Advice for data on disk, from Python and from the command line."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.annotated import voc
from support.compared_runs import labelled
from support.task_data import numbers_table

import vitrail
from vitrail.advice.findings import BEARING
from vitrail.cli import main
from vitrail.data.sources.opening import find
from vitrail.errors import ConfigError, DataError
from vitrail.lab import EXPERIMENTS
from vitrail.lab.records import Record, Run, published, write_record
from vitrail.training import first_try
from vitrail.training.plan import make_plan

TABLE = first_try.measured()


@pytest.fixture(autouse=True)
def _measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_try, "measured", lambda: TABLE)  # other tests train without it


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory.mktemp("data") / "photos")


def test_a_named_machine_is_not_measured(photos: Path) -> None:
    found = vitrail.advise(photos, device="epyc")
    assert found.choice is not None
    assert found.device == "epyc"
    assert found.choice.latency is not None
    assert found.choice.candidate.name == "default"
    assert found.commands[0] == f"vitrail train {photos} --out runs/advised"


def test_a_gpu_of_the_rows(photos: Path) -> None:
    found = vitrail.advise(photos, device="h200", latency=20, minutes=5)
    assert found.choice is not None
    assert found.choice.candidate.name == "default"
    said = " ".join(one.text for one in found.sentences)
    assert "(limit 20 ms)" in said
    assert "for fewer images it is too little" in said
    assert "96 x 96 and 11 ms at 256 x 256" in said
    assert "engines and int8 were not measured for a GPU" in said
    assert {row.values["device"] for one in found.sentences for row in one.rows if row.kind == "training"} == {"cuda"}
    (unknown,) = (one for one in found.ranked if one.candidate.network == "packaged-photos@64")
    assert "not measured on such a device" in unknown.too_much[0]
    quick = vitrail.advise(photos, device="h200", latency=8)
    assert quick.choice is not None
    assert quick.choice.candidate.name == "demo"
    assert not quick.choice.timed
    said = " ".join(one.text for one in quick.sentences)
    assert "do not count on it" in said
    assert "Training time: not measured on such a device" in said
    assert "see --device epyc" in said
    none = vitrail.advise(photos, device="h200", latency=2)
    assert none.choice is None
    assert "smaller images (" not in none.sentences[0].text  # they are not faster there
    assert any("launches" in one.text for one in none.sentences)


def test_a_latency_that_only_a_small_network_keeps(photos: Path) -> None:
    found = vitrail.advise(photos, device="epyc", latency=2.0)
    assert found.choice is not None
    assert found.choice.candidate.name == "demo"
    assert vitrail.advise(photos, device="epyc", latency=0.01).choice is None


def test_a_task_that_was_not_measured_says_so(tmp_path: Path) -> None:
    found = vitrail.advise(numbers_table(tmp_path, count=24), device="epyc")
    assert found.choice is not None
    outside = " ".join(one.text for one in found.sentences if one.outside)
    assert "linear head" in outside
    assert "accuracy: not known" in outside
    assert "--task regress" in found.commands[0]


def test_wrong_devices_and_limits_are_refused(photos: Path) -> None:
    with pytest.raises(ConfigError, match="abacus"):
        vitrail.advise(photos, device="abacus")
    with pytest.raises(ConfigError, match="memory"):
        vitrail.advise(photos, device="epyc", memory=100)


def test_data_that_cannot_be_learned_are_refused(tmp_path: Path) -> None:
    one = labelled(tmp_path / "photos")
    for part in one.iterdir():
        shutil.rmtree(part / "dog")
    with pytest.raises(DataError, match="class"):
        vitrail.advise(one, device="epyc")


def test_the_command(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", str(photos), "--device", "epyc", "--latency", "50ms"]
    assert main([*words, "--html", str(tmp_path / "advice.html")]) == 0
    assert "vitrail train" in capsys.readouterr().out
    assert "Measured rows" in (tmp_path / "advice.html").read_text()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limits"]["latency"] == 50


def test_boxes_are_advised_what_training_does_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.training.first_dense.SMALL", 16)
    monkeypatch.setattr("vitrail.advice.networks._SECONDS", 0.0)  # the least number of passes
    data = voc(tmp_path / "boxes", 6)
    found = vitrail.advise(data, device="cpu", minutes=3)
    small = next(one for one in found.ranked if one.candidate.name == "small-head")
    assert small.latency is not None
    assert small.candidate.image_size == make_plan(data).preprocess.image_size
    assert {one.candidate.name for one in found.ranked} == {"small-head", "bccd-rtdetr"}
    assert found.choice is small
    assert found.commands[0] == f"vitrail train {data} --task detect --out runs/advised"


def test_the_default_is_what_training_does(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_try, "SMALL", 16)  # as training asks, and not advice
    found = vitrail.advise(photos, device="epyc")
    default = first_try.first_try_on(find(photos).train, device=torch.device("cpu"))
    assert default is not None
    assert found.choice is not None
    own = found.choice.candidate
    assert (own.name, own.like, own.sizes) == ("default", default.name, default.sizes)
    assert own.network == "packaged-photos@256"  # an answer may take as long as that
    smaller = vitrail.advise(photos, device="epyc", latency=15)
    assert smaller.choice is not None
    assert smaller.choice.candidate.name == "probe-photos"
    monkeypatch.setattr(first_try, "_PATIENCE", 0)
    patient = vitrail.advise(photos, device="epyc")
    assert not any(one.candidate.sizes for one in patient.ranked)
    assert "probe-photos" not in {one.candidate.name for one in patient.ranked}  # it is the default itself


def test_the_lab_is_cited_where_it_bears_on_the_advice(photos: Path, tmp_path: Path) -> None:
    said = [one for one in vitrail.advise(photos, device="epyc").sentences if one.text.startswith("The lab")]
    assert {one.rows[0].of for one in said} == {
        one.name for one in EXPERIMENTS if one.name in BEARING and published(one) is not None
    }
    numbers = vitrail.advise(numbers_table(tmp_path, count=24), device="epyc")
    assert not any(one.text.startswith("The lab") for one in numbers.sentences)


def test_a_new_record_of_the_lab_is_cited_and_others_are_left_out(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").mkdir()
    monkeypatch.setattr("vitrail.lab.records.resources", SimpleNamespace(files=lambda _: tmp_path))
    known = {one.name: one for one in EXPERIMENTS}
    for name in ("robustness", "approximation", "attention-entropy", "pac-bayes", "shape-bias"):
        results = [{"other": 1}] if name == "shape-bias" else [known[name].false_case()[0]] * 3
        record = Record(
            experiment=name, fingerprint="", settings={}, device="cuda", hardware="a GPU", versions={"torch": "2"},
            command="made", runs=tuple(Run(seed=seed, seconds=1.0, results=one) for seed, one in enumerate(results)),
        )  # fmt: skip
        write_record(tmp_path / "results" / f"{name}.json", record)
    (tmp_path / "results" / "data-size.json").write_text('{"format": 1}')
    (said,) = (one for one in vitrail.advise(photos, device="epyc").sentences if one.text.startswith("The lab"))
    assert said.text.startswith("The lab on ")
    assert "3 seeds" in said.text
    assert "significantly more robust" in said.text
    assert "fails" in said.text
    assert said.rows[0].command == "made"
