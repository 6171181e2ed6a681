"""Types of the agent's JSON API `/api/v1/shares`, as far as `top` shows it. None is an unknown value."""

from typing import Any

import msgspec
from msgspec import Struct, field


class ApiObject(Struct, rename="camel", frozen=True, gc=False):
    """One object of the response; unknown fields of newer agents are ignored.

    JSON has no cycles, so garbage collection need not visit the objects.
    """


class ApiProblem(ApiObject, frozen=True, gc=False):
    """Why something is unknown."""

    reason: str
    gpu_uuid: str = ""
    detail: str = ""


class ApiGpu(ApiObject, frozen=True, gc=False):
    """The sums of one GPU, in bytes."""

    uuid: str
    index: int
    model: str = ""
    mig: bool = False
    total_bytes: int | None = None
    used_bytes: int | None = None
    promised_bytes: int | None = None
    host_bytes: int | None = None
    unattributed_bytes: int | None = None


class ApiAmount(ApiObject, frozen=True, gc=False):
    """A share or a limit, in bytes."""

    bytes: int
    source: str


class ApiCandidate(ApiObject, frozen=True, gc=False):
    """A pod's share according to one source."""

    source: str
    says: str = ""
    """The source's own words."""
    counts: bool = True
    """Whether the source may decide the share."""
    bytes_per_gpu: dict[str, int | None] = {}
    """By GPU UUID; the key is empty while the GPU is unknown."""


class ApiHolding(ApiObject, frozen=True, gc=False):
    """The memory of a pod on one GPU, in bytes, and its utilisation."""

    gpu_uuid: str
    gpu: int
    mig: bool = False
    used_bytes: int | None = None
    utilization_ratio: float | None = None
    """From 0 to 1; None if unknown, and from an agent that does not measure it."""
    processes: int = 0

    @property
    def known_processes(self) -> int | None:
        """The number of processes; None if unknown, which the response writes as 0 beside unknown memory."""
        return self.processes if self.processes or self.used_bytes is not None else None


class ApiVerdict(ApiObject, frozen=True, gc=False):
    """The verdict on one pod for one reason on one GPU."""

    reason: str
    gpu_uuid: str = ""
    flagged: bool = False
    lasted_seconds: float | None = None
    """Duration of the current uninterrupted violation; None if there is none."""
    balance_seconds: float | None = None
    """Seconds that count towards the grace; None from an agent without a balance."""
    used_bytes: int | None = None
    allowed_bytes: int | None = None


class ApiOverSharePolicy(ApiObject, frozen=True, gc=False):
    """The namespace's settings for pods above their share."""

    evict: bool = False
    grace_seconds: float | None = None


class ApiTenant(ApiObject, frozen=True, gc=False):
    """A pod's names in its vCluster."""

    name: str
    namespace: str
    pod: str


class ApiWorkload(ApiObject, frozen=True, gc=False):
    """A pod's workload, as its metadata names it."""

    kind: str
    name: str


class ApiPod(ApiObject, frozen=True, gc=False):
    """One pod with its shares, usage and verdicts."""

    namespace: str
    name: str
    uid: str
    phase: str = ""
    queue: str | None = None
    size: str | None = None
    """Name of the size; None without one, and from an agent that does not report it."""
    workload: ApiWorkload | None = None
    vcluster: ApiTenant | None = None
    gpu_groups: list[str] = []
    gpu_uuids: list[str] = []
    gpu_unresolved: bool = False
    """Whether the pod has a share of a GPU that is unknown."""
    has_unsized_gpus: bool = False
    """Whether the pod gets GPUs by a ResourceClaim or a resource without a known size."""
    lacks_reservation: bool = False
    shares: dict[str, ApiAmount] = {}
    limits: dict[str, ApiAmount] = {}
    candidates: list[ApiCandidate] = []
    """The best candidate comes first."""
    over_share_policy: ApiOverSharePolicy | None = field(default=None, name="asked")
    share_changed: str | None = None
    """Differences of the share from a better source; None without one."""
    notes: list[str] = []
    gpus: list[ApiHolding] = []
    verdicts: list[ApiVerdict] = []

    def share_on(self, gpu_uuid: str) -> ApiAmount | None:
        """Return the share on a GPU; by the best candidate if the GPU is unknown ("") or does not respond."""
        if gpu_uuid in self.shares:
            return self.shares[gpu_uuid]
        best = next((candidate for candidate in self.candidates if candidate.counts), None)
        amount = best.bytes_per_gpu.get(gpu_uuid) if best else None
        return ApiAmount(amount, best.source) if best and amount is not None else None


class AgentResponse(ApiObject, frozen=True, gc=False):
    """The root of the response: the node, its GPUs and its pods."""

    node: str
    simulated: bool = False
    driver_version: str | None = None
    sample_timestamp: float | None = None
    last_good_sample_timestamp: float | None = None
    """Unix time, on the agent's clock."""
    attribution_ok: bool | None = None
    flag_transitions: dict[str, dict[str, int]] = {}
    """Flags raised, cleared and dropped since the agent started, by reason; empty from an agent that does not
    count them."""
    problems: list[ApiProblem] = []
    gpus: list[ApiGpu] = []
    pods: list[ApiPod] = []


def transitions_text(response: AgentResponse) -> str:
    """Return how many flags were raised, cleared and dropped since the agent started; empty if none was."""
    sums = {
        change: sum(counts.get(change, 0) for counts in response.flag_transitions.values())
        for change in ("raised", "cleared", "dropped")
    }
    return ", ".join(f"{count} {change}" for change, count in sums.items()) if any(sums.values()) else ""


_answer = msgspec.json.Decoder(AgentResponse)


class NotAnAnswer(ValueError):
    """The text is not a response of an agent; the message is one line."""


def read_answer(body: bytes) -> AgentResponse:
    """Decode the JSON of an agent.

    Raises:
        NotAnAnswer: the JSON is malformed or has another shape.
    """
    try:
        return _answer.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAnAnswer(str(error)) from None


def read_document(body: bytes) -> Any:
    """Decode the whole JSON, including fields that this version does not know."""
    return msgspec.json.decode(body)
