"""Logs as one JSON object a line on the error stream; no names of files, and nothing of what is in them."""

import json
import os
import sys
import time
from typing import Any, Literal


def log(level: Literal["info", "warning", "error"], event: str, **facts: Any) -> None:
    """One line: when, how grave, what happened, in which process, and the facts."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    line = {"time": stamp, "level": level, "event": event, "process": os.getpid()} | facts
    sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    sys.stderr.flush()
