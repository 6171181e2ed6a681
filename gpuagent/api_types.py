"""What an agent says at `/api/v1/shares`, as far as it is shown. None is what the agent could not tell."""

from typing import Any

import msgspec
from msgspec import Struct


class ApiObject(Struct, rename="camel", frozen=True):
    """One object of the answer; fields of a newer agent are passed over."""


class ApiProblem(ApiObject, frozen=True):
    """Why something cannot be known."""

    reason: str
    gpu_uuid: str = ""
    detail: str = ""


class ApiGpu(ApiObject, frozen=True):
    """One GPU's sums, bytes."""

    uuid: str
    index: int
    model: str = ""
    mig: bool = False
    total_bytes: int | None = None
    used_bytes: int | None = None
    promised_bytes: int | None = None
    host_bytes: int | None = None
    unattributed_bytes: int | None = None


class ApiAmount(ApiObject, frozen=True):
    """A share or a limit, bytes."""

    bytes: int
    source: str


class ApiCandidate(ApiObject, frozen=True):
    """One source's word on a share."""

    source: str
    counts: bool = True
    """Whether it may decide what the share is."""
    bytes_per_gpu: dict[str, int | None] = {}
    """By GPU UUID; under "" while the GPU is unknown."""


class ApiHolding(ApiObject, frozen=True):
    """What a pod holds on one GPU, bytes."""

    gpu_uuid: str
    gpu: int
    mig: bool = False
    used_bytes: int | None = None
    processes: int = 0


class ApiVerdict(ApiObject, frozen=True):
    """A pod judged for one reason on one GPU."""

    reason: str
    gpu_uuid: str = ""
    flagged: bool = False
    lasted_seconds: float | None = None
    """Without a break up to now; None if the pod is not over now."""
    balance_seconds: float | None = None
    """Seconds that count towards the grace; None from an agent that has no balance."""


class ApiTenant(ApiObject, frozen=True):
    """A pod's names in its vCluster."""

    name: str
    namespace: str
    pod: str


class ApiPod(ApiObject, frozen=True):
    """One pod."""

    namespace: str
    name: str
    uid: str
    phase: str = ""
    queue: str | None = None
    vcluster: ApiTenant | None = None
    gpu_uuids: list[str] = []
    has_unsized_gpus: bool = False
    """Whether it gets GPUs by a claim or a resource that tells no size."""
    shares: dict[str, ApiAmount] = {}
    limits: dict[str, ApiAmount] = {}
    candidates: list[ApiCandidate] = []
    """Best first."""
    notes: list[str] = []
    gpus: list[ApiHolding] = []
    verdicts: list[ApiVerdict] = []


class AgentResponse(ApiObject, frozen=True):
    """The whole."""

    node: str
    simulated: bool = False
    driver_version: str | None = None
    sample_timestamp: float | None = None
    last_good_sample_timestamp: float | None = None
    """Unix time by the agent's clock."""
    attribution_ok: bool | None = None
    problems: list[ApiProblem] = []
    gpus: list[ApiGpu] = []
    pods: list[ApiPod] = []


_answer = msgspec.json.Decoder(AgentResponse)


class NotAnAnswer(ValueError):
    """It is not what an agent says; the message is one line."""


def read_answer(body: bytes) -> AgentResponse:
    """Read the JSON of an agent.

    Raises:
        NotAnAnswer: it is something else.
    """
    try:
        return _answer.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAnAnswer(str(error)) from None


def read_document(body: bytes) -> Any:
    """Read the same JSON whole, with whatever this version does not show."""
    return msgspec.json.decode(body)
