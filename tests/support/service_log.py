"""Reads the log and the metrics of a service in another process."""

import json
import re
import time
from pathlib import Path
from typing import Any

_SETTLE_SECONDS = 0.03
"""The log thread writes a line at most this long after the event under load (service/log_writer.py)."""

_PATIENCE_SECONDS = 0.5


def log_lines(log: Path, message: str = "") -> list[dict[str, Any]]:
    """Return the lines with a message, or all complete lines; wait briefly for lines in the log's queue."""
    ends = time.monotonic() + _PATIENCE_SECONDS
    while True:
        time.sleep(_SETTLE_SECONDS)
        whole = (line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"}\n"))
        lines = [line for line in map(json.loads, whole) if message in ("", line["message"])]
        if lines or time.monotonic() > ends:
            return lines


def series_of(text: str) -> dict[str, float]:
    """Return the values of a page of metrics by name and labels."""
    matches = (re.fullmatch(r"([\w:]+(?:\{.*\})?) (\S+)(?: \d+)?", line) for line in text.splitlines())
    return {match[1]: float(match[2]) for match in matches if match}
