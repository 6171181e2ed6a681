"""The GPUs of one node with their memory at risk, and the words of the table's cells. Pure.

Amounts are formatted by `service.units.size`, times by `service.units.duration`.
"""

from typing import Final

from msgspec import Struct

from console.help import link
from gpuagent.api_types import AgentResponse, ApiGpu, ApiLostGpu, ApiVerdict, is_noticeable_risk
from service.names import LONGEST_SUBDOMAIN
from service.text import one_line
from service.units import size

UNKNOWN: Final = "unknown"  # a value that is unknown, which is never zero; `units.size` has the same word
NONE: Final = "-"  # a value that does not exist
LONGEST_NAME: Final = LONGEST_SUBDOMAIN
LONGEST_DETAIL: Final = 1000
GPU_HEADINGS: Final = ("GPU", "MODEL", "USED", "PROMISED", "FREE", "UTIL", "")
BAR: Final = 10  # columns of a bar
IMPLAUSIBLE: Final = 1 << 53  # bytes (8 PiB); JSON numbers above this are not exact

_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_LATIN_END: Final = 0x250
_PUNCTUATION: Final = frozenset("–—‘’“”…•→×≥≤")
_CAUSES: Final = {
    "pods-above-share": "pods above their shares hold",
    "promised-above-total": "promised above its total:",
    "host-processes": "host processes hold",
    "ended-pods": "ended pods hold",
    "unattributed": "no process accounts for",
}


def plain(text: str, limit: int = 300) -> str:
    """Return untrusted text on one line, in characters that occupy one column in every terminal.

    Latin letters and common punctuation stay. Terminals and libraries disagree about the width of other
    characters, reorder them or join them, so each becomes U+FFFD. Names in Kubernetes are ASCII.
    """
    if len(text) <= limit and text.isascii() and text.isprintable() and " " not in text:  # most names
        return text
    line = one_line(text, limit)
    if line.isascii():
        return line
    return "".join(
        char if ord(char) < _LATIN_END or char in _PUNCTUATION else "\N{REPLACEMENT CHARACTER}"
        for char in line
    )


def percent(ratio: float | None) -> str:
    """Format a ratio in per cent, in at most seven columns."""
    return UNKNOWN if ratio is None else f"{ratio * 100:.0f}%" if ratio < 99.995 else ">9999%"


def utilization_text(ratio: float | None) -> str:
    """Format a utilisation in per cent; one that is not from 0 to 1 is unknown."""
    return percent(ratio if ratio is not None and 0 <= ratio <= 1 else None)


def bar(ratio: float | None, width: int = BAR) -> str:
    """Draw a ratio from 0 to 1 in blocks; a larger ratio ends with a mark."""
    if ratio is None:
        return " " * width
    if ratio > 1:
        return "█" * (width - 1) + "▶"
    full, rest = divmod(round(max(ratio, 0.0) * width * 8), 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)


def known_bytes(value: int | None) -> int | None:
    """Return an amount that a GPU can have; None, for unknown, in place of an implausible one."""
    return value if value is not None and 0 <= value < IMPLAUSIBLE else None


def count_text(number: int | None) -> str:
    """Return the index of a GPU or the number of processes; `unknown` in place of an implausible one."""
    return str(number) if number is not None and 0 <= number < 1_000_000 else UNKNOWN


def runbook_link(section: str) -> str:
    """Return where the rest of what to do is."""
    return link(f"docs/runbooks.md#{plain(section, 64)}")


def act_of(item: ApiGpu | ApiLostGpu | ApiVerdict) -> str:
    """Return what to do first about a flag or a GPU, and where to read on; empty for nothing."""
    text = plain(item.first_act or "", LONGEST_DETAIL)
    return f"{text} See {runbook_link(item.runbook or '')}." if text else ""


class GpuState(Struct, frozen=True, kw_only=True):
    """One GPU of one node, in bytes; None is unknown. Texts but the UUID are safe for a terminal."""

    label: str  # `GPU` and the index
    name: str  # the GPU among those of several nodes
    uuid: str  # empty for a lost GPU that has never responded
    total: int | None
    used: int | None
    promised: int | None
    free: int | None  # neither used nor reserved; unknown reserved memory counts as 0
    at_risk: int | None  # memory that the pods are still promised and that is not free; None also if little
    risk_text: str  # the memory at risk with its largest cause, in words
    loss: str  # LOST if the GPU itself is lost, NO ANSWER if its driver or the agent's access to it is
    is_over_promised: bool  # whether the pods' shares exceed the GPU's memory
    is_suspended: bool  # whether a problem suspends the verdicts on the GPU
    act: str
    cells: tuple[str, ...]  # the text under each of GPU_HEADINGS


def gpus_of(node: str, response: AgentResponse) -> tuple[GpuState, ...]:
    """Return the GPUs of a response by index, the lost ones included."""
    gpus: list[ApiGpu | ApiLostGpu] = [*response.gpus, *response.lost_gpus]
    return tuple(_gpu(node, gpu) for gpu in sorted(gpus, key=lambda gpu: gpu.index))


def _gpu(node: str, gpu: ApiGpu | ApiLostGpu) -> GpuState:
    names = ("total", "used", "promised", "reserved", "at_risk", "ended_pods")
    total, used, promised, reserved, at_risk, ended = (
        known_bytes(getattr(gpu, f"{name}_bytes", None)) for name in names
    )
    free = None if total is None or used is None else max(total - used - (reserved or 0), 0)
    at_risk = at_risk if is_noticeable_risk(at_risk, total) else None
    is_over_promised = promised is not None and bool(total) and promised > (total or 0)
    loss, risk_text, is_suspended, is_mig, utilization = "", "", False, False, NONE
    if isinstance(gpu, ApiLostGpu):
        loss = "LOST" if gpu.lost else "NO ANSWER"
    else:
        risk_text = f"{size(at_risk)} promised and not free{_risk_cause(gpu)}"
        is_suspended, is_mig = gpu.verdicts_suspended, gpu.mig
        if gpu.utilization_ratio is not None:
            utilization = utilization_text(gpu.utilization_ratio)
    notes = {
        loss: loss,
        f"ended pods hold {size(ended)}": ended,
        f"AT RISK: {risk_text}": at_risk,
        "OVERPROMISED": is_over_promised,
        "verdicts suspended": is_suspended,
        "MIG: not judged": is_mig,
        f"XID {gpu.xid.code}" if gpu.xid else "": gpu.xid and 0 <= gpu.xid.code < 10_000,
    }
    said = ", ".join(note for note, is_so in notes.items() if is_so)
    label = f"GPU {count_text(gpu.index)}"
    name, model = f"{node} {label}", plain(gpu.model, LONGEST_NAME)
    return GpuState(
        label=label,
        name=name,
        uuid=gpu.uuid,
        total=total,
        used=used,
        promised=promised,
        free=free,
        at_risk=at_risk,
        risk_text=risk_text,
        loss=loss,
        is_over_promised=is_over_promised,
        is_suspended=is_suspended,
        act=act_of(gpu),
        cells=(name, model, size(used), size(promised), size(free), utilization, said),
    )


def _risk_cause(gpu: ApiGpu) -> str:
    """Return the largest cause of a GPU's risk, in brackets; empty for an unknown one."""
    for cause in gpu.risk_causes[:1]:
        if cause.cause in _CAUSES and known_bytes(cause.bytes) is not None:
            return f" ({_CAUSES[cause.cause]} {size(cause.bytes)})"
    return ""
