"""Logs: one JSON object per line on standard error, without file names or file contents."""

import json
import os
import sys
import time
from typing import Any, Literal


def log(level: Literal["info", "warning", "error"], event: str, **fields: Any) -> None:
    """Writes one line: time, level, event, process id and further fields."""
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    line = {"time": stamp, "level": level, "event": event, "process": os.getpid()} | fields
    sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    sys.stderr.flush()
