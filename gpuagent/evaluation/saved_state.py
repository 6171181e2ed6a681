"""State that survives a restart of the agent: balances, flags, what was first seen, and KAI's records.

The file is in a volume of the agent's pod and of no use elsewhere: it holds times of the node's monotonic
clock, which starts again with each boot. It is dropped whole unless everything in it fits.
"""

import asyncio
import threading
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from gpuagent.ledger.driver_limits import DriverLimits, SavedPromises
from gpuagent.shares.share_resolver import SavedPod, ShareResolver
from gpuagent.verdicts.flagging import Judge, SavedFlag, SavedTime
from service.log import INFO, WARNING, JsonLog, OngoingProblem, problem_logger
from service.text import MALFORMED, one_line

MOST_BYTES: Final = 400_000
"""Largest file. Beyond it the largest entries are left out, so that no pod's annotations displace others."""
WRITE_SECONDS: Final = 5.0
"""Shortest time between two writes."""
_FORMAT: Final = 1
_NAME: Final = "state.json"
_FRAME_BYTES: Final = 2048
"""Room for everything but the entries."""


class _Head(Struct):
    """What the file is of."""

    format: int
    node: str
    boot: str
    evaluated_at: float | None


class _State(_Head):
    flags: list[SavedFlag]
    times: list[SavedTime]
    pods: list[SavedPod]
    promises: list[SavedPromises] = []
    """Absent from the file of an older agent."""


def boot_id(proc_root: Path) -> str:
    """Return the identity of the node's boot; empty if it is unknown, and then no state is kept."""
    for root in (proc_root, Path("/proc")):
        try:
            return (root / "sys/kernel/random/boot_id").read_text("ascii").strip()[:64]
        except (OSError, ValueError):
            continue
    return ""


def _entry(entry: Struct) -> bytes:
    """Encode one entry; empty for a text that is no Unicode, as a pods file may have."""
    try:
        return msgspec.json.encode(entry)
    except UnicodeEncodeError:
        return b""


class SavedState:
    """Restores the state of an earlier process, and saves the present one."""

    def __init__(
        self,
        directory: Path,
        *,
        node: str,
        boot: str,
        judge: Judge,
        share_resolver: ShareResolver,
        driver_limits: DriverLimits,
        log: JsonLog,
    ) -> None:
        """Set the directory of the file, the node and its boot, and the parts whose state it keeps."""
        self._path = directory / _NAME
        self._node, self._boot = node, boot
        self._judge, self._share_resolver, self._driver_limits = judge, share_resolver, driver_limits
        self._log = log
        self._problem = OngoingProblem(problem_logger(log, "state not saved", "state saved again"))
        self._written = b""
        self._lock = threading.Lock()
        """Held while the file is written: the last write may begin while a thread still writes."""
        self._is_due = asyncio.Event()

    def restore(self) -> None:
        """Restore the state of the file, or drop it with one log line; without a file, do nothing."""
        try:
            state = self._read()
        except FileNotFoundError:
            return
        except (OSError, ValueError, *MALFORMED) as error:
            self._log("saved state dropped", WARNING, file=str(self._path), reason=one_line(str(error), 200))
            return
        self._share_resolver.restore(state.pods)
        self._driver_limits.restore(state.promises)
        self._judge.restore(state.flags, state.times, evaluated_at=state.evaluated_at)
        self._log("state restored", INFO, flags=len(state.flags), pods=len(state.pods))

    def mark(self) -> None:
        """Note that the state may have changed."""
        self._is_due.set()

    async def run(self) -> None:
        """Save the state after changes until cancelled, the first one at once, and then at most every 5 s."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            data = self._encoded()
            await asyncio.to_thread(self._write, data)
            await asyncio.sleep(WRITE_SECONDS)

    def save(self) -> None:
        """Save the state now."""
        self._write(self._encoded())

    def _read(self) -> _State:
        size = self._path.stat().st_size
        if size > MOST_BYTES:
            raise ValueError(f"{size} bytes; expected at most {MOST_BYTES}")
        data = self._path.read_bytes()
        head = msgspec.json.decode(data, type=_Head)
        for name, found, own in (
            ("format", head.format, _FORMAT),
            ("node", head.node, self._node),
            ("boot", head.boot, self._boot),
        ):
            if found != own:
                raise ValueError(f"it is of another {name}")
        return msgspec.json.decode(data, type=_State)

    def _encoded(self) -> bytes:
        """Encode the state: first the histories, which are small, then the pods, the smallest first."""
        flags, times = self._judge.saved()
        pods, promises = self._share_resolver.saved(), self._driver_limits.saved()
        left = MOST_BYTES - _FRAME_BYTES
        head = _Head(_FORMAT, self._node, self._boot, self._judge.evaluated_at)
        state: dict[str, Any] = msgspec.structs.asdict(head)
        for name, entries in (("flags", flags), ("times", times), ("promises", promises), ("pods", pods)):
            state[name] = []
            for data in sorted(filter(None, map(_entry, entries)), key=len):
                left -= len(data) + 1
                if left < 0:
                    break
                state[name].append(Raw(data))
        return msgspec.json.encode(state)

    def _write(self, data: bytes) -> None:
        """Replace the file, unless it is the same. It is not synced, since the next boot drops it."""
        with self._lock:
            if data == self._written:
                return
            new = self._path.with_suffix(".new")
            try:
                new.write_bytes(data)
                new.replace(self._path)
            except OSError as error:
                self._problem.update(f"{self._path}: {error.strerror or error}")
                return
            self._written = data
            self._problem.update("")
