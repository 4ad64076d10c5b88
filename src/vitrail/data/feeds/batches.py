"""Batches of packed images: from the device's memory where all fit into it, otherwise collected ahead by a thread."""

import os
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.data.dataset import Batch
from vitrail.data.feeds.feed import Feed
from vitrail.data.feeds.packing import Packed

RESIDENT = 0.2  # of the free memory: a set that needs less is kept on the device as a whole


class Batches(Feed):
    """The feed of packed images; see `Feed` for its options."""

    data: Packed

    def __init__(self, data: Packed, **options: Any) -> None:
        super().__init__(data, **options)
        images, rows = data.images, torch.arange(len(data)) if data.rows is None else data.rows
        # A small part of many images is no reason to fill a device with all of them.
        alone = self.device.type != "cpu" and 2 * len(rows) < len(images)
        needed = _bytes(images[:1]) * (len(rows) if alone else len(images)) + sum(map(_bytes, data.targets.values()))
        self.resident = needed < RESIDENT * _free_memory(self.device)
        if alone and self.resident:
            images, rows = images[rows], torch.arange(len(data))
        where = self.device if self.resident else torch.device("cpu")
        self._images, self._rows = images.to(where), rows.to(where)
        self._targets = {name: values.to(where) for name, values in data.targets.items()}
        self._ids = data.ids.to(where)

    def _batches(self, order: Tensor, spans: Sequence[range]) -> Iterator[Batch]:
        parts = [order[span.start : span.stop] for span in spans]
        return self._at_once(parts) if self.resident else self._ahead(self._collected(parts))

    def _at_once(self, parts: Sequence[Tensor]) -> Iterator[Batch]:
        for part in parts:
            began = time.perf_counter()
            at = part.to(self.device, non_blocking=True)
            targets = {name: values[at] for name, values in self._targets.items()}
            batch = Batch(self._images[self._rows[at]], targets, self._ids[at])
            self.waited += time.perf_counter() - began
            yield batch

    def _collected(self, parts: Sequence[Tensor]) -> Generator[Batch | None, None, None]:
        for part in parts:
            yield self._collect(part)

    def _collect(self, part: Tensor) -> Batch:
        """The batch of some positions, in memory that a GPU copies from by itself where the device is one."""
        held = Batch(self._images, self._targets, self._ids)
        sources = [(self._images, self._rows[part]), *((source, part) for source in held.tensors()[1:])]
        if self.device.type != "cuda":
            return held.with_tensors([source[at] for source, at in sources])
        return held.with_tensors([_pinned(source, at) for source, at in sources])


def _pinned(source: Tensor, at: Tensor) -> Tensor:
    """Rows of a tensor in pinned memory."""
    rows = torch.empty(len(at), *source.shape[1:], dtype=source.dtype, pin_memory=True)
    return torch.index_select(source, 0, at, out=rows)


def _bytes(values: Tensor) -> int:
    return values.numel() * values.element_size()


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    # Elsewhere images share the machine's memory; pages of mapped files count as free, as they can be dropped.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
