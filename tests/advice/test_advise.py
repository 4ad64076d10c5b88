"""Advice: every sentence has its rows or says that it lies outside of them; commands are those of the choice."""

import json
from dataclasses import replace
from types import SimpleNamespace

from support.advised import SETTINGS, engine, facts, result, speed, tuning

from vitrail.advice.advise import Advice, advice
from vitrail.advice.choose import Evidence, Limits, candidates, judge, ranked
from vitrail.advice.consult import default_candidate
from vitrail.advice.facts import DataFacts

NETWORK = "packaged-photos"


def advised(about: DataFacts, limits: Limits = Limits(), *rows, measured=True, first=None, others=()) -> Advice:  # noqa: B008
    known = [result("probe", "a", 0.9, test=0.85), result("probe", "b", 0.8), result("tune", "a", 0.7), *rows]
    answers = {NETWORK: 20.0, "packaged": 5.0, **dict(others)}
    speeds = {name: speed(name, ms, kind="here") for name, ms in answers.items() if measured}
    evidence = Evidence(known, speeds, {}, "cpu")
    found = [judge(one, about, limits, evidence) for one in candidates(about, known, SETTINGS, {}, first)]
    return advice(about, ranked(found), evidence, limits=limits, device="cpu")


def test_every_sentence_rests_on_rows_or_says_that_it_does_not() -> None:
    rows = engine(NETWORK, 2.0), speed(NETWORK, 10.0), tuning("a", 3, minutes=60)
    found = advised(facts(doctor=("Remove duplicates.",)), Limits(), *rows)
    for one in found.sentences:
        assert one.rows or one.outside or one.text.startswith("The doctor"), one.text
    text = str(found.report())
    assert "80.0 to 85.0 %" in text
    assert "takes 2 times as long" in " ".join(text.split())
    assert "about 10 ms" in " ".join(text.split())
    assert "Outside" not in text


def test_the_commands_are_complete() -> None:
    found = advised(facts(), Limits(), engine(NETWORK, 2.0))
    assert found.commands == [
        "vitrail train photos --from packaged-photos --set probe=linear --out runs/advised",
        "vitrail eval runs/advised",
        "vitrail export runs/advised --to onnx --int8 photos --out dist/",
        "vitrail bench dist/ runs/advised",
    ]


def test_what_lies_outside_is_named() -> None:
    text = " ".join(str(advised(facts(images=50_000, classes=90)).report()).split())
    assert "50,000 images, measured with 1,000" in text
    assert "90 classes, measured with 4" in text
    assert "Outside of what was measured" in text
    assert "was not measured on this device" in " ".join(one.text for one in advised(facts(), measured=False).sentences)


def test_the_expected_range_of_such_a_case_is_outside_too() -> None:
    ranges = [one for few in (4, 1000) for one in advised(facts(images=few)).sentences if "Expected" in one.text]
    assert [one.outside for one in ranges] == [True, False]


def test_the_engine_of_a_time_is_named() -> None:
    text = str(advised(facts(), Limits(latency=12.0), engine(NETWORK, 2.0)).report())
    assert "int8" in text.partition("What was chosen between")[2].partition("Measured rows")[0]
    late = advised(facts(), Limits(latency=2.0), engine(NETWORK, 2.0)).ranked
    assert any("with int8" in one.too_much[0] for one in late)


def test_a_better_candidate_beyond_the_limits_is_named() -> None:
    slow = advised(facts(), Limits(latency=10.0), result("tune", "c", 0.9))
    assert slow.choice is not None
    assert slow.choice.candidate.name == "tune"
    (better,) = (one for one in slow.sentences if "probe was better by 20.0 points in validation on 1 set" in one.text)
    assert {row.set for row in better.rows} == {"a"}


def test_a_busy_machine_is_named() -> None:
    busy = speed(NETWORK, 20.0, kind="here")
    evidence = Evidence(
        [result("probe", "a", 0.9)], {NETWORK: replace(busy, values={**busy.values, "load": 3.0})}, {}, "cpu"
    )
    found = [judge(one, facts(), Limits(), evidence) for one in candidates(facts(), evidence.rows, SETTINGS, {})]
    assert "busy" in str(advice(facts(), found, evidence, limits=Limits(), device="cpu").report())


def test_a_linear_head_alone_and_a_search_are_named() -> None:
    found = advised(facts(), Limits(minutes=6), tuning("a", 3), tuning("b", 0))
    (head,) = (one for one in found.sentences if "vitrail probe packaged-photos photos --fit" in one.text)
    assert head.rows
    (search,) = (one for one in found.sentences if "vitrail train photos --minutes 6" in one.text)
    assert "kept on 1 of 1 sets" in search.text
    assert len(search.rows) == 2
    assert not search.outside
    assert "no time for others" in search.rows[1].text()
    (longer,) = (one for one in advised(facts(), Limits(), tuning("a", 3)).sentences if "--minutes 30" in one.text)
    assert longer.outside
    (unknown,) = (one for one in advised(facts()).sentences if "--minutes 30" in one.text)
    assert "not measured" in unknown.text


def test_training_for_epochs_has_no_head_alone() -> None:
    assert "--fit" not in str(advised(facts(), Limits(latency=10.0), result("tune", "c", 0.9)).report())


def test_nothing_fits() -> None:
    found = advised(facts(), Limits(minutes=0.01))
    assert found.choice is None
    assert found.commands == []
    assert "Nothing that was measured" in found.sentences[0].text
    assert "tune is closest" in advised(facts(), Limits(latency=0.1)).sentences[0].text
    unknown = advised(facts(), Limits(latency=10.0), measured=False).sentences[0].text
    assert "closest" not in unknown
    assert "nothing" in repr(found)


def test_plain_data() -> None:
    plain = json.loads(advised(facts()).to_json())
    assert plain["choice"] == "probe"
    assert plain["sentences"][0]["rows"][0]["command"] == "run probe"
    assert len(repr(advised(facts()))) < 200


def test_a_label_and_a_path_with_spaces_are_in_every_command() -> None:
    about = facts(source="my photos/table.csv")
    rows = [result("probe", "a", 0.9)]
    evidence = Evidence(rows, {}, {}, "cpu")
    found = [judge(one, about, Limits(), evidence) for one in candidates(about, rows, SETTINGS, {})]
    said = advice(about, found, evidence, limits=Limits(), device="cpu", label=("species",))
    assert said.commands[0].startswith("vitrail train 'my photos/table.csv' --label species --from packaged-photos ")
    assert any("'my photos/table.csv' --label species --fit" in one.text for one in said.sentences)


def test_the_default_is_advised_where_its_largest_images_keep_the_limits() -> None:
    rows = result("default", "a", 0.9, test=0.88, like="probe"), result("default", "b", 0.9, like="probe")
    for row in rows:
        del row.values["validation"]  # type: ignore[attr-defined]
    first = SimpleNamespace(name="probe", sizes=(256,))
    large = f"{NETWORK}@256"
    found = advised(facts(), Limits(), *rows, first=first, others={large: 50.0})
    assert found.commands[0] == "vitrail train photos --out runs/advised"
    assert "160 x 160 or 256 x 256 pixels" in found.sentences[0].text
    assert "begins with (probe)" in found.sentences[0].text
    late = advised(facts(), Limits(latency=30.0), *rows, first=first, others={large: 50.0})
    assert late.choice is not None
    assert late.choice.candidate.name == "probe"
    (why,) = (one for one in late.sentences if "larger images" in one.text)
    assert "6.5 points higher" in why.text  # 88 and 90 % for 85 and 80
    assert "50 ms an image" in why.text
    one_size = advised(facts(), Limits(), *rows, first=SimpleNamespace(name="probe", sizes=()))
    assert "probe" not in {one.candidate.name for one in one_size.ranked}
    other = advised(facts(), Limits(), *rows, first=SimpleNamespace(name="tune", sizes=()))
    assert "default" not in {one.candidate.name for one in other.ranked}  # its rows began with another setting


def test_a_longer_training_than_the_measured_one_is_said_and_counted() -> None:
    about = facts(task="detect")
    row = result("small-head", "cells", 0.4, task="detect", epochs=9, image_size=[192, 256], metric="AP", cores=1)
    default = SimpleNamespace(
        about="a small head", network="small-head",
        recipe={"epochs": 18, "image_size": (192, 256), "task": {"kind": "detect"}},
    )  # fmt: skip
    evidence = Evidence([row], {}, {}, "cpu")
    found = judge(default_candidate(default, about, [row]), about, Limits(), evidence)
    assert found.seconds == 2 * 50
    said = advice(about, [found], evidence, limits=Limits(), device="cpu")
    text = " ".join(one.text for one in said.sentences)
    assert "18 epochs at 192 x 256 pixels, measured with 9" in text
    assert "2 times as long by epochs" in text
    assert "9 epochs at 192 x 256" in row.text()
    assert said.commands[0] == "vitrail train photos --task detect --out runs/advised"
