"""Work that others should not wait for has a lower priority: what takes long to decode, and explanations."""

import contextlib
import os
import sys
import threading

_NICE = 10  # a tenth of the processor where there is other work; with 19, other programs could starve it


def lower_priority(process: int | None = None) -> None:
    """Of a process, or of this thread and those that torch starts for it; it cannot be raised again."""
    if process is None and sys.platform != "linux":  # elsewhere, priorities belong to processes
        return
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id() if process is None else process, _NICE)
