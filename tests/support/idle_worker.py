"""A supervisor whose workers only wait, for tests of the supervisor alone: they start without torch.

    PYTHONPATH=tests python -m support.idle_worker [SECONDS]  # prints the process of each worker, and "serving"

A worker needs SECONDS to be ready, and prints "reload" when it is told to.
"""

import os
import signal
import sys
import time
from typing import Any

from vitrail.serve import supervisor
from vitrail.serve.config import ServeConfig


def say(word: str) -> None:
    """One line, written at once: several processes share the pipe."""
    os.write(1, f"{word}\n".encode())


def wait(opener: Any, config: ServeConfig, **options: Any) -> None:
    """Prints its process id, tells the supervisor that it is ready, and waits for signals."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    say(str(os.getpid()))
    time.sleep(opener)
    signal.signal(signal.SIGHUP, lambda *_: say("reload"))
    options["pipe"].send(("ready", "nothing"))
    while True:
        signal.pause()


if __name__ == "__main__":
    supervisor._run_worker = wait
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0
    supervisor.serve(seconds, ServeConfig(port=0), on_ready=lambda *_: say("serving"))  # type: ignore[arg-type]
