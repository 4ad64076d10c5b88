import torch

from vitrail.lab.machine import hardware, slowness, versions


def test_the_machine_has_a_name_versions_and_a_speed() -> None:
    assert "thread" in hardware(torch.device("cpu"))
    assert versions()["torch"] == torch.__version__
    assert 0.01 < slowness() < 1000
