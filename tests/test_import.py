"""Importing has no effect: nothing is printed, asked of the network, set or started."""

import subprocess
import sys

import pytest
from support import processes

import vitrail

WATCH = """
import contextlib, importlib, io, os, pkgutil, socket, sys, traceback
import torch
import vitrail

def refuse(*arguments, **keywords):
    raise AssertionError("the network was asked for")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse

def state():
    return {
        "environment": dict(os.environ),
        "random numbers": torch.random.get_rng_state().tolist(),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": torch.is_grad_enabled(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "cuda": torch.cuda.is_initialized(),
    }

def import_everything():
    for module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

def watch(effect):
    before, printed = state(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        effect()
    after = state()
    changed = [name for name in before if before[name] != after[name]]
    assert not changed, f"changed: {changed}"
    assert not printed.getvalue(), f"printed: {printed.getvalue()}"
    return "no effect"
"""

REPORT_EACH = """
for effect in EFFECTS:
    try:
        print(watch(lambda: exec(effect)), "@")
    except BaseException:
        print(traceback.format_exc(), "@")
"""

EFFECTS = {
    "pass": "no effect",
    "print('hello')": "printed: hello",
    "os.environ['VITRAIL'] = '1'": "changed: ['environment']",
    "torch.manual_seed(1)": "changed: ['random numbers']",
    "torch.set_default_dtype(torch.float64)": "changed: ['default dtype']",
    "torch.set_num_threads(3)": "changed: ['threads']",
    "socket.create_connection(('localhost', 1))": "the network was asked for",
    "import warnings; warnings.warn('look')": "UserWarning: look",
}


def run(code: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "error", "-c", code]
    return processes.run(command)


def test_importing_every_module_has_no_effect() -> None:
    compiler = "print('torch._dynamo' in sys.modules and torch.version.cuda is None)"  # takes a second to import
    result = run(WATCH + f"print(watch(import_everything)); {compiler}")
    assert (result.stdout, result.stderr) == ("no effect\nFalse\n", "")


def test_the_watch_can_fail() -> None:
    result = run(WATCH + REPORT_EACH.replace("EFFECTS", repr(list(EFFECTS))))
    reports = result.stdout.split("@\n")[:-1]
    assert len(reports) == len(EFFECTS), result.stderr
    for effect, report in zip(EFFECTS.values(), reports, strict=True):
        assert effect in report


def test_the_front_door_does_not_load_torch() -> None:
    loaded = "print([name in sys.modules for name in ('torch', 'numpy', 'vitrail.config')])"
    assert run(f"import sys, vitrail; dir(vitrail); {loaded}").stdout == "[False, False, False]\n"
    assert run(f"import sys, vitrail; vitrail.create; {loaded}").stdout == "[True, True, True]\n"


@pytest.mark.parametrize("name", vitrail.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(vitrail, name) is not None
    assert name in dir(vitrail)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'vitrail' has no attribute 'creat'"):
        _ = vitrail.creat
