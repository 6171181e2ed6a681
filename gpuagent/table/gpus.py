"""The GPUs of one node, and its problems, with their texts. Pure."""

from dataclasses import dataclass
from typing import Final

from gpuagent.api_types import AgentResponse, ApiGpu, ApiLostGpu, ApiProblem
from gpuagent.problems import SUSPENDS_NOTHING
from gpuagent.table.words import LONGEST_NAME, UNKNOWN, plain
from service.units import size

NO_POD: Final = "No pod has a GPU share or uses GPU memory."
GPU_HEADINGS: Final = ("", "MODEL", "USED", "TOTAL", "PROMISED", "HOST", "UNATTRIBUTED", "")
_LONGEST_UUID: Final = 64
_LONGEST_DETAIL: Final = 1000
_IMPLAUSIBLE: Final = 1 << 53
"""Bytes (8 PiB); JSON numbers above this are not exact."""


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

    @property
    def name(self) -> str:
        """The GPU among those of several nodes."""
        return f"{self.node} {self.label}"

    @property
    def excess(self) -> int:
        """Bytes of the pods' shares beyond the GPU's memory; 0 if there are none, or if either is unknown."""
        return max(self.promised - self.total, 0) if self.promised is not None and self.total else 0

    @property
    def is_over_promised(self) -> bool:
        """Whether the pods' shares exceed the GPU's memory."""
        return self.excess > 0

    @property
    def notes(self) -> str:
        """What a reader must know of the GPU, in words; empty if there is nothing."""
        notes = {
            "LOST": self.is_lost,
            "OVERPROMISED": self.is_over_promised,
            "verdicts suspended": self.is_suspended,
            "MIG: not judged": self.is_mig,
        }
        return ", ".join(note for note, is_so in notes.items() if is_so)

    @property
    def cells(self) -> tuple[str, ...]:
        """The figures of the GPU under GPU_HEADINGS."""
        amounts = (self.used, self.total, self.promised, self.host, self.unattributed)
        return (self.label, self.model, *map(size, amounts), self.notes)

    @property
    def text(self) -> str:
        """All figures of the GPU in one line."""
        named = zip(GPU_HEADINGS[1:], self.cells[1:], strict=True)
        return f"{self.label}: " + ", ".join(f"{name.lower()} {text}".strip() for name, text in named if text)


@dataclass(frozen=True, slots=True)
class ProblemText:
    """A problem with its scope, safe for a terminal."""

    reason: str
    scope: str
    detail: str
    suspends_nothing: bool

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
    )


def _lost(node: str, gpu: ApiLostGpu) -> GpuState:
    return GpuState(
        label=f"GPU {index_text(gpu.index)}",
        node=node,
        index=gpu.index,
        uuid=gpu.uuid,
        scope=gpu.uuid or f"index-{gpu.index}",
        model=plain(gpu.model, LONGEST_NAME),
        is_lost=True,
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
        problem.reason in SUSPENDS_NOTHING,
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
