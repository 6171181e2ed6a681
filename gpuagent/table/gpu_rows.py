"""The GPUs of one node, and its problems, with the words of the table's cells. Pure.

Amounts are formatted by `service.units.size`, times by `service.units.duration`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gpuagent.api_types import AgentResponse, ApiGpu, ApiLostGpu, ApiProblem, ApiXid
from gpuagent.first_acts import (
    FOR_GPU_AT_RISK,
    FOR_LOST_GPU,
    FOR_OVERPROMISED_GPU,
    FOR_PROBLEM,
    FirstAct,
)
from gpuagent.problems import SUSPENDS_NOTHING, OwnCause
from service.names import LONGEST_SUBDOMAIN
from service.text import one_line
from service.units import size

UNKNOWN: Final = "unknown"
"""Cell of a value that is unknown, which is never zero; `service.units.size` has the same word."""

NONE: Final = "-"
"""Cell of a value that does not exist."""

LONGEST_NAME: Final = LONGEST_SUBDOMAIN
"""Largest length of a Kubernetes name (DNS-1123 subdomain)."""

_LATIN_END: Final = 0x250
_PUNCTUATION: Final = frozenset("–—‘’“”…•→×≥≤")


def plain(text: str, limit: int = 300) -> str:
    """Return untrusted text on one line, in characters that occupy one column in every terminal.

    Latin letters and common punctuation stay. Terminals and libraries disagree about the width of other
    characters, reorder them or join them, so each becomes U+FFFD. Names in Kubernetes are ASCII.

    Args:
        text: untrusted text.
        limit: largest length of the result in characters.
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


NO_POD: Final = "No pod has a GPU share or uses GPU memory."
GPU_HEADINGS: Final = ("", "MODEL", "USED", "TOTAL", "FREE", "PROMISED", "HOST", "UNATTRIBUTED", "")
_LONGEST_UUID: Final = 64
_LONGEST_DETAIL: Final = 1000
_IMPLAUSIBLE: Final = 1 << 53
"""Bytes (8 PiB); JSON numbers above this are not exact."""
_MAX_CELSIUS: Final = 1000
_MAX_WATTS: Final = 1e6
_MAX_XID: Final = 10_000
_MAX_TIME: Final = 1e11


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """One GPU of one node, in bytes; None is unknown. Texts are safe for a terminal."""

    label: str
    """`GPU` and the index."""
    node: str
    index: int
    uuid: str
    """As the agent reported it; empty for a lost GPU that has never responded."""
    scope: str
    """The `gpuUuid` of its problems: the UUID, or `index-3` if that is unknown."""
    model: str = ""
    is_lost: bool = False
    is_mig: bool = False
    is_suspended: bool = False
    """Whether a problem suspends the verdicts on the GPU."""
    memory_unknown: str = ""
    """Why the driver does not report the memory; empty while it does."""
    total: int | None = None
    used: int | None = None
    reserved: int | None = None
    promised: int | None = None
    host: int | None = None
    unattributed: int | None = None
    at_risk: int | None = None
    """Memory that the pods are still promised and that is not free; None also from an older agent."""
    sensors: tuple[str, ...] = ()
    """Utilisation, temperature and power, as far as the driver reports them."""
    xid: str = ""
    """The newest error of the driver (XID); empty without one."""

    @property
    def name(self) -> str:
        """The GPU among those of several nodes."""
        return f"{self.node} {self.label}"

    @property
    def free(self) -> int | None:
        """Bytes that are neither used nor reserved; unknown reserved memory counts as 0."""
        if self.total is None or self.used is None:
            return None
        return max(self.total - self.used - (self.reserved or 0), 0)

    @property
    def is_at_risk(self) -> bool:
        """Whether an allocation of a pod within its share can fail."""
        return bool(self.at_risk)

    @property
    def risk_text(self) -> str:
        """The memory at risk in words."""
        return f"{size(self.at_risk)} promised and not free"

    @property
    def is_alarming(self) -> bool:
        """Whether the GPU is lost, at risk or overpromised."""
        return self.is_lost or self.is_at_risk or self.is_over_promised

    @property
    def next_steps(self) -> tuple[FirstAct, ...]:
        """What to do about the GPU, the most urgent first."""
        steps = (
            (self.is_lost, FOR_LOST_GPU),
            (self.is_at_risk, FOR_GPU_AT_RISK),
            (self.is_over_promised, FOR_OVERPROMISED_GPU),
        )
        return tuple(step for is_so, step in steps if is_so)

    @property
    def excess(self) -> int:
        """Bytes of the pods' shares beyond the GPU's memory; 0 if there are none, or if either is unknown."""
        return max(self.promised - self.total, 0) if self.promised is not None and self.total else 0

    @property
    def is_over_promised(self) -> bool:
        """Whether the pods' shares exceed the GPU's memory."""
        return self.excess > 0

    @property
    def promised_text(self) -> str:
        """By how much the promised shares exceed the memory, in words, for a GPU whose shares do."""
        return f"{size(self.promised)} are promised, {size(self.excess)} more than its {size(self.total)}"

    @property
    def notes(self) -> str:
        """What a reader must know of the GPU, in words; empty if there is nothing."""
        notes = {
            "LOST": self.is_lost,
            f"AT RISK: {self.risk_text}": self.is_at_risk,
            "OVERPROMISED": self.is_over_promised,
            "verdicts suspended": self.is_suspended,
            "MIG: not judged": self.is_mig,
            self.xid: bool(self.xid),
        }
        return ", ".join(note for note, is_so in notes.items() if is_so)

    @property
    def cells(self) -> tuple[str, ...]:
        """The figures of the GPU under GPU_HEADINGS."""
        amounts = (self.used, self.total, self.free, self.promised, self.host, self.unattributed)
        return (self.label, self.model, *map(size, amounts), self.notes)

    @property
    def text(self) -> str:
        """All figures of the GPU in one line."""
        named = zip(GPU_HEADINGS[1:], self.cells[1:], strict=True)
        figures = [f"{name.lower()} {text}".strip() for name, text in named if text]
        return f"{self.label}: {', '.join((*figures, *self.sensors))}"


@dataclass(frozen=True, slots=True)
class ProblemText:
    """A problem with its scope, safe for a terminal."""

    reason: str
    scope: str
    detail: str
    suspends_nothing: bool

    @property
    def next_step(self) -> FirstAct | None:
        """What to do about the problem; None for a reason of a newer agent."""
        return FOR_PROBLEM.get(self.reason)

    @property
    def text(self) -> str:
        """The problem in one line."""
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.reason} ({self.scope}){detail}{'. It suspends no verdict.' * self.suspends_nothing}"


def gpus_of(node: str, response: AgentResponse) -> tuple[GpuState, ...]:
    """Return the GPUs of a response by index, the lost ones included."""
    gpus = [_present(node, gpu) for gpu in response.gpus] + [_lost(node, gpu) for gpu in response.lost_gpus]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _present(node: str, gpu: ApiGpu) -> GpuState:
    return GpuState(
        label=f"GPU {index_text(gpu.index)}",
        node=node,
        index=gpu.index,
        uuid=gpu.uuid,
        scope=gpu.uuid,
        model=plain(gpu.model, LONGEST_NAME),
        is_mig=gpu.mig,
        is_suspended=gpu.verdicts_suspended,
        memory_unknown=plain(gpu.memory_unknown or ""),
        total=known_bytes(gpu.total_bytes),
        used=known_bytes(gpu.used_bytes),
        reserved=known_bytes(gpu.reserved_bytes),
        promised=known_bytes(gpu.promised_bytes),
        host=known_bytes(gpu.host_bytes),
        unattributed=known_bytes(gpu.unattributed_bytes, least=-_IMPLAUSIBLE),
        at_risk=known_bytes(gpu.at_risk_bytes),
        sensors=tuple(_sensors(gpu)),
        xid=_xid(gpu.xid),
    )


def _sensors(gpu: ApiGpu) -> Iterator[str]:
    """Yield the plausible figures of the GPU's sensors."""
    ratio, celsius, watts, limit = (
        gpu.utilization_ratio,
        gpu.temperature_celsius,
        gpu.power_watts,
        gpu.power_limit_watts,
    )
    if ratio is not None and 0 <= ratio <= 1:
        yield f"utilisation {percent(ratio)}"
    if celsius is not None and abs(celsius) < _MAX_CELSIUS:
        yield f"temperature {celsius} °C"
    if watts is not None and 0 <= watts < _MAX_WATTS:
        of_limit = f" of {limit:.0f} W" if limit is not None and 0 < limit < _MAX_WATTS else ""
        yield f"power {watts:.0f} W{of_limit}"


def _xid(xid: ApiXid | None) -> str:
    if xid is None or not 0 <= xid.code < _MAX_XID:
        return ""
    if not 0 <= xid.time < _MAX_TIME:
        return f"XID {xid.code}"
    moment = datetime.fromtimestamp(xid.time, UTC)
    return f"XID {xid.code} at {moment:%b} {moment.day} {moment:%H:%M} UTC"


def _lost(node: str, gpu: ApiLostGpu) -> GpuState:
    return GpuState(
        label=f"GPU {index_text(gpu.index)}",
        node=node,
        index=gpu.index,
        uuid=gpu.uuid,
        scope=gpu.uuid or f"index-{gpu.index}",
        model=plain(gpu.model, LONGEST_NAME),
        is_lost=True,
        xid=_xid(gpu.xid),
    )


def problems_of(response: AgentResponse, gpus: tuple[GpuState, ...]) -> tuple[ProblemText, ...]:
    """Return the problems of a response; those that suspend no verdict are the last."""
    labels = {gpu.scope: gpu.label for gpu in gpus}
    problems = [_problem(problem, labels) for problem in response.problems]
    return tuple(sorted(problems, key=lambda problem: problem.suspends_nothing))


def _problem(problem: ApiProblem, labels: dict[str, str]) -> ProblemText:
    scope = labels.get(problem.gpu_uuid) or plain(problem.gpu_uuid, _LONGEST_UUID) or "the node"
    return ProblemText(
        plain(problem.reason, 48),
        scope,
        plain(problem.detail, _LONGEST_DETAIL),
        problem.reason in SUSPENDS_NOTHING or problem.reason in tuple(OwnCause),
    )


def nothing_text(response: AgentResponse) -> str:
    """Return why a response has no figures of pods; empty if it has some."""
    if response.gpus:
        return "" if response.pods else NO_POD
    if response.sample_timestamp is None:
        return "No figures: there is no sample yet, or the last one is too old."
    return "No GPU on this node responds."


def known_bytes(value: int | None, *, least: int = 0) -> int | None:
    """Return an amount that a GPU can have; None, for unknown, in place of an implausible one."""
    return value if value is not None and least <= value < _IMPLAUSIBLE else None


def index_text(number: int) -> str:
    """Return the index of a GPU; `unknown` in place of an implausible one."""
    return str(number) if 0 <= number < 1000 else UNKNOWN
