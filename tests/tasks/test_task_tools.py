"""Every registered task goes through every tool, by the command line as a person types it."""

import asyncio
import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support.compared_runs import sibling
from support.json_schema import errors as schema_errors
from support.small_service import app, ask, post
from support.task_case import CASES, Case, base_of, make_case, settings
from support.task_data import SEVERAL

import vitrail
from vitrail.cli import main
from vitrail.deploy.artefact.opening import open_engine
from vitrail.runs.predict import predict

OWN = [case for case in CASES if base_of(case[0]) is None]  # a student's model is that of the task without a teacher


@pytest.fixture(scope="module", params=OWN, ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(*request.param, tmp_path_factory)


# A graph takes seconds. These are made of others' parts: labels as classes, depth as masks, many as each of them.
ALIKE = (("classify", "labels"), ("depth", "depth"), ("many", "several"))
some_graphs = pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[pytest.mark.slow] * (case in ALIKE), id="-".join(case)) for case in OWN],
    indirect=True,
)


@pytest.fixture(scope="module")
def dist(case: Case) -> Path:
    """The exported model. To write ONNX takes up to 13 s; `make test-all` does so for every task."""
    return exported(case, "torch")


def exported(case: Case, to: str) -> Path:
    case.needs_answers()
    out = case.run.folder.parent / f"dist-{to}"
    words = ["export", str(case.run.folder), "--to", to, "--out", str(out), "--images", images(case)]
    assert main([*words, "--count", "8", "--rounds", "1"]) == 0
    return out


def images(case: Case) -> str:
    return str(case.files[0].parent)


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A task without answers is refused with the way to one that has some."""
    assert main(words) == 2
    assert "fine-tune" in capsys.readouterr().err


def rounded(value: Any) -> Any:
    """Plain data with numbers of three digits: batches of another size round otherwise."""
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def test_train_by_its_name(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "train",
        str(case.data),
        "--task",
        case.kind,
        "--model",
        "vit32_small",
        "--image-size",
        "32",
        "--val",
        "0.25",
    ]
    words += ["--set", "options.dim=32", "--set", "options.depth=1", "--set", "options.num_heads=2"]
    words += ["--teacher", str(case.teacher)] if case.teacher else []
    words += [word for option in settings(case.kind) for word in ("--set", option)]
    assert main([*words, "--epochs", "1", "--device", "cpu", "--out", str(tmp_path / "run")]) == 0
    assert f"task: {case.kind}" in capsys.readouterr().err
    assert (tmp_path / "run" / "report.html").is_file()


def test_eval(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(case.run.folder), str(case.data), "--device", "cpu", "--html", str(tmp_path / "eval.html")]
    assert main(words) == 0
    assert case.task.about_metrics[case.task.best_metric].title in capsys.readouterr().out
    assert (tmp_path / "eval.html").is_file()
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sections"]


def test_predict(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(case.run.folder), str(case.files[0]), "--device", "cpu"]
    if not case.answers:
        refused(words, capsys)
        return
    (expected,) = case.opened.predict(case.files[0])
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == f"{case.files[0]}: {expected.answer.text()}"
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected.to_dict()


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_tables_of_predictions(case: Case, suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / f"table{suffix}"
    words = ["predict", str(case.run.folder), images(case), "--out", str(table), "--device", "cpu"]
    if not case.answers:
        refused(words, capsys)
        return
    assert main(words) == 0
    if suffix == ".csv":
        rows = list(csv.DictReader(table.read_text().splitlines()))
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in table.read_text().splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(table).to_pylist()
    assert len(rows) == len(list(Path(images(case)).glob("*.png")))
    assert set(rows[0]) == {"path", *case.task.columns, "error", "model"}
    if suffix == ".jsonl":
        (expected,) = case.opened.predict(rows[0]["path"])
        row = {name: rows[0][name] for name in case.task.columns}
        assert rounded(row) == rounded(expected.answer.row())


def test_explain(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    words = ["explain", str(case.run.folder), str(case.files[0]), "--out", str(page), "--device", "cpu"]
    if not case.answers:
        refused(words, capsys)
        return
    assert main([*words, "--method", "relevance", "--steps", "2"]) == 0
    (expected,) = case.opened.predict(case.files[0])
    assert expected.answer.bars()[0].label in page.read_text()
    assert main([*words, "--method", "relevance", "--scores", "none", "--target", case.task.output_names[-1]]) == 0
    assert main([*words, "--target", "nothing like it"]) == 2


def test_probe(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["probe", str(case.run.folder), str(case.data), "--k", "3", "--device", "cpu"]
    if case.target not in ("class", "numbers", SEVERAL):
        assert main(words) == 2
        return
    assert main(words) == 0
    assert "probes of each layer" in capsys.readouterr().out


def test_doctor(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(case.data), "--model", "vit32_small"]) in (0, 1)
    assert "96" in capsys.readouterr().out


def test_a_task_without_answers_is_not_exported_or_served(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    if case.answers:
        return
    folder = str(case.run.folder)
    refused(["export", folder, "--images", images(case)], capsys)
    refused(["serve", folder, "--port", "0"], capsys)
    refused(["bench", folder, "--images", images(case)], capsys)


@some_graphs
def test_export(case: Case, dist: Path) -> None:
    answers_alike(case, dist)


@pytest.mark.slow
def test_export_to_onnx(case: Case) -> None:
    answers_alike(case, exported(case, "onnx"))


def answers_alike(case: Case, dist: Path) -> None:
    assert (dist / "certificate.html").is_file()
    (file,) = (file for file in dist.iterdir() if file.suffix in {".onnx", ".pt2"})
    engine = open_engine(file)
    assert engine.task.state() == case.task.state()
    found, expected = predict(engine, case.files), case.opened.predict(case.files)
    assert [one.answer.text() for one in found] == [one.answer.text() for one in expected]
    assert vitrail.evaluate(engine, case.data).metrics["images"] > 0


@some_graphs
def test_bench(case: Case, dist: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(dist), str(case.run.folder), "--images", images(case), "--count", "8", "--batches", "1"]
    assert main([*words, "--threads", "1", "--rounds", "1", "--html", str(tmp_path / "bench.html")]) == 0
    assert "Speed" in capsys.readouterr().out
    assert "model.pt2" in (tmp_path / "bench.html").read_text()


def test_serve(case: Case) -> None:
    case.needs_answers()
    service = app(open_engine(case.run.folder))
    body = case.files[0].read_bytes()
    reply = post(service, "/predict", body, content_type="image/png")
    assert reply.status == 200, reply.body
    (expected,) = case.opened.predict(case.files[0])
    plain = expected.answer.to_json()
    (found,) = reply.data["predictions"]
    assert json.dumps({name: found[name] for name in plain}) == json.dumps(plain)
    document = asyncio.run(ask(service, "/openapi.json")).data
    assert schema_errors(plain, case.task.answer_schema()) == []
    assert all(name in json.dumps(document) for name in case.task.answer_schema()["required"])
    assert asyncio.run(ask(service, "/")).status == 200


def test_compare(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("scipy")
    other = sibling(case.run.folder, tmp_path / "other")
    words = ["compare", str(case.run.folder), str(other), "--resamples", "10", "--device", "cpu", "--json"]
    assert main([*words, "--html", str(tmp_path / "compare.html")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["best_metric"] == case.task.best_metric
    assert found["resamples"] == 10, found["notes"]
    validated = case.run.metrics[case.task.best_metric]
    assert found["runs"][0]["metrics"][case.task.best_metric] == pytest.approx(validated, rel=1e-3, abs=1e-6)
    assert 0 < found["pairs"][0]["p"] <= 1
    assert (tmp_path / "compare.html").is_file()
