"""The first try of images with one class each, on another kind of device than that of this process."""

from vitrail.data.dataset import Dataset
from vitrail.data.targets import ClassTarget
from vitrail.training import first_try as table
from vitrail.training.first_model import sample


def first_class(data: Dataset, kind: str) -> table.FirstTry | None:
    """What training does with nothing named on a device of a kind, such as "cpu"; None where that is not measured."""
    classes = [len(target.classes) for target in data.schema.values() if isinstance(target, ClassTarget)]
    seen = sample(data)
    if len(data.schema) != 1 or not classes or not seen.height or not table.measured():
        return None
    return table.first_try(len(data), classes[0], seen, on_cpu=kind == "cpu")
