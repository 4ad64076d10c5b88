"""The time of training names the speeds of a device of the same kind."""

from dataclasses import replace

from support.advised import SETTINGS, facts, result, speed

from vitrail.advice.choose import Evidence, Limits, candidates, judge
from vitrail.advice.costs import training

NETWORK = "packaged-photos"


def test_speeds_of_another_device_are_not_compared() -> None:
    gpu = speed(NETWORK, 5.0)
    gpu = replace(gpu, values={**gpu.values, "device": "cuda", "machine": "h200"})
    timed = replace(result("probe", "", 0.0, device="cuda", images=640, seconds=8.0, cores=1), kind="training")
    rows = [result("probe", "a", 0.9), speed(NETWORK, 10.0), gpu, timed]
    (probe,) = candidates(facts(), rows, SETTINGS, {})
    evidence = Evidence(rows, {NETWORK: gpu}, {}, "cuda")
    (said,) = training(facts(), judge(probe, facts(), Limits(), evidence), evidence, named=True)
    assert "about 12 s" in said.text
    assert "as fast as that one" in said.text
    assert {row.values["device"] for row in said.rows} == {"cuda"}
