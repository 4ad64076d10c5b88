"""A queue in which requests take turns: one with many images does not hold up one with a single image."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar


class Waiting(Protocol):
    """Work of a request, for which somebody may no longer wait."""

    @property
    def owner(self) -> object:
        """The request."""

    @property
    def future(self) -> "asyncio.Future[Any]":
        """Its result."""


Item = TypeVar("Item", bound=Waiting)


class Turns(Generic[Item]):
    """A queue for each owner; not for several threads without a lock."""

    def __init__(self) -> None:
        self._queues: dict[object, deque[Item]] = {}  # by owner, the next one first

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def owners(self) -> int:
        """How many have something in the queue."""
        return len(self._queues)

    def add(self, item: Item) -> None:
        """Appends to the queue of the item's owner."""
        self._queues.setdefault(item.owner, deque()).append(item)

    def put_back(self, item: Item) -> None:
        """The next item of its owner, whose turn comes after those of all others."""
        queue = self._queues.pop(item.owner, deque())
        queue.appendleft(item)
        self._queues[item.owner] = queue

    def head(self, owner: object) -> Item | None:
        """The next item of one owner."""
        queue = self._queues.get(owner)
        return queue[0] if queue else None

    def heads(self) -> Iterator[Item]:
        """The next item of each owner, in their order."""
        return (queue[0] for queue in self._queues.values())

    def take(self, may: Callable[[Item], bool]) -> Item | None:
        """The first of `heads` that may be taken; its owner goes to the end. Cancelled items are dropped."""
        for owner, queue in list(self._queues.items()):
            while queue and queue[0].future.cancelled():
                queue.popleft()
            if not queue:
                del self._queues[owner]
            elif may(queue[0]):
                item = queue.popleft()
                del self._queues[owner]
                if queue:
                    self._queues[owner] = queue
                return item
        return None
