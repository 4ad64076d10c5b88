"""Two real processes: the losses of one, nothing extra on the wire, checkpoints in shards, restarts after a kill."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support import processes
from support.small_run import Toy, small_loop

from vitrail.errors import Notice, TrainingError
from vitrail.training.distributed import (
    ShardedStore,
    World,
    gradients,
    is_first,
    join,
    launcher,
    restarted,
    spread,
    whole,
)

TESTS = Path(__file__).parent.parent
# Dropout differs by process; batch norms, as in a stem of convolutions, must not.
STILL = {
    "model": {"drop_path": 0.0, "dropout": 0.0, "patch": {"kind": "conv", "halvings": 2}}, "epochs": 2, "accumulate": 2
}  # fmt: skip
# Muon's matrices have to be gathered under FSDP; everything but the matrices of blocks is AdamW's there, too.
OPTIONS = {"ddp": STILL, "fsdp": STILL | {"optimiser": {"kind": "muon", "lr": 3e-3}}}
# Fixed positions are float32: they meet the parameters of the first norm.
HALF = {"precision": "bf16", "model": {"drop_path": 0.0, "dropout": 0.0, "position": "sincos2d"}, "epochs": 1}

TOGETHER = """
import json, os, signal, sys, warnings
sys.path.insert(0, {tests!r})
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This process .* is multi-threaded, use of fork", DeprecationWarning)  # an agent is
import torch
torch.set_num_threads(1)
import torch.distributed as dist
from pathlib import Path
from support.small_run import CPU, resumed, small_loop
from vitrail.training.distributed import join, whole
folder, runs = Path(sys.argv[1]), json.loads(sys.argv[2])

def one(world, place, *, shard, kill=None, count=False, **options):
    began = any((place / "checkpoints").glob("step-*"))
    loop = (resumed if began else small_loop)(place, world=world, shard=shard, **options)
    first = loop.progress.step
    calls = []
    if count:
        from torch.distributed.fsdp import FSDPModule
        from torch.nn.parallel import DistributedDataParallel as DDP
        assert isinstance(loop.step.loss, FSDPModule if shard == "fsdp" else DDP), type(loop.step.loss)
        if shard == "ddp":
            def hook(state, bucket):
                calls.append(bucket.index())
                reduced = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
                return reduced.then(lambda future: future.value()[0] / world.size)
            loop.step.loss.register_comm_hook(None, hook)
    if kill is not None and not began:
        treat = loop.step.treat
        def treated(batch, epoch):
            if loop.progress.step == kill and world.rank == 1:
                signal.raise_signal(signal.SIGKILL)
            return treat(batch, epoch)
        loop.step.treat = treated
    loop.run()
    again = resumed(place, world=world, shard=shard, **options)
    same = all(
        torch.equal(*(t.to_local() if hasattr(t, "to_local") else t for t in pair))
        for pair in zip(loop.learner.tensors().values(), again.learner.tensors().values(), strict=True)
    )
    weights = whole(loop.learner.task)
    if world.main:
        torch.save(weights, place / "weights.pt")
        losses = [entry["train"]["loss"] for entry in loop.progress.history]
        scores = [entry["val"]["accuracy"] for entry in loop.progress.history]
        result = {{"losses": losses, "scores": scores, "same": same, "first": first, "calls": len(calls)}}
        (place / "result.json").write_text(json.dumps(result))
    world.wait()

def worker():
    with join(CPU) as world:
        for name, options in runs.items():
            if not (folder / name / "result.json").exists():  # else a life before has been through it
                one(world, folder / name, **options)

# torchrun's own agent; its workers are forks of one process, as importing torch in each of them takes longest.
import torch.distributed.checkpoint, torch.distributed.fsdp, torch.nn.parallel, torch.optim
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
agent = LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="together", rdzv_backend="c10d", rdzv_endpoint="localhost:0",
    max_restarts=int(sys.argv[3]), monitor_interval=0.1, start_method="fork",
)
elastic_launch(agent, worker)()
"""


def together(folder: Path, runs: dict[str, dict], *, restarts: int = 0) -> None:
    """Two processes of torchrun go through one run after the other; the first of them writes down what came out."""
    for name in runs:
        (folder / name).mkdir()
    script = folder / "together.py"
    script.write_text(TOGETHER.format(tests=str(TESTS)))
    command = [sys.executable, str(script), str(folder), json.dumps(runs), str(restarts)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = processes.run(command, env=env)
    assert done.returncode == 0, done.stderr[-3000:]


class Ended(NamedTuple):
    """A run of two processes, and what the first of them said."""

    shard: str
    folder: Path
    result: dict


def ended(folder: Path, shard: str) -> Ended:
    return Ended(shard, folder, json.loads((folder / "result.json").read_text()))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the same two processes, as starting them takes longest; the last is killed, and started again."""
    folder = tmp_path_factory.mktemp("together")
    runs = {shard: {"shard": shard, "count": True, **OPTIONS[shard]} for shard in OPTIONS}
    together(folder, runs | {"half": {"shard": "fsdp", **HALF}, "killed-fsdp": runs["fsdp"] | {"kill": 6}}, restarts=1)
    return folder


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def through(request: pytest.FixtureRequest, place: Path) -> Ended:
    """A run that nobody disturbed."""
    return ended(place / request.param, request.param)


@pytest.fixture(scope="module")
def alone(
    through: Ended, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    loop = small_loop(tmp_path_factory.mktemp("alone"), **OPTIONS[through.shard])
    history = loop.run().history
    losses, scores = [entry["train"]["loss"] for entry in history], [entry["val"]["accuracy"] for entry in history]
    return losses, scores, whole(loop.learner.task)


def test_two_processes_learn_what_one_learns(through: Ended, alone: tuple) -> None:
    shard, folder, result = through
    losses, scores, weights = alone
    assert result["losses"] == pytest.approx(losses, abs=1e-6)
    assert result["scores"] == scores
    assert result["same"]  # what was saved comes back
    for name, tensor in torch.load(folder / "weights.pt").items():
        assert torch.allclose(tensor, weights[name], atol=1e-4), name
    if shard == "ddp":
        # Eight steps of two parts, one exchange a step; the first steps may cut their buckets differently.
        assert 8 <= result["calls"] < 16
        assert [item.suffix for item in (folder / "checkpoints").iterdir()] == [".safetensors"] * 2
    else:
        names = {item.name for item in (folder / "checkpoints" / "step-000000008").iterdir()}
        assert {"shards.json", ".metadata", "__0_0.distcp", "__1_0.distcp"} <= names


def test_shards_are_trained_in_bf16_as_one_process_does(place: Path, tmp_path: Path) -> None:
    (loss,) = ended(place / "half", "fsdp").result["losses"]
    (entry,) = small_loop(tmp_path, **HALF).run().history
    assert loss == pytest.approx(entry["train"]["loss"], rel=1e-3)


def test_a_killed_worker_is_restarted_from_the_last_checkpoint(place: Path) -> None:
    it_went_on_as_if_nothing_had_been(ended(place / "killed-fsdp", "fsdp"), ended(place / "fsdp", "fsdp"))


@pytest.mark.slow
def test_a_killed_worker_is_restarted_in_ddp_too(place: Path, tmp_path: Path) -> None:
    together(tmp_path, {"killed": {"shard": "ddp", "count": True, "kill": 6, **OPTIONS["ddp"]}}, restarts=1)
    it_went_on_as_if_nothing_had_been(ended(tmp_path / "killed", "ddp"), ended(place / "ddp", "ddp"))


def it_went_on_as_if_nothing_had_been(killed: Ended, through: Ended) -> None:
    assert (through.result["first"], killed.result["first"]) == (0, 4)  # it began at the checkpoint of the first epoch
    assert killed.result["losses"] == through.result["losses"]
    first, second = (torch.load(run.folder / "weights.pt") for run in (through, killed))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("through", ["fsdp"], indirect=True)
def test_a_damaged_shard_is_noticed_and_the_checkpoint_before_it_used(through: Ended, tmp_path: Path) -> None:
    checkpoints = Path(shutil.copytree(through.folder / "checkpoints", tmp_path / "checkpoints"))
    store = ShardedStore(checkpoints, keep=3, world=World())
    assert store._newest()[1].progress.step == 8
    shard = checkpoints / "step-000000008" / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.warns(Notice, match=r"step-000000008 is damaged: __1_0\.distcp; the checkpoint before it is used"):
        assert store._newest()[1].progress.step == 4


def test_alone_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with join(torch.device("cpu")) as world:
        assert (world.rank, world.size, world.main) == (0, 1, True)
        assert world.most(3, 5) == (3, 5)
        assert world.mean({"a": 1.0}) == {"a": 1.0}
        assert world.collect("x") == ["x"]
        meter = Toy().metrics()
        assert world.merge(meter) is meter
        world.wait()


def test_a_restart_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert not restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert restarted()


@pytest.mark.parametrize(
    ("program", "environment", "words"),
    [
        ("/usr/bin/vitrail", {}, "vitrail"),
        ("/lib/vitrail/__main__.py", {}, "python -m vitrail"),
        (
            "/lib/vitrail/__main__.py",
            {"RANK": "9", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "16"},
            "torchrun --nnodes 2 --nproc-per-node 8 -m vitrail",
        ),
    ],
)
def test_a_command_is_recorded_as_it_was_typed(
    program: str, environment: dict, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [program, "train"])
    monkeypatch.delenv("RANK", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert " ".join(launcher()) == words
    assert is_first() == ("RANK" not in environment)


def test_one_process_needs_no_wrapper() -> None:
    task = Toy()
    options = {"device": torch.device("cpu"), "precision": "float32", "compiled": False}
    assert spread(task, World(), shard="fsdp", **options) is task
    with gradients(task, now=False):
        pass


def test_fp16_is_not_sharded() -> None:
    options = {"device": torch.device("cpu"), "precision": "fp16", "compiled": False}
    with pytest.raises(TrainingError, match="fp16"):
        spread(Toy(), World(0, 2), shard="fsdp", **options)
