"""Real processes, killed at random steps, end with the bits of a run that nobody touched."""

import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.processes import started

from vitrail.models.checkpoint import load, save

TESTS = Path(__file__).parent.parent
STEPS = 8

# One process plays all the lives of a run: torch is imported once, each life is a fork that can be killed.
LIVES = """
import os, signal, sys, tempfile, time
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from support.small_run import resumed, small_loop

def wait_for_a_checkpoint(place):
    while not any((place / "checkpoints").glob("step-*")):
        time.sleep(0.001)

def life(place, step, number, moment):
    loop = (resumed if any((place / "checkpoints").glob("step-*")) else small_loop)(place, save_steps=3)
    treat, write = loop.step.treat, loop.store._write
    def treated(batch, epoch):
        if moment == "step" and loop.progress.step == step:
            signal.raise_signal(number)
        return treat(batch, epoch)
    def written(file, header, learner):
        if moment == "save" and loop.progress.step >= step:
            import vitrail.files as files
            def torn(new):  # dies with half of the file on disk
                Path(new).write_bytes(b"half")
                signal.raise_signal(number)
            files.write_atomically(file, torn)
        write(file, header, learner)
    loop.step.treat, loop.store._write = treated, written
    loop.run()

with tempfile.TemporaryDirectory() as nothing:
    small_loop(Path(nothing))  # what torch imports for an optimiser is imported once, too
for line in sys.stdin:
    place, step, number, moment = line.split()
    child = os.fork()
    if child == 0:
        try:
            life(Path(place), int(step), int(number), moment)
        except SystemExit as left:
            os._exit(left.code)
        except KeyboardInterrupt:
            os._exit(130)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if moment == "outside":
        wait_for_a_checkpoint(Path(place))
        os.kill(child, int(number))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Lives:
    """A process that starts runs and tells how they ended."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def live(self, place: Path, step: int = 10**6, number: int = 0, moment: str = "step") -> int:
        self.process.stdin.write(f"{place} {step} {int(number)} {moment}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def lives():
    command = [sys.executable, "-c", LIVES.format(tests=str(TESTS))]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Lives(process)


@pytest.fixture(scope="module")
def untouched(lives: Lives, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("untouched")
    assert lives.live(place) == 0
    return place


def last(place: Path) -> dict[str, torch.Tensor]:
    return load_file(place / "checkpoints" / f"step-{STEPS:09d}.safetensors")


def equal(one: Path, other: Path) -> bool:
    first, second = last(one), last(other)
    same = first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    models = load(one).state_dict(), load(other).state_dict()
    return same and all(torch.equal(models[0][name], models[1][name]) for name in models[0])


MOMENTS = [
    *((signal.SIGKILL, "step", seed) for seed in range(3)),
    *((signal.SIGKILL, "save", seed) for seed in range(2)),
    (signal.SIGTERM, "step", 0),
    (signal.SIGINT, "step", 0),
]
KILLS = 4  # of each run: 28 in all
CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
# When a signal comes in the last step of an epoch, the run goes on for one step more: another cannot come there.
STEPS_OF = {"step": (0, 1, 2, 3, 5, 6), "save": (1, 2, 3, 4, 5, 6)}


@pytest.mark.parametrize(("number", "moment", "seed"), MOMENTS)
def test_killed_at_random_and_resumed_again_and_again_it_ends_with_the_same_bits(
    lives: Lives, untouched: Path, tmp_path: Path, number: signal.Signals, moment: str, seed: int
) -> None:
    draw = random.Random(f"{number} {moment} {seed}")
    for step in sorted(draw.sample(STEPS_OF[moment], KILLS)):
        assert lives.live(tmp_path, step, number, moment) == CODES[number]
    assert lives.live(tmp_path) == 0
    assert equal(untouched, tmp_path)


def test_a_process_killed_from_outside_at_any_moment(lives: Lives, untouched: Path, tmp_path: Path) -> None:
    lives.live(tmp_path, number=signal.SIGKILL, moment="outside")
    assert lives.live(tmp_path) == 0
    assert equal(untouched, tmp_path)


def test_the_comparison_can_fail(untouched: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(untouched, tmp_path / "other"))
    assert equal(untouched, other)
    tensors, model = last(other), load(other)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    save(model, other)
    assert not equal(untouched, other)
    shutil.copytree(untouched, other, dirs_exist_ok=True)
    next(tensor for tensor in tensors.values() if tensor.is_floating_point()).view(-1)[0] += 1e-3
    save_file(tensors, other / "checkpoints" / f"step-{STEPS:09d}.safetensors")
    assert not equal(untouched, other)
