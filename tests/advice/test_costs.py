"""The time of training names the speeds of a device of the same kind."""

from dataclasses import replace

from support.advised import SETTINGS, engine, facts, result, speed

from vitrail.advice.choose import Evidence, Limits, candidates, judge
from vitrail.advice.costs import answer, training

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


def test_both_times_of_an_engine_explain_themselves() -> None:
    faster = engine(NETWORK, 4.0)
    rows = [result("probe", "a", 0.9), replace(faster, values={**faster.values, "low": 2.0})]
    (probe,) = candidates(facts(), rows, SETTINGS, {})
    evidence = Evidence(rows, {NETWORK: speed(NETWORK, 20.0)}, {}, "cpu")
    limits = Limits(latency=12.0)
    said = " ".join(one.text for one in answer(judge(probe, facts(), limits, evidence), limits, evidence))
    assert "4.00 times as fast as eager (2.00 to 4.00; a core), so about 5 ms" in said
    assert "10 ms, with the lower end of what was measured (2.00 times)" in said
