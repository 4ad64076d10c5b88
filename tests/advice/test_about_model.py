"""What is said of the choice where no near set tells how good it is."""

from support.advised import SETTINGS, facts, result, speed

from vitrail.advice.about_model import expected, model
from vitrail.advice.choose import Evidence, Judged, Limits, candidates, judge, ranked
from vitrail.advice.rows import Row

FAR = {"images": 64_000, "pixels": 28, "grey": True}


def judged(limits: Limits, *rows) -> tuple[list[Judged], Evidence]:
    known = [result("probe", "a", 0.9), result("tune", "a", 0.8), *rows]
    speeds = {"packaged-photos": speed("packaged-photos", 20.0), "packaged": speed("packaged", 15.0)}
    speeds["demo"] = speed("demo", 1.0)
    evidence = Evidence(known, speeds, {}, "cpu")
    recipes = {"demo": {"model": "vit_tiny", "epochs": 1}}
    found = [judge(one, facts(), limits, evidence) for one in candidates(facts(), known, SETTINGS, recipes)]
    return ranked(found), evidence


def test_training_from_random_weights_on_other_data_has_no_points_and_no_range() -> None:
    found, evidence = judged(Limits(latency=5.0), result("demo", "d", 0.95, **FAR))
    text = " ".join(one.text for one in model(facts(), found[0], found, evidence.rows))
    assert found[0].candidate.name == "demo"
    assert "not known: it was not measured on sets like these data" in text
    assert "by how much that is better is not known" in text
    assert "learns from random weights" in text
    assert "points" not in text
    (range_,) = expected(facts(), found[0], evidence.rows)
    assert "not known. It was 95.0 % on d, from 64,000 images there" in range_.text
    assert range_.outside


def test_every_check_of_the_range_is_said() -> None:
    about = {"task": "classify", "sets": 5}
    checks = [
        Row(
            kind="check",
            of="range",
            values={**about, "inside": inside, "which": which},
            hardware="",
            versions="",
            command="",
        )
        for inside, which in ((4, "sets that were left out"), (2, "fresh sets"))
    ]
    found, evidence = judged(Limits(), result("probe", "e", 0.7), *checks)
    (said,) = expected(facts(), found[0], evidence.rows)
    assert "on 4 of 5 sets that were left out and on 2 of 5 fresh sets" in said.text
    assert said.rows[-2:] == tuple(checks)


def test_points_are_of_near_sets_on_which_others_were_measured() -> None:
    found, evidence = judged(Limits(latency=16.0))
    said = list(model(facts(), found[0], found, evidence.rows))
    assert "It was 10.0 points below the best in validation, on 1 set" in said[0].text
    assert "probe was better by 10.0 points in validation on 1 set" in said[1].text
