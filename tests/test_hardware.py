"""The choice of device and precision, and the messages if it is not the requested one."""

import ctypes
import subprocess
import sys

import pytest
import torch

from vitrail import hardware
from vitrail.errors import ConfigError, Unsupported

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    hardware.bf16_works.cache_clear()


def died(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.CompletedProcess([], -4)  # SIGILL


def test_a_child_process_tries_bf16() -> None:
    assert hardware.bf16_works()  # under the cap that the tests' configuration sets


def test_a_child_that_dies_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", died)
    assert not hardware.bf16_works()


def test_the_answer_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", died)
    hardware.bf16_works()
    monkeypatch.undo()
    assert not hardware.bf16_works()


def test_bf16_falls_back_with_one_sentence_and_children_get_the_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", died)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    chosen, sentence = hardware.precision("bf16", CPU)
    assert chosen == "float32"
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in sentence
    assert hardware.os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"


def test_precisions_that_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "bf16_works", lambda: True)
    assert hardware.precision("auto", CPU) == ("float32", None)
    assert hardware.precision("float32", CPU) == ("float32", None)
    assert hardware.precision("bf16", CPU) == ("bf16", None)
    assert hardware.precision("fp16", CPU) == ("float32", "fp16 needs a GPU; float32 is used on cpu")


def test_devices() -> None:
    assert hardware.device("cpu") == CPU
    assert hardware.device() in (CPU, torch.device("mps"), torch.device("cuda:0"))
    with pytest.raises(ConfigError, match=r"'cdua'.*'cuda'"):
        hardware.device("cdua")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="GPU"):
        hardware.device("cuda")


@pytest.mark.skipif(sys.platform != "linux", reason="stacks for signals are looked at on Linux alone")
def test_a_small_stack_for_signals_is_replaced() -> None:
    set_stack = ctypes.CDLL(None).sigaltstack
    before, small, found = hardware._SignalStack(), ctypes.create_string_buffer(1 << 14), hardware._SignalStack()
    set_stack(ctypes.byref(hardware._SignalStack(ctypes.addressof(small), 0, 1 << 14)), ctypes.byref(before))
    try:
        hardware.room_for_signals()
        set_stack(None, ctypes.byref(found))
        assert found.size == 1 << 16
        assert found.start == ctypes.addressof(hardware._held[-1])
    finally:
        set_stack(ctypes.byref(before), None)


@pytest.mark.parametrize(
    ("size", "most", "expected"), [(32, 256, 64), (100, 256, 10), (160, 256, 4), (512, 256, 4), (160, 2, 2)]
)
def test_a_cpu_takes_few_large_images_at_once(size: int, most: int, expected: int) -> None:
    assert hardware.inference_batch_size("cpu", (size, size), most=most) == expected
    assert hardware.inference_batch_size("cuda:0", (size, size), most=most) == most


def test_products_in_8_bits_need_a_gpu_that_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unsupported, match="cpu"):
        hardware.check_fp8(CPU)
    with pytest.raises(Unsupported, match="compute capability"):
        hardware.precision("fp8", CPU)
    gpu = torch.device("cuda:0")
    for capability, works in (((8, 6), False), ((8, 9), True), ((9, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, one=capability: one)
        assert hardware.fp8_works(gpu) == works
    assert hardware.precision("fp8", gpu) == ("bf16", None)
