"""A task with its preprocessing inside: bytes of pixels in, what `Task.graph` names out, as one graph."""

from torch import Tensor, nn

from vitrail.deploy.artefact.pixels import Pixels
from vitrail.tasks.task import Task


class Outputs(nn.Module):
    """The outputs of a task as a module: float B c H W -> B ... by name."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Normalised images -> float32 outputs, and what the task makes of them."""
        outputs = {name: values.float() for name, values in self.task.outputs(images).items()}
        return self.task.graph(outputs)


class Servable(nn.Module):
    """uint8 B H W C at any size -> float32 B ... by name."""

    def __init__(self, task: Task, pixels: Pixels) -> None:
        super().__init__()
        self.model, self.pixels = Outputs(task), pixels

    @property
    def task(self) -> Task:
        """The task inside."""
        return self.model.task

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """Uint8 B H W C -> B ... by name."""
        found: dict[str, Tensor] = self.model(self.pixels(images))
        return found
