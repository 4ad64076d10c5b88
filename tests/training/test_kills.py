"""Real processes, killed at random steps, end with the bits of a run that nobody touched."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_run import RECIPE, resumed, small_loop

from vitrail.models.checkpoint import load

TESTS = Path(__file__).parent.parent
STEPS = 8

# One process plays all the lives of a run: torch is imported once, each life is a fork that can be killed.
LIVES = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from pathlib import Path
from small_run import resumed, small_loop

def life(place, step, number, moment):
    loop = (resumed if any((place / "checkpoints").glob("step-*")) else small_loop)(place, save_steps=3)
    treat, write = loop.step.treat, loop.store._write
    def treated(batch, epoch):
        if moment == "step" and loop.progress.step == step:
            signal.raise_signal(number)
        return treat(batch, epoch)
    def written(file, header, learner):
        if moment == "save" and loop.progress.step >= step:
            import vitrail.models.checkpoint.files as files
            def torn(new):  # dies with half of the file on disk
                Path(new).write_bytes(b"half")
                signal.raise_signal(number)
            files.write_atomically(file, torn)
        write(file, header, learner)
    loop.step.treat, loop.store._write = treated, written
    loop.run()

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
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Lives:
    """A process that starts runs and tells how they ended."""

    def __init__(self) -> None:
        code = LIVES.format(tests=str(TESTS))
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def live(self, place: Path, step: int = 10**6, number: int = 0, moment: str = "step") -> int:
        self.process.stdin.write(f"{place} {step} {int(number)} {moment}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def lives():
    made = Lives()
    yield made
    made.process.stdin.close()
    made.process.wait()
    made.process.stdout.close()


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
    *((signal.SIGKILL, "step", seed) for seed in range(9)),
    *((signal.SIGKILL, "save", seed) for seed in range(6)),
    *((signal.SIGTERM, "step", seed) for seed in range(5)),
    *((signal.SIGINT, "step", seed) for seed in range(2)),
]
CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.mark.parametrize(("number", "moment", "seed"), MOMENTS)
def test_killed_twice_at_random_and_resumed_it_ends_with_the_same_bits(
    lives: Lives, untouched: Path, tmp_path: Path, number: signal.Signals, moment: str, seed: int
) -> None:
    draw = random.Random(f"{number} {moment} {seed}")
    first, second = sorted(draw.sample(range(1 if moment == "save" else 0, STEPS - 1), 2))
    assert lives.live(tmp_path, first, number, moment) == CODES[number]
    assert lives.live(tmp_path, second, number, moment) == CODES[number]
    assert lives.live(tmp_path) == 0
    assert equal(untouched, tmp_path)


def test_a_process_killed_from_outside_at_any_moment(untouched: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(TESTS / "small_run.py"), str(tmp_path)]
    process = subprocess.Popen(command)
    while not any((tmp_path / "checkpoints").glob("step-*")) and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.wait()
    again = resumed(tmp_path)
    again.run()
    through = small_loop(tmp_path / "through")
    through.run()
    assert equal(tmp_path / "through", tmp_path)


def test_the_comparison_can_fail(untouched: Path, tmp_path: Path) -> None:
    assert RECIPE.epochs == 2
    small_loop(tmp_path, seed=1, save_steps=3).run()
    assert not equal(untouched, tmp_path)
