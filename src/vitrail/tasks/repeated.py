"""What meters give when each is merged several times, as a resample of images repeats some of them."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from vitrail.tasks.task import Meter

Results = Callable[[Sequence[int]], Mapping[str, Any]]  # how often each part is merged -> named numbers


@runtime_checkable
class Repeating(Meter, Protocol):
    """A meter that does the work of each part once, however often it is repeated."""

    def repeated(self, parts: Sequence[Any]) -> Results:
        """What `compute` gives of parts, meters of the same kind, merged so many times each."""
        ...


def repeated(empty: Meter, parts: Sequence[Meter]) -> Results:
    """What an empty meter gives once each part is merged into it so many times."""
    if isinstance(empty, Repeating):
        return empty.repeated(parts)

    def results(times: Sequence[int]) -> Mapping[str, Any]:
        meter = copy.deepcopy(empty)
        for part, count in zip(parts, times, strict=True):
            for _ in range(count):
                meter.merge(part)
        return meter.compute()

    return results
