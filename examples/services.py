"""Starts and stops the programs of the demo."""

import asyncio
import json
import shlex
import signal
import sys
from asyncio.subprocess import Process
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Service:
    """A running program and the addresses from its log line `serving`."""

    process: Process
    serving: dict[str, Any]
    log: Path

    async def stop(self) -> None:
        """Stop the program with SIGTERM.

        Raises:
            SystemExit: the exit status is not 0.
        """
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(self.process.wait(), 15)
        if self.process.returncode != 0:
            raise SystemExit(f"a program ended with {self.process.returncode}:\n{self.log.read_text()}")


async def start(log: Path, *command: str) -> Service:
    """Start `python -m COMMAND` and wait for its log line `serving`.

    The program gets its own session, so that Ctrl-C reaches only the demo. Its log goes to a file.

    Raises:
        SystemExit: the program ended, or did not log the line within 20 s.
    """
    with log.open("wb") as stream:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command, stderr=stream, start_new_session=True
        )
    for _ in range(400):
        for line in log.read_text().splitlines():
            if '"serving"' in line:
                return Service(process, json.loads(line), log)
        if process.returncode is not None:
            break
        await asyncio.sleep(0.05)
    if process.returncode is None:
        process.kill()
        await process.wait()
    raise SystemExit(f"{shlex.join(command)} did not start:\n{log.read_text()}")
