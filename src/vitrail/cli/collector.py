"""Python's garbage collector, which finds nothing in torch, but looks for it: often at the start, once at the end."""

import atexit
import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """The first import of torch, without looks at what is there so far; what it made is not looked at later either."""
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


def end_at_once() -> None:
    """Lets the process end without a last look at all objects, which takes half a second with torch."""
    atexit.unregister(gc.freeze)
    atexit.register(gc.freeze)
