"""A small task for experiments that train: the embedded images of Fashion-MNIST, and a plain loop."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.dataset import Dataset
from vitrail.data.sources.embedded import read_embedded
from vitrail.hardware import Precision, autocast, own_stream

_CLIP = 1.0  # norm of the gradient
_DECAY = 0.05
_PIECE = 500  # images
_PIECE_ON_GPU = 2500
_WORTH = 100  # steps from which on a recording pays
_FIRST = 5  # steps before it, in which libraries choose their kernels

Draw = Callable[[], tuple[Tensor, Tensor]]  # a batch: images B C H W, classes B


class Labelled(NamedTuple):
    """Images B C H W and their classes B."""

    images: Tensor
    classes: Tensor


def fashion(device: torch.device) -> tuple[Labelled, Labelled]:
    """The embedded training and test images, 28 x 28, grey, of mean 0 and deviation 1."""
    found = read_embedded()
    assert found.test is not None  # noqa: S101  (the package has it)
    pixels = [_pixels(part) for part in (found.train, found.test)]
    mean, deviation = pixels[0].mean(), pixels[0].std()
    classes = [part.targets["label"] for part in (found.train, found.test)]
    train, test = (
        Labelled(((images - mean) / deviation).to(device), labels.long().to(device))
        for images, labels in zip(pixels, classes, strict=True)
    )
    return train, test


def batches(data: Labelled, size: int) -> Draw:
    """Draws a random batch at each call."""

    def draw() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(data.classes), (size,)).to(data.classes.device)
        return data.images[chosen], data.classes[chosen]

    return draw


def rate_at(step: int, *, steps: int, warm_up: int) -> float:
    """The learning rate of a step as a share of the highest: a linear warm-up, then half a cosine to zero."""
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def fit(
    model: nn.Module, draw: Draw, *, steps: int, rate: float, warm_up: int = 0, weight_decay: float = _DECAY,
    after: Callable[[int], None] | None = None, loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    precision: Precision = "float32",
) -> list[float]:  # fmt: skip
    """Trains with AdamW and clipped gradients; the loss of each step. `after` gets the number of steps done.

    `precision` is that of autocast on a GPU. There, convolutions run in channels_last, and steps are recorded.
    """
    device = next(model.parameters()).device
    on_gpu = device.type == "cuda"
    recorded = on_gpu and steps >= _WORTH
    layout = torch.channels_last if on_gpu else torch.contiguous_format
    model.to(memory_format=layout)
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    fused = True if on_gpu else None  # one kernel in place of many
    optimiser = torch.optim.AdamW(groups, lr=rate, capturable=recorded, fused=fused)
    if recorded:
        for group in optimiser.param_groups:
            group["lr"] = torch.zeros((), device=device)  # read anew by each replay

    def once(images: Tensor, classes: Tensor) -> Tensor:
        with _products_like_convolutions(device):
            with autocast(device, precision if on_gpu else "float32"):
                value = loss(model(images.contiguous(memory_format=layout)), classes)
            optimiser.zero_grad(set_to_none=True)
            value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIP)
        optimiser.step()
        return value.detach()

    step, losses = _Recorded(once) if recorded else once, []
    model.train()
    with own_stream(device):
        for done in range(steps):
            for group in optimiser.param_groups:
                lr = rate * rate_at(done, steps=steps, warm_up=warm_up)
                group["lr"] = group["lr"].fill_(lr) if recorded else lr
            losses.append(step(*draw()))
            if after is not None:
                after(done + 1)
    optimiser.zero_grad(set_to_none=True)  # a recording holds the memory of its gradients
    model.eval()
    return [float(loss) for loss in torch.stack(losses).cpu()]


class _Recorded:
    """A step on batches of one shape on a GPU: recorded after some calls, and replayed from then on.

    Launched one by one, the kernels of a small model take longer to launch than to run.
    """

    def __init__(self, once: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.once, self.left = once, _FIRST
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, images: Tensor, classes: Tensor) -> Tensor:
        """The loss."""
        if self.left > 0:
            self.left -= 1
            return self.once(images, classes)
        if self.graph is None:
            self.batch = images.clone(), classes.clone()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
                self.loss = self.once(*self.batch)
        for held, new in zip(self.batch, (images, classes), strict=True):
            held.copy_(new)
        self.graph.replay()
        return self.loss.clone()


@contextlib.contextmanager
def _products_like_convolutions(device: torch.device) -> Iterator[None]:
    """On a GPU, matrix products round to TF32, as PyTorch's convolutions do: otherwise CNNs alone would be fast."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@torch.no_grad()
def outputs(model: nn.Module, images: Tensor) -> Tensor:
    """The outputs B K of a model in evaluation, in parts that fit memory; the mode of the model stays."""
    was = model.training
    model.eval()
    pieces = images.split(_PIECE_ON_GPU if images.is_cuda else _PIECE)
    found = torch.cat([model(piece) for piece in pieces])
    model.train(was)
    return found


def accuracy(model: nn.Module, data: Labelled) -> float:
    """The share of images whose class has the largest output."""
    return float((outputs(model, data.images).argmax(dim=1) == data.classes).float().mean())


def _pixels(part: Dataset) -> Tensor:
    assert part.array is not None  # noqa: S101  (the embedded images are in memory)
    return part.array.float() / 255  # B 1 H W
