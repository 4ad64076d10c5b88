"""One step of the optimiser: launched kernel by kernel, or recorded once on a GPU and replayed.

A small model on a fast GPU waits for Python, which launches hundreds of kernels a step. Recorded as one CUDA graph,
augmentation, loss, gradients and update are one launch.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from vitrail.data.dataset import Batch
from vitrail.errors import ConfigError
from vitrail.hardware import Precision, autocast
from vitrail.tasks.task import Task
from vitrail.training.distributed import World, gradients
from vitrail.training.optim.optimiser import clip, set_rate
from vitrail.training.state import Learner

_WARM_UP = 3  # steps before a recording: compilers and libraries choose their kernels

Losses = Mapping[str, Tensor]
Treat = Callable[[Batch, int | Tensor], Batch]


@dataclass(kw_only=True)
class Step:
    """Forward, backward and update on the mean gradient of some equal parts of a batch."""

    learner: Learner
    loss: nn.Module  # the task, or what spreads it over processes: its call is the loss of a batch
    treat: Treat  # augments and mixes the batch of an epoch
    device: torch.device
    seed: int
    clip: float | None = None
    precision: Precision = "float32"
    world: World

    def __call__(self, parts: Sequence[Batch], *, rate: float, epoch: int, step: int) -> tuple[Losses, Tensor]:
        """The mean losses of the parts, and the norm of the gradient before it was clipped."""
        set_rate(self.learner.optimiser, rate)
        totals: dict[str, Tensor] = {}
        for index, part in enumerate(parts):
            torch.manual_seed(step_seed(self.seed, step, index, self.world.rank))
            with gradients(self.loss, now=index == len(parts) - 1):
                losses = self._backward(part, epoch, 1 / len(parts))
            totals = {name: totals[name] + term if name in totals else term for name, term in losses.items()}
        norm = self._update()
        self.learner.optimiser.zero_grad(set_to_none=True)
        return totals, norm

    def _backward(self, part: Batch, epoch: int | Tensor, share: float) -> dict[str, Tensor]:
        batch = self.treat(part, epoch)
        with autocast(self.device, self.precision), _plain_words(len(batch.images)):
            losses = self.loss(batch)
        self.learner.scaler.scale(losses["loss"] * share).backward()
        return {name: value.detach().float() * share for name, value in losses.items()}

    def _update(self) -> Tensor:
        learner = self.learner
        learner.scaler.unscale_(learner.optimiser)
        norm = clip(learner.optimiser, self.clip)
        learner.scaler.step(learner.optimiser)
        learner.scaler.update()
        return norm


@contextlib.contextmanager
def _plain_words(images: int) -> Iterator[None]:
    """Says what to do where a norm cannot be computed."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            f"a norm of the model sees one value per channel in a batch of {images}: use a larger batch (--batch-size; "
            "it is at most the number of training images) or larger images (--image-size)"
        ) from error


@dataclass(kw_only=True)
class RecordedStep(Step):
    """The same on one GPU, where every batch has the same shape: recorded at the first call, replayed from then on.

    With `fuse`, the augmentation is compiled first.
    """

    fuse: bool = True

    def __post_init__(self) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, parts: Sequence[Batch], *, rate: float, epoch: int, step: int) -> tuple[Losses, Tensor]:
        """The losses of the one part, and the norm of the gradient before it was clipped."""
        (part,) = parts
        if self._graph is None:
            self._graph = self._record(part)
        set_rate(self.learner.optimiser, rate)
        for held, new in zip(self._batch.tensors(), part.tensors(), strict=True):
            held.copy_(new)
        self._epoch.fill_(epoch)
        torch.manual_seed(step_seed(self.seed, step, 0, self.world.rank))
        self._graph.replay()
        return {name: value.clone() for name, value in self._losses.items()}, self._norm.clone()

    def _record(self, part: Batch) -> torch.cuda.CUDAGraph:
        """Warms up and records; weights and moments come back to what they were."""
        optimiser = self.learner.optimiser
        for group in optimiser.param_groups:
            group["lr"] = torch.zeros((), device=self.device)  # read by the recording when it is replayed
            group["capturable"] = True
        self._batch = part.with_tensors([tensor.clone() for tensor in part.tensors()])
        self._epoch = torch.zeros((), dtype=torch.int64, device=self.device)
        if self.fuse:
            self.treat = fused(self.treat, self._batch, self._epoch)
        before = {id(tensor): tensor.clone() for tensor in self._state()}
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        with _timed_convolutions():
            for _ in range(_WARM_UP):
                self._whole()
            # Meanwhile the thread that makes batches may take pinned memory, which a capture of all threads forbids.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._losses, self._norm = self._whole()
        with torch.no_grad():
            for tensor in self._state():
                # Moments that the warm-up made began as zeros.
                tensor.copy_(before[id(tensor)]) if id(tensor) in before else tensor.zero_()
        return graph

    def _whole(self) -> tuple[Losses, Tensor]:
        self.learner.optimiser.zero_grad(set_to_none=True)  # so that gradients lie in the recording's own memory
        losses = self._backward(self._batch, self._epoch, 1.0)
        return losses, self._update()

    def _state(self) -> Iterator[Tensor]:
        """Everything that a step changes."""
        yield from self.learner.task.parameters()
        yield from self.learner.task.buffers()
        for moments in self.learner.optimiser.state.values():
            yield from (value for value in moments.values() if isinstance(value, Tensor))


@contextlib.contextmanager
def _timed_convolutions() -> Iterator[None]:
    """Lets cuDNN choose the algorithm of each convolution by timing all, unless the same bits are asked for."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def fused(treat: Treat, batch: Batch, epoch: Tensor) -> Treat:
    """A treatment of batches of one shape as a few kernels: its operations are noted down once, then compiled.

    Augmentation is a thousand small operations, which on a GPU cost as much as a third of the model. A pixel in some
    ten thousand rounds to the next of 256 levels.
    """
    noted = make_fx(lambda *tensors: treat(batch.with_tensors(tensors[:-1]), tensors[-1]).tensors())(
        *batch.tensors(), epoch
    )
    compiled = torch.compile(noted, fullgraph=True)
    return lambda batch, epoch: batch.with_tensors(compiled(*batch.tensors(), epoch))


def unrecordable(task: Task, device: torch.device, world: World, parts: int, precision: Precision) -> str | None:
    """Why steps cannot be recorded; None where they can."""
    if device.type != "cuda":
        return f"only steps on a CUDA GPU can be recorded; this run is on {device.type}"
    if world.size > 1:
        return f"only steps of one process can be recorded; this run has {world.size}"
    if parts > 1:
        return f"steps with accumulate={parts} cannot be recorded; use accumulate=1"
    if precision == "fp16":
        return "steps in fp16 cannot be recorded, since loss scaling skips some of them; use bf16"
    if not task.capturable:
        return f"a step of the task {task.config.kind} waits for the CPU (matching), so it cannot be recorded"
    return None


def step_seed(seed: int, step: int, part: int, rank: int) -> int:
    """The seed of everything random inside the model at one step."""
    text = f"{seed} {step} {part} {rank}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
