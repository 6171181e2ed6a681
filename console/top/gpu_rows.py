"""The GPUs of one node, its problems and its memory at risk, with the words of the table's cells. Pure.

Amounts are formatted by `service.units.size`, times by `service.units.duration`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gpuagent.api_types import (
    AgentResponse,
    ApiEndedPod,
    ApiGpu,
    ApiLostGpu,
    ApiProblem,
    ApiVerdict,
    ApiXid,
    is_noticeable_risk,
)
from gpuagent.problems import SUSPENDS_NOTHING, OwnCause, RiskName
from service.names import LONGEST_SUBDOMAIN
from service.text import first_few, one_line
from service.units import size

UNKNOWN: Final = "unknown"  # a value that is unknown, which is never zero; `units.size` has the same word
NONE: Final = "-"  # a value that does not exist
LONGEST_NAME: Final = LONGEST_SUBDOMAIN
NO_POD: Final = "No pod has a GPU share or uses GPU memory."
GPU_HEADINGS: Final = ("", "MODEL", "USED", "TOTAL", "FREE", "PROMISED", "HOST", "UNATTRIBUTED", "")

BAR: Final = 10  # columns of a bar

_BLOCKS: Final = " ▏▎▍▌▋▊▉█"
_LATIN_END: Final = 0x250
_PUNCTUATION: Final = frozenset("–—‘’“”…•→×≥≤")
_LONGEST_DETAIL: Final = 1000
_IMPLAUSIBLE: Final = 1 << 53  # bytes (8 PiB); JSON numbers above this are not exact


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


def bar(ratio: float | None, width: int = BAR) -> str:
    """Draw a ratio from 0 to 1 in blocks; a larger ratio ends with a mark."""
    if ratio is None:
        return " " * width
    if ratio > 1:
        return "█" * (width - 1) + "▶"
    full, rest = divmod(round(max(ratio, 0.0) * width * 8), 8)
    return ("█" * full + (_BLOCKS[rest] if rest else "")).ljust(width)


def known_bytes(value: int | None, *, least: int = 0) -> int | None:
    """Return an amount that a GPU can have; None, for unknown, in place of an implausible one."""
    return value if value is not None and least <= value < _IMPLAUSIBLE else None


def index_text(number: int) -> str:
    """Return the index of a GPU; `unknown` in place of an implausible one."""
    return str(number) if 0 <= number < 1000 else UNKNOWN


class Act(NamedTuple):
    """What to do first by the agent's word, and where the rest is. Texts are safe for a terminal."""

    text: str
    runbook: str

    @property
    def line(self) -> str:
        """What to do and where to read on, in one line."""
        return f"{self.text} See {self.runbook}."


def act_of(item: ApiProblem | ApiGpu | ApiLostGpu | ApiVerdict) -> Act | None:
    """Return what to do first about a flag, a problem or a GPU; None for nothing, and from an older agent."""
    text = plain(item.first_act or "", _LONGEST_DETAIL)
    return Act(text, f"docs/runbooks.md, {plain(item.runbook or '', 64)}") if text else None


class GpuState(Struct, frozen=True, kw_only=True):
    """One GPU of one node, in bytes; None is unknown. Texts but the UUID are safe for a terminal."""

    label: str  # `GPU` and the index
    node: str
    index: int
    uuid: str  # empty for a lost GPU that has never responded
    model: str = ""
    is_lost: bool = False  # whether it does not respond
    is_gone: bool = False  # whether the GPU itself is lost, and not its driver or the agent's access to it
    is_mig: bool = False
    is_suspended: bool = False  # whether a problem suspends the verdicts on the GPU
    total: int | None = None
    used: int | None = None
    reserved: int | None = None
    promised: int | None = None
    host: int | None = None
    unattributed: int | None = None
    at_risk: int | None = None
    """Memory that the pods are still promised and that is not free; None also if it is little."""
    risk_cause: str = ""  # what has taken most of it, in brackets; empty if unknown
    ended: str = ""  # memory of ended pods, with their names; empty without any
    sensors: tuple[str, ...] = ()
    xid: str = ""  # the newest error of the driver; empty without one
    act: Act | None = None

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
    def risk_text(self) -> str:
        """The memory at risk in words; there is some if an allocation of a pod within its share can fail."""
        return f"{size(self.at_risk)} promised and not free{self.risk_cause}"

    @property
    def is_over_promised(self) -> bool:
        """Whether the pods' shares exceed the GPU's memory."""
        return self.promised is not None and bool(self.total) and self.promised > (self.total or 0)

    @property
    def notes(self) -> str:
        """What a reader must know of the GPU, in words; empty if there is nothing."""
        notes = {
            "LOST": self.is_gone,
            "NO ANSWER": self.is_lost and not self.is_gone,
            self.ended: self.ended,
            f"AT RISK: {self.risk_text}": self.at_risk,
            "OVERPROMISED": self.is_over_promised,
            "verdicts suspended": self.is_suspended,
            "MIG: not judged": self.is_mig,
            self.xid: self.xid,
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


def gpus_of(node: str, response: AgentResponse) -> tuple[GpuState, ...]:
    """Return the GPUs of a response by index, the lost ones included."""
    answers: list[ApiGpu | ApiLostGpu] = [*response.gpus, *response.lost_gpus]
    gpus = [_gpu(node, gpu, response.ended_pods) for gpu in answers]
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


_CAUSES: Final = {
    RiskName.PODS: "pods above their shares hold",
    RiskName.PROMISES: "promised above its total:",
    RiskName.HOST: "host processes hold",
    RiskName.ENDED: "ended pods hold",
    RiskName.UNATTRIBUTED: "no process accounts for",
}


def _risk_cause(gpu: ApiGpu) -> str:
    """Return the largest cause of a GPU's risk, in brackets; empty for an unknown one."""
    cause = gpu.risk_causes[0] if gpu.risk_causes else None
    amount = known_bytes(cause.bytes) if cause else None
    words = _CAUSES.get(RiskName(cause.cause)) if cause and cause.cause in tuple(RiskName) else None
    return f" ({words} {size(amount)})" if words and amount is not None else ""


def _ended_text(gpu: ApiGpu, ended: Sequence[ApiEndedPod]) -> str:
    """Return the memory of ended pods on a GPU with their names; empty without any."""
    amount = known_bytes(gpu.ended_pods_bytes)
    names = [plain(f"{pod.namespace}/{pod.name}", LONGEST_NAME) for pod in ended if pod.gpu_uuid == gpu.uuid]
    if not names and not amount:
        return ""
    return f"ended pods hold {size(amount)}: {first_few(names, 2)}"


def _gpu(node: str, gpu: ApiGpu | ApiLostGpu, ended: Sequence[ApiEndedPod]) -> GpuState:
    figures: dict[str, Any] = {"is_lost": True, "is_gone": isinstance(gpu, ApiLostGpu) and gpu.lost}
    if isinstance(gpu, ApiGpu):
        names = ("total", "used", "reserved", "promised", "host", "at_risk")
        figures = {name: known_bytes(getattr(gpu, f"{name}_bytes")) for name in names}
        if not is_noticeable_risk(figures["at_risk"], figures["total"]):
            figures["at_risk"] = None
        figures["unattributed"] = known_bytes(gpu.unattributed_bytes, least=-_IMPLAUSIBLE)
        figures |= {
            "is_mig": gpu.mig,
            "is_suspended": gpu.verdicts_suspended,
            "risk_cause": _risk_cause(gpu),
            "ended": _ended_text(gpu, ended),
            "sensors": tuple(_sensors(gpu)),
        }
    return GpuState(
        label=f"GPU {index_text(gpu.index)}",
        node=node,
        index=gpu.index,
        uuid=gpu.uuid,
        model=plain(gpu.model, LONGEST_NAME),
        xid=_xid(gpu.xid),
        act=act_of(gpu),
        **figures,
    )


def _sensors(gpu: ApiGpu) -> Iterator[str]:
    """Yield the plausible figures of the GPU's sensors."""
    ratio, celsius = gpu.utilization_ratio, gpu.temperature_celsius
    watts, limit = gpu.power_watts, gpu.power_limit_watts
    if ratio is not None and 0 <= ratio <= 1:
        yield f"utilisation {percent(ratio)}"
    if celsius is not None and abs(celsius) < 1000:
        yield f"temperature {celsius} °C"
    if watts is not None and 0 <= watts < 1e6:
        yield f"power {watts:.0f} W{f' of {limit:.0f} W' if limit is not None and 0 < limit < 1e6 else ''}"


def _xid(xid: ApiXid | None) -> str:
    if xid is None or not 0 <= xid.code < 10_000:
        return ""
    if not 0 <= xid.time < 1e11:
        return f"XID {xid.code}"
    moment = datetime.fromtimestamp(xid.time, UTC)
    return f"XID {xid.code} at {moment:%b} {moment.day} {moment:%H:%M} UTC"


class ProblemText(NamedTuple):
    """A problem with its scope, safe for a terminal, and what to do about it."""

    text: str
    suspends_nothing: bool
    act: Act | None


def problems_of(response: AgentResponse, gpus: Iterable[GpuState]) -> tuple[ProblemText, ...]:
    """Return the problems of a response; those that suspend no verdict are the last."""
    labels = {gpu.uuid or f"index-{gpu.index}": gpu.label for gpu in gpus}
    problems = [_problem(problem, labels) for problem in response.problems]
    return tuple(sorted(problems, key=lambda problem: problem.suspends_nothing))


def _problem(problem: ApiProblem, labels: Mapping[str, str]) -> ProblemText:
    scope = labels.get(problem.gpu_uuid) or plain(problem.gpu_uuid, 64) or "the node"
    detail = f": {plain(problem.detail, _LONGEST_DETAIL)}" if problem.detail else ""
    suspends_nothing = problem.reason in SUSPENDS_NOTHING or problem.reason in tuple(OwnCause)
    ending = ". It suspends no verdict." if suspends_nothing else ""
    text = f"{plain(problem.reason, 48)} ({scope}){detail}{ending}"
    return ProblemText(text, suspends_nothing, act_of(problem))


def nothing_text(response: AgentResponse) -> str:
    """Return why a response has no figures of pods; empty if it has some."""
    if response.gpus:
        return "" if response.pods else NO_POD
    if response.sample_timestamp is None:
        return "No figures: there is no sample yet, or the last one is too old."
    return "No GPU on this node responds."
