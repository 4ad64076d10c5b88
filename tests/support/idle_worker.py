"""A supervisor whose workers only wait, for tests of the supervisor alone: they start without torch.

PYTHONPATH=tests python -m support.idle_worker  # prints the process of each worker that is ready
"""

import os
import signal
from typing import Any

from vitrail.serve import supervisor
from vitrail.serve.config import ServeConfig


def wait(opener: Any, config: ServeConfig, **options: Any) -> None:
    """Tells the supervisor that it is ready, prints its process id, and waits for a signal."""
    options["pipe"].send(("ready", "nothing"))
    print(os.getpid(), flush=True)
    signal.pause()


if __name__ == "__main__":
    supervisor._run_worker = wait
    supervisor.serve(None, ServeConfig(port=0))  # type: ignore[arg-type]
