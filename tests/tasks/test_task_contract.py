"""The contract of every registered task: from data on disk to a run, answers, reports, artefacts and all tools.

A task that is added to the library arrives here by itself; data for a new kind of target are made in
`support/task_data.py`.
"""

import inspect
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.json_schema import errors as schema_errors
from support.task_case import CASES, PLAN, TINY, Case, make_case, task_of
from support.task_data import MAKERS

from vitrail.data.feeds.batches import Batches
from vitrail.data.sources.opening import find
from vitrail.data.targets.target import Target
from vitrail.errors import ConfigError, Unsupported
from vitrail.report import Report
from vitrail.report.metric import Metric
from vitrail.runs.record import Record, Result
from vitrail.tasks.answer import Answer, Bar, Examples
from vitrail.tasks.task import HeldOut, Task, TaskConfig, infer
from vitrail.training.plan import make_plan
from vitrail.training.run import train
from vitrail.training.verify import verify_resume


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(*request.param, tmp_path_factory)


def test_every_kind_of_target_has_data() -> None:
    assert set(Target.kinds) <= set(MAKERS), "add a maker to tests/support/task_data.py"


def test_the_task_is_inferred_from_the_data(case: Case) -> None:
    config = TaskConfig.kinds[case.kind]
    if config.inferred:
        assert infer(find(case.data).train.schema) is config
        plan = make_plan(case.data, model="vit32_small", val=0.25, changes=PLAN)
        assert plan.task == config()
        assert any("inferred" in note for note in plan.notes)
    else:
        assert case.run.plan.task.kind == case.kind
    assert Record.read(case.run.folder).recipe["task"]["kind"] == case.kind


def test_it_learns_and_is_validated(case: Case) -> None:
    run, task = case.run, case.task
    assert [entry["epoch"] for entry in run.history] == [1, 2]
    assert all(math.isfinite(entry["train"]["loss"]) for entry in run.history)
    assert math.isfinite(run.metrics[task.best_metric])
    for name in (task.best_metric, *([task.tie_metric] if task.tie_metric else [])):
        assert isinstance(task.about_metrics[name], Metric)
    shown = {name for entry in run.history for name in entry["train"]} - {"loss", "teacher", "agreement"}
    assert shown <= task.about_metrics.keys()


def test_a_stopped_run_resumes_exactly(case: Case) -> None:
    report = verify_resume(case.data, steps=4, at=2, task=task_of(case.kind), teacher=case.teacher, **TINY)
    assert report["Resume"].values["equal"] is True, str(report)


def test_a_finished_run_is_resumed_to_the_same_metrics(case: Case) -> None:
    again = train(folder=case.run.folder, resume=True, device="cpu", silent=True)
    assert again.metrics == case.run.metrics


def test_the_report_is_written(case: Case) -> None:
    page = case.run.report().read_text()
    assert case.task.about_metrics[case.task.best_metric].title in page
    assert case.task.lead(case.run.evaluation.results) in page.replace("&#x27;", "'")


def test_an_evaluation_is_reported(case: Case) -> None:
    found = case.opened.evaluate(case.data)
    report = found.report()
    assert found.metrics["images"] > 0
    assert case.task.about_metrics[case.task.best_metric].title in str(report)
    assert Report.from_json(report.to_json()).to_json() == report.to_json()
    assert "NaN" not in json.dumps(json.loads(report.to_json()))
    assert "<html" in report.to_html()
    assert not case.task.lead(found.results).endswith(".")
    for name, (low, high) in case.task.intervals(found.results).items():
        assert low <= found.results[name] <= high
    for breakdown in case.task.breakdowns(found.results).values():
        assert breakdown.values
        assert all(isinstance(value, float) for value in breakdown.values.values())


def test_the_meter_of_parts_is_that_of_the_whole(case: Case) -> None:
    packs = case.run.packs.val
    (batch,) = list(Batches(packs, batch_size=len(packs), seed=0, shuffle=False, device="cpu").epoch(0))
    outputs = case.opened.outputs(case.opened.preprocess.fit(batch.images)[0])
    whole, merged = case.task.metrics(), case.task.metrics()
    whole.update(outputs, batch.targets)
    for part in (slice(0, 0), slice(0, 5), slice(5, None)):
        other = case.task.metrics()
        targets = {name: values[part] for name, values in batch.targets.items()}
        other.update({name: values[part] for name, values in outputs.items()}, targets)
        merged.merge(other)
    best = case.task.best_metric
    assert merged.compute()[best] == pytest.approx(whole.compute()[best])
    assert merged.compute()["images"] == len(batch.ids)
    wrong = case.task.errors(outputs, batch.targets)
    assert wrong.shape == (len(batch.ids),)
    assert bool((wrong >= 0).all())


def test_evidence_with_examples_is_a_page(case: Case) -> None:
    found = case.run.evaluation
    assert found.first
    sections = case.task.sections(found.results, Examples(found.worst, found.first, case.opened.preprocess))
    plain = case.task.sections(found.results)
    assert len(sections) >= len(plain)
    page = Report("examples", tuple(sections)).to_html()
    assert "<img" in page


def test_answers_of_any_kind_of_image(case: Case) -> None:
    if not case.answers:
        with pytest.raises(Unsupported, match="fine-tune"):
            case.opened.predict(case.files[0])
        return
    file = case.files[0]
    opened = Image.open(file).convert("RGB")
    array = np.asarray(opened)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    found = case.opened.predict([file, str(file), opened, array, tensor])
    assert [one.error for one in found] == [None] * 5
    answers = [one.answer for one in found]
    assert len({answer.text() for answer in answers}) == 1
    for answer in answers:
        check_answer(answer, case.task)


def check_answer(answer: Answer, task: Task) -> None:
    assert isinstance(answer, Answer)
    assert answer.kind
    assert answer.text()
    assert "\n" not in answer.text()
    plain = answer.to_json()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert schema_errors(plain, task.answer_schema()) == []
    assert tuple(answer.row()) == task.columns
    json.dumps(answer.row(), allow_nan=False)
    bars = answer.bars()
    assert bars
    for bar in bars:
        assert isinstance(bar, Bar)
        shares = [share for share in (bar.share, bar.low, bar.high) if share is not None]
        assert all(0 <= share <= 1 for share in shares)
    image = torch.zeros(3, 20, 30, dtype=torch.uint8)
    drawn = answer.draw(image)
    assert drawn is None or (drawn.dtype, drawn.shape[1:]) == (torch.uint8, image.shape[1:])


def test_answers_follow_the_state(case: Case) -> None:
    case.needs_answers()
    record, result = Record.read(case.run.folder), Result.read(case.run.folder)
    state = json.loads(json.dumps(case.task.state(), allow_nan=False))
    assert state == result.state
    alone = record.task.build(None, record.schema)  # as artefacts are read
    alone.load_state(state)
    assert alone.state() == state
    assert alone.decode(case.outputs) == case.task.decode(case.outputs)
    assert isinstance(alone.calibration(), str)
    assert alone.decode({name: values[:0] for name, values in case.outputs.items()}) == []


def test_calibration_can_be_undone(case: Case) -> None:
    record, found = Record.read(case.run.folder), case.run.evaluation
    task = record.task.build(case.opened.backbone, record.schema)
    task.load_state(case.task.state())
    task.clear_calibration()
    before = task.state()
    task.calibrate(found.outputs, found.targets)
    task.clear_calibration()
    assert task.state() == before


def test_answers_that_are_not_finite_are_refused(case: Case) -> None:
    case.needs_answers()
    with pytest.raises(ValueError, match="finite"):
        case.task.decode({name: torch.full_like(values, torch.nan) for name, values in case.outputs.items()})


def test_agreement_distinguishes_equal_outputs_from_others(case: Case) -> None:
    arrays = {name: values.numpy() for name, values in case.outputs.items()}
    if not case.answers:
        with pytest.raises(Unsupported):
            case.task.same(arrays, arrays)
        return
    same = case.task.agreement(arrays, arrays)
    assert same == (0.0, pytest.approx(1.0), 1.0)
    assert case.task.same(arrays, arrays).tolist() == [True] * len(case.images)
    chance = np.random.default_rng(0)
    spread = {name: values.std() + 1.0 for name, values in arrays.items()}
    noisy = {name: values + 20 * spread[name] * chance.normal(size=values.shape) for name, values in arrays.items()}
    other = case.task.agreement(arrays, noisy)
    assert other.agreement < 1.0
    assert other.error > 0.1
    assert other.cosine < same.cosine


def test_a_graph_gives_tensors_by_name(case: Case) -> None:
    case.needs_answers()
    graph = case.task.graph(case.outputs)
    assert graph.keys() >= case.outputs.keys()
    for name, values in case.outputs.items():
        assert case.task.width_of(name) in (None, values.shape[-1])
    assert all(isinstance(values, torch.Tensor) and len(values) == len(case.images) for values in graph.values())
    decoded = case.task.decode({name: graph[name] for name in case.outputs})
    assert decoded == case.task.decode(case.outputs)


@pytest.mark.filterwarnings("ignore::vitrail.errors.Notice")  # the last output may be no part of the answer
def test_outputs_of_the_head_can_be_explained(case: Case) -> None:
    task = case.task
    if not task.output_names:
        with pytest.raises(Unsupported, match="explain"):
            task.explain_target(case.outputs, None)
        return
    assert task.explained().config.num_classes == len(task.output_names)
    chosen = task.explain_target(case.outputs, None)
    assert (chosen.shape, chosen.dtype) == ((len(case.images),), torch.int64)
    assert bool(((chosen >= 0) & (chosen < len(task.output_names))).all())
    last = task.explain_target(case.outputs, task.output_names[-1])
    assert last.tolist() == [len(task.output_names) - 1] * len(case.images)
    with pytest.raises(ConfigError, match=task.output_names[0]):
        task.explain_target(case.outputs, f"{task.output_names[0]}x")
    with torch.no_grad():
        head = task.explained()(case.opened.preprocess(case.images))
    scores = task.scores(head)
    assert scores.shape == head.shape
    assert bool(((scores >= 0) & (scores <= 1)).all())


def test_what_was_found_in_one_image_is_followed_and_has_its_place(case: Case) -> None:
    task, size = case.task, case.opened.preprocess.image_size
    if not task.output_names:
        return
    images = case.opened.preprocess(case.images)
    one = {name: values[:1] for name, values in case.outputs.items()}
    chosen = task.explain_target(one, None)
    with torch.no_grad():
        scores = task.scores(task.explained_for(one)(images))
        found = {"part": task.explained_part(one, chosen, size), "seen": task.cross_attention(images[:1], chosen)}
    assert scores.shape == (len(images), len(task.output_names))
    for values in found.values():
        assert values is None or values.shape == (1, *size)


def test_the_mean_of_equal_views_is_each_of_them(case: Case) -> None:
    images = case.opened.preprocess(case.images)
    with torch.no_grad():
        view = case.task.of_view(images, mirrored=False)
    try:
        found = case.task.average([view, view])
    except Unsupported:
        return
    assert found.keys() == case.outputs.keys()
    arrays = [{name: values.numpy() for name, values in one.items()} for one in (case.outputs, found)]
    assert case.task.same(*arrays).all()
    if case.answers:
        assert [one.text() for one in case.task.decode(found)] == [one.text() for one in case.task.decode(case.outputs)]


ABSTRACT = sorted(Task.__abstractmethods__)


def test_models_of_folds_answer_together_or_say_that_they_cannot(case: Case) -> None:
    task, packs = case.task, case.run.packs.val
    (batch,) = list(Batches(packs, batch_size=len(packs), seed=0, shuffle=False, device="cpu").epoch(0))
    outputs = case.opened.outputs(case.opened.preprocess.fit(batch.images)[0])
    kept = {name: outputs[name] for name in task.kept_outputs}
    folds = [HeldOut(task, kept, batch.targets, [str(one) for one in batch.ids.tolist()])] * 2
    config = task.config.ensemble(2)
    if config is None:
        with pytest.raises(Unsupported, match="joined"):
            task.join(folds)
    else:
        joined = config.build(task.backbone, task.schema).eval()
        joined.join(folds)
        with torch.no_grad():
            found = joined.outputs(case.opened.preprocess.normalise(case.images))
        assert [one.brief() for one in joined.decode(found)] == [one.brief() for one in task.decode(case.outputs)]
    results = case.opened.evaluate(case.data).results if kept else {}
    for name, (low, high) in (task.pooled_intervals(folds) if kept else {}).items():
        assert low <= high
        assert name in results


@pytest.mark.parametrize("method", ABSTRACT)
def test_a_task_that_lacks_a_method_cannot_be_built(method: str) -> None:
    def missing(*_: Any, **__: Any) -> None: ...

    methods = {name: missing for name in ABSTRACT if name != method}
    lacking = type("Lacking", (Task,), methods)
    with pytest.raises(TypeError, match=method):
        lacking(None, {}, None)
    type("Whole", (Task,), methods | {method: missing})(None, {}, None)


def test_everything_in_the_contract_is_called_here() -> None:
    """A method that is added to the contract must be tested for every task."""
    here = Path(__file__).read_text()
    training = {"forward", "loss", "outputs", "fit", "learn_from", "adopt", "is_better", "likeliest"}
    public = {name for name, value in vars(Task).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert {name for name in public - training if f".{name}(" not in here} == set()
