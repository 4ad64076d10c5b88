"""The choice: regret by hand, limits, engines, and times in proportion."""

from dataclasses import replace
from math import inf

import pytest
from support.advised import SETTINGS, engine, facts, result, speed

from vitrail.advice.choose import (
    Candidate,
    Evidence,
    Judged,
    Limits,
    best_engine,
    candidates,
    excess,
    judge,
    ranked,
    size_of,
    slowness,
    training_seconds,
)

ROWS = [result("probe", "a", 0.9), result("tune", "a", 0.8), result("tune", "far", 0.7, images=64_000, pixels=16)]
PHOTOS = "packaged-photos"


def judged(limits: Limits, *rows, ms: float = 20.0, mib: float | None = None) -> dict[str, Judged]:
    speeds = {name: speed(name, ms, kind="here") for name in (PHOTOS, "packaged")}
    held = {} if mib is None else dict.fromkeys(speeds, speed("x", 0))
    for row in held.values():
        row.values["mib"] = mib  # type: ignore[index]
    evidence = Evidence([*ROWS, *rows], speeds, held, "cpu")
    return {one.name: judge(one, facts(), limits, evidence) for one in candidates(facts(), ROWS, SETTINGS, {})}


def test_candidates_are_what_was_measured_for_the_task() -> None:
    found = {one.name: one for one in candidates(facts(), ROWS, SETTINGS, {})}
    assert found.keys() == {"probe", "tune"}
    assert found["tune"].rows[0].set == "a"
    assert found["tune"].train == (
        "vitrail train {data} --from packaged --epochs 8 --set 'task.safe=[\"flip\"]' --out {out}",
    )
    assert candidates(facts(task="detect"), ROWS, SETTINGS, {}) == []


def test_a_recipe_that_starts_from_another_has_two_commands() -> None:
    rows = [result("cifar10-conv", "cifar10", 0.98)]
    (found,) = candidates(facts(), rows, {}, {"cifar10-conv": {"model": "vit32_conv", "epochs": 280}})
    assert found.network == "packaged"
    assert found.epochs == 280
    assert [command.split("--recipe ")[1].split()[0] for command in found.train] == ["cifar10-conv-mae", "cifar10-conv"]


def test_what_learns_from_random_weights_is_behind_unless_it_had_no_more_images() -> None:
    rows = [*ROWS, result("demo", "d", 0.95, images=1500), result("probe", "d", 0.5, images=1500)]
    recipes = {"demo": {"model": "vit", "epochs": 1}}
    for images, first in ((1000, "demo"), (600, "tune")):
        about = facts(images=images)
        found = candidates(about, rows, SETTINGS, recipes)
        best, *_, last = ranked([judge(one, about, Limits(), Evidence(rows, {}, {}, "cpu")) for one in found])
        assert best.candidate.name == first
        if images == 600:
            assert (last.candidate.name, last.doubt, last.points) == ("demo", 2, None)


def test_heads_on_smaller_images_are_candidates() -> None:
    found = candidates(facts(), [result("probe-photos-64", "a", 0.8)], SETTINGS, {})[0]
    assert (found.network, found.image_size, found.head_on) == ("packaged-photos@64", (64, 64), None)
    assert found.train[0].endswith("--from packaged-photos --set probe=linear --set image_size=64 --out {out}")


def test_a_training_timed_alone_tells_the_time_on_a_device_that_has_no_results() -> None:
    timed = result("probe", "", 0.0, device="cuda", images=640, seconds=8.0, cores=1)
    rows = [*ROWS, replace(timed, kind="training")]
    (probe, _) = candidates(facts(), rows, SETTINGS, {})
    assert training_seconds(probe, facts(), rows, None, "cuda") == pytest.approx(12.5)
    assert training_seconds(probe, facts(), rows, None, "cpu") == pytest.approx(100)


def test_limits_put_candidates_behind() -> None:
    assert judged(Limits())["probe"].fits
    late = judged(Limits(latency=10.0))["probe"]
    assert not late.fits
    assert "ms" in late.too_much[0]
    assert "MiB" in judged(Limits(memory=100.0), mib=400.0)["probe"].too_much[0]
    assert "minutes" in judged(Limits(minutes=0.5))["probe"].too_much[0]
    unknown = Candidate("r", "a recipe", "n", (), ())
    alone = judge(unknown, facts(), Limits(minutes=9.0, latency=9.0), Evidence([], {}, {}, "cpu"))
    assert len(alone.too_much) == 1  # the time of an answer; that of training is not known and no obstacle
    found = judged(Limits(latency=10.0), engine("packaged", 4.0))
    assert [one.candidate.name for one in ranked(list(found.values()))] == ["tune", "probe"]
    assert found["tune"].latency == pytest.approx(5)


def test_the_excess_is_that_of_the_limit_kept_least() -> None:
    probe = judged(Limits(), mib=400.0)["probe"]
    assert excess(probe, Limits()) == 0
    assert excess(probe, Limits(memory=100.0)) == 4
    assert excess(probe, Limits(memory=100.0, minutes=1e-6)) > 1e6
    assert excess(replace(probe, latency=None), Limits(latency=1e6)) == inf


def test_packaged_weights_and_recipes_have_an_image_size() -> None:
    assert judged(Limits())["probe"].candidate.image_size == size_of("packaged-photos") == (160, 160)
    rows = [result("demo", "a", 0.8)]
    (found,) = candidates(facts(), rows, {}, {"demo": {"model": "vit", "options": {"image_size": 32}}})
    assert found.image_size == (32, 32)
    (found,) = candidates(facts(), rows, {}, {"demo": {"model": "vit"}})
    assert found.image_size is None


def test_an_engine_with_other_answers_is_not_chosen() -> None:
    rows = [engine(PHOTOS, 9.0, same=0.9), engine(PHOTOS, 2.0)]
    chosen = best_engine(PHOTOS, rows, "cpu")
    assert chosen is not None
    assert chosen.values["times"] == 2
    assert best_engine(PHOTOS, rows, "cuda") is None


def test_time_is_in_proportion_to_images_and_speed() -> None:
    (probe, _) = candidates(facts(), ROWS, SETTINGS, {})
    rows = [*ROWS, speed(PHOTOS, 10.0)]
    here = speed(PHOTOS, 30.0, kind="here")
    assert slowness(PHOTOS, rows, here) == 3
    # 50 s of two cores for 1,000 images there; 500 here, on something that takes three times as long as a core.
    assert training_seconds(probe, facts(images=500), rows, here, "cpu") == pytest.approx(150)
    assert slowness(PHOTOS, ROWS, here) is None


def test_without_a_timed_training_it_is_counted_in_forward_passes() -> None:
    recipe = Candidate("r", "a recipe", "n", (), (), 10)
    assert training_seconds(recipe, facts(), [], speed("n", 2.0), "cpu") == pytest.approx(3 * 10 * 1000 * 0.002)
    assert training_seconds(recipe, facts(), [], None, "cpu") is None
