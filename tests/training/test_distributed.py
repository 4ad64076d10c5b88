"""Two real processes: the losses of one, nothing extra on the wire, checkpoints in shards, restarts after a kill."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_run import Hits, Toy, small_loop

from vitrail.errors import TrainingError
from vitrail.training.distributed import World, gradients, join, restarted, spread, whole

TESTS = Path(__file__).parent.parent
STILL = {"model": {"drop_path": 0.0, "dropout": 0.0}, "epochs": 2, "accumulate": 2}  # dropout differs by process

TOGETHER = """
import json, os, signal, sys, warnings
sys.path.insert(0, {tests!r})
warnings.simplefilter("error")
import torch
torch.set_num_threads(1)
import torch.distributed as dist
from pathlib import Path
from small_run import CPU, join, resumed, small_loop
from vitrail.training.distributed import whole
folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
shard, kill, count = options.pop("shard"), options.pop("kill", None), options.pop("count", False)
with join(CPU) as world:
    began = any((folder / "checkpoints").glob("step-*"))
    loop = (resumed if began else small_loop)(folder, world=world, shard=shard, **options)
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
                os.kill(os.getpid(), signal.SIGKILL)
            return treat(batch, epoch)
        loop.step.treat = treated
    loop.run()
    again = resumed(folder, world=world, shard=shard, **options)
    same = all(
        torch.equal(*(t.to_local() if hasattr(t, "to_local") else t for t in pair))
        for pair in zip(loop.learner.tensors().values(), again.learner.tensors().values(), strict=True)
    )
    weights = whole(loop.learner.task)
    if world.main:
        torch.save(weights, folder / "weights.pt")
        losses = [entry["train"]["loss"] for entry in loop.progress.history]
        scores = [entry["val"]["accuracy"] for entry in loop.progress.history]
        told = {{"losses": losses, "scores": scores, "same": same, "first": first, "calls": len(calls)}}
        (folder / "told.json").write_text(json.dumps(told))
"""


def together(folder: Path, *, restarts: int = 0, **options: object) -> dict:
    """Runs two processes under torchrun and gives what the first of them wrote down."""
    folder.mkdir(exist_ok=True)
    script = folder / "together.py"
    script.write_text(TOGETHER.format(tests=str(TESTS)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", str(restarts), str(script), str(folder), json.dumps(options)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as agent:
        try:
            _, errors = agent.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            agent.terminate()  # it takes its workers with it
            raise
    assert agent.returncode == 0, errors[-3000:]
    return json.loads((folder / "told.json").read_text())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], list[float], dict[str, torch.Tensor]]:
    loop = small_loop(tmp_path_factory.mktemp("alone"), **STILL)
    history = loop.run().history
    losses, scores = [entry["train"]["loss"] for entry in history], [entry["val"]["accuracy"] for entry in history]
    return losses, scores, whole(loop.learner.task)


@pytest.mark.parametrize("shard", ["ddp", "fsdp"])
def test_two_processes_learn_what_one_learns(shard: str, alone: tuple, tmp_path: Path) -> None:
    told = together(tmp_path, shard=shard, count=True, **STILL)
    losses, scores, weights = alone
    assert told["losses"] == pytest.approx(losses, abs=1e-6)
    assert told["scores"] == scores
    assert told["same"]  # what was saved comes back
    for name, tensor in torch.load(tmp_path / "weights.pt").items():
        assert torch.allclose(tensor, weights[name], atol=1e-4), name
    if shard == "ddp":
        # Eight steps of two parts, one exchange a step; the first steps may cut their buckets differently.
        assert 8 <= told["calls"] < 16
        assert [item.suffix for item in (tmp_path / "checkpoints").iterdir()] == [".safetensors"] * 2
    else:
        names = {item.name for item in (tmp_path / "checkpoints" / "step-000000008").iterdir()}
        assert {"run.json", ".metadata", "__0_0.distcp", "__1_0.distcp"} <= names


@pytest.mark.parametrize("shard", ["ddp", "fsdp"])
def test_a_killed_worker_is_restarted_from_the_last_checkpoint(shard: str, tmp_path: Path) -> None:
    through = together(tmp_path / "through", shard=shard)
    told = together(tmp_path / "killed", shard=shard, kill=6, restarts=1)
    assert told["first"] == 4  # the second life began at the checkpoint of the first epoch
    assert told["losses"] == through["losses"]
    first, second = (torch.load(tmp_path / name / "weights.pt") for name in ("through", "killed"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_damaged_shard_is_noticed(tmp_path: Path) -> None:
    together(tmp_path, shard="fsdp")
    shard = tmp_path / "checkpoints" / "step-000000008" / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    (tmp_path / "told.json").unlink()
    with pytest.raises(AssertionError) as failed:
        together(tmp_path, shard="fsdp")
    # Warnings are errors there: without that, the checkpoint before it would be used.
    assert re.search(r"step-000000008 is damaged: __1_0\.distcp; the checkpoint before it is used", str(failed.value))


def test_alone_without_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with join(torch.device("cpu")) as world:
        assert (world.rank, world.size, world.main) == (0, 1, True)
        assert world.most(3, 5) == (3, 5)
        assert world.mean({"a": 1.0}) == {"a": 1.0}
        assert world.collect("x") == ["x"]
        meter = Hits()
        assert world.merge(meter) is meter
        world.wait()


def test_a_restart_is_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    assert not restarted()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert restarted()


def test_one_process_needs_no_wrapper() -> None:
    task = Toy()
    options = {"device": torch.device("cpu"), "precision": "float32", "compiled": False}
    assert spread(task, World(), shard="fsdp", **options) is task
    with gradients(task, now=False):
        pass


def test_fp16_is_not_sharded() -> None:
    options = {"device": torch.device("cpu"), "precision": "fp16", "compiled": False}
    with pytest.raises(TrainingError, match="fp16 cannot be sharded"):
        spread(Toy(), World(0, 2), shard="fsdp", **options)
