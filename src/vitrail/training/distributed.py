"""Many processes as one run: who is there, how the model is spread, how its shards are saved."""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import Store as KeyStore  # type: ignore[attr-defined]
from torch.distributed import TCPStore, rendezvous  # type: ignore[attr-defined]  # there, but not in its __all__
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from vitrail.errors import CheckpointError, TrainingError, WriteError
from vitrail.files import write_json
from vitrail.hardware import Precision
from vitrail.layers.batch_norm import sync_batch_norms
from vitrail.tasks.task import Meter, Task
from vitrail.training.config import Compile, compiles
from vitrail.training.state import Header, Learner, Progress, Store

Shard = Literal["ddp", "fsdp"]
M = TypeVar("M", bound=Meter)

_PATIENCE = 150  # attempts of about two seconds to reach the first process
_SETTLE = 0.1  # seconds for the threads of gloo to let go of their tensors


@dataclass(frozen=True)
class World:
    """The processes of a run, and the rank of this one."""

    rank: int = 0
    size: int = 1

    @property
    def main(self) -> bool:
        """Whether this process writes and speaks."""
        return self.rank == 0

    def most(self, *numbers: int) -> tuple[int, ...]:
        """The largest of each number over all processes."""
        if self.size == 1:
            return numbers
        all_of_them = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(all_of_them, dist.ReduceOp.MAX)
        return tuple(all_of_them.tolist())

    def mean(self, values: dict[str, float]) -> dict[str, float]:
        """The mean of each value over all processes."""
        if self.size == 1 or not values:
            return values
        total = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(total)
        return dict(zip(values, (total / self.size).tolist(), strict=True))

    def merge(self, meter: M) -> M:
        """One meter with the batches of all processes."""
        if self.size == 1:
            return meter
        first, *others = self.collect(meter)
        for other in others:
            first.merge(other)
        return first

    def collect(self, thing: Any) -> list[Any]:
        """The thing of every process, in their order."""
        if self.size == 1:
            return [thing]
        things: list[Any] = [None] * self.size
        dist.all_gather_object(things, thing)
        return things

    def wait(self) -> None:
        """Returns when all processes have come here."""
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def join(device: torch.device) -> Iterator[World]:
    """The rank of this process among those that torchrun started; a world of one where it started none."""
    if "RANK" not in os.environ or os.environ.get("WORLD_SIZE") == "1":
        yield World()
        return
    started = not dist.is_initialized()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if started:
        store, rank, size = next(rendezvous("env://"))
        # gloo beside nccl: counters and meters are exchanged without touching the GPU's queue.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=_own_store(store, rank), rank=rank, world_size=size)
    try:
        yield World(dist.get_rank(), dist.get_world_size())
    finally:
        if started:
            _leave()


def _leave() -> None:
    """Ends the process group.

    A thread of gloo still needs the interpreter to free the tensors of its last work, and there is no way to wait for
    it; if that happens while the interpreter shuts down, the process aborts (pytorch/pytorch#190489).
    """
    dist.destroy_process_group()
    time.sleep(_SETTLE)


def _own_store(shared: KeyStore, rank: int) -> KeyStore:
    """A store of this life of the run alone.

    That of torchrun's agent outlives the workers, and those of the next life would find the addresses of the dead in
    it (pytorch/pytorch#135712); the agent's count of restarts does not help, as agents of several nodes count apart.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return shared
    host, key = os.environ["MASTER_ADDR"], "vitrail/port"
    if rank == 0:
        own = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        shared.set(key, str(own.port))
        return own
    for _ in range(_PATIENCE):
        port = int(shared.get(key))  # waits for the first one; may be the port of an earlier start, which is closed
        try:
            own = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=2))
        except dist.DistError:
            continue
        own.set_timeout(timedelta(minutes=5))
        return own
    raise TrainingError(f"the first process at {host} cannot be reached, so this one cannot join the run")


def is_first() -> bool:
    """Whether this process is the first of those that torchrun started, or alone; known without joining them."""
    return os.environ.get("RANK", "0") == "0"


def launcher() -> list[str]:
    """The words of a command line before those that a program sees of it."""
    program = Path(sys.argv[0])
    if program.name != "__main__.py":
        return [program.name]
    here, everywhere = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    if "RANK" not in os.environ:
        return ["python", "-m", program.parent.name]
    nodes = str(everywhere // here)
    return ["torchrun", "--nnodes", nodes, "--nproc-per-node", str(here), "-m", program.parent.name]


def restarted() -> bool:
    """Whether torchrun's agent restarted this process after a failure: then the run resumes from its checkpoint."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def spread(
    task: Task, world: World, *, shard: Shard, device: torch.device, precision: Precision,
    compiled: Compile,
) -> nn.Module:  # fmt: skip
    """The module whose call is the task's loss over all processes.

    "ddp" keeps a whole copy everywhere and averages gradients (arXiv:2006.15704); "fsdp" keeps of parameters, gradients
    and moments one part each, gathered block by block when they are needed (arXiv:2304.11277).
    """
    if compiles(compiled):
        # What FSDP does between blocks cannot be compiled; the blocks themselves can. Blocks alike share their code.
        for module in _blocks(task) if compiled == "blocks" or (shard == "fsdp" and world.size > 1) else [task]:
            module.compile()
    if world.size == 1:
        return task
    sync_batch_norms(task)
    if shard == "ddp":
        return _replicated(task, [device.index] if device.type == "cuda" else None)
    if precision == "fp16":
        raise TrainingError(
            "--shard fsdp and --precision fp16 cannot be used together: loss scaling does not see all shards; use bf16"
        )
    # On a CPU autocast leaves norms alone, and theirs take no bf16 parameters with float32 tokens: all stay float32.
    half = torch.bfloat16 if precision == "bf16" and device.type != "cpu" else None
    # Inputs stay as they are, since autocast casts where it must, and soft labels must not be rounded.
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, cast_forward_inputs=False)
    mesh = init_device_mesh(device.type, (world.size,))
    for block in _blocks(task):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(task, mesh=mesh, mp_policy=policy)
    register_fsdp_forward_method(task, "outputs")
    return task


def _replicated(task: Task, ids: list[int] | None) -> nn.Module:
    with warnings.catch_warnings():
        # The name is deprecated in torch 2.13 for one that 2.11 does not have. Buffers are equal everywhere.
        warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
        return DistributedDataParallel(task, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True)


def _blocks(task: Task) -> list[nn.Module]:
    lists = (module for path, module in task.named_modules() if path.split(".")[-1] == "blocks")
    return [block for blocks in lists for block in blocks.children()]


@contextlib.contextmanager
def gradients(module: nn.Module, *, now: bool) -> Iterator[None]:
    """A forward and backward pass whose gradients are exchanged now, or kept until a later pass does it."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)
        yield
    elif isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
    else:
        yield


def whole(module: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module that may be sharded, whole, on the CPU; every process must ask for it."""
    state = module.state_dict()
    return {name: (t.full_tensor() if isinstance(t, DTensor) else t).detach().cpu() for name, t in state.items()}


class RankedStore(Store):
    """Checkpoints of a model that is whole in every process: the first writes, all read."""

    def __init__(self, folder: Path, *, keep: int, world: World) -> None:
        super().__init__(folder, keep=keep)
        self.world = world

    def _write(self, file: Path, header: str, learner: Learner) -> None:
        if self.world.main:
            super()._write(file, header, learner)

    def _rotate(self, progress: Progress) -> None:
        if self.world.main:
            super()._rotate(progress)


class ShardedStore(RankedStore):
    """Checkpoints of a sharded model: a folder each, in which every process writes and checks its own part."""

    suffix = ""

    def _write(self, file: Path, header: str, learner: Learner) -> None:
        from torch.distributed.checkpoint.api import CheckpointException  # noqa: PLC0415  (few runs need these)
        from torch.distributed.checkpoint.state_dict_saver import save as save_shards  # noqa: PLC0415

        new = file.with_name(f".{file.name}")
        if self.world.main:
            for left in self.folder.glob(".step-*"):  # of a save that was interrupted
                shutil.rmtree(left, ignore_errors=True)
            new.mkdir(parents=True)
        self.world.wait()
        error = ""
        try:
            save_shards(learner.tensors(), checkpoint_id=new)
        except (OSError, CheckpointException) as problem:
            error = str(problem).splitlines()[0]
        mine = {} if error else {item.name: _sha256(item) for item in new.glob(f"__{self.world.rank}_*")}
        everyone = self.world.collect((error, mine))
        if failed := [message for message, _ in everyone if message]:
            raise WriteError(f"cannot write {file}: {failed[0]}; an existing checkpoint is unchanged")
        if self.world.main:
            files = {name: sums for _, part in everyone for name, sums in part.items()}
            files[".metadata"] = _sha256(new / ".metadata")
            write_json(new / "shards.json", {"header": header, "files": files})
            shutil.rmtree(file, ignore_errors=True)
            new.replace(file)
        self.world.wait()

    def _check(self, file: Path) -> Header:
        try:
            about = json.loads((file / "shards.json").read_text())
            mine = sorted(about["files"])[self.world.rank :: self.world.size]
            wrong = [name for name in mine if _sha256(file / name) != about["files"][name]]
        except (OSError, ValueError, KeyError) as error:
            about, wrong = {}, [f"shards.json ({error})"]
        if found := [name for names in self.world.collect(wrong) for name in names]:
            raise CheckpointError(f"{file} is damaged: {', '.join(found[:4])}")
        return Header.from_json(about["header"])

    def _load(self, file: Path, header: Header, learner: Learner) -> None:
        from torch.distributed.checkpoint.state_dict_loader import load as load_shards  # noqa: PLC0415

        tensors = learner.tensors()
        load_shards(tensors, checkpoint_id=file)
        learner.restore(tensors, header.counters)

    def _remove(self, file: Path) -> None:
        shutil.rmtree(file, ignore_errors=True)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
