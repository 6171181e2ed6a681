"""What an agent says at `/api/v1/shares`, as far as it is shown. None is what the agent could not tell."""

from typing import Any

import msgspec
from msgspec import Struct


class Said(Struct, rename="camel", frozen=True):
    """One object of the answer; fields of a newer agent are passed over."""


class SaidProblem(Said, frozen=True):
    """Why something cannot be known."""

    reason: str
    gpu_uuid: str = ""
    detail: str = ""


class SaidGpu(Said, frozen=True):
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


class SaidAmount(Said, frozen=True):
    """A share or a limit, bytes."""

    bytes: int
    source: str


class SaidCandidate(Said, frozen=True):
    """One source's word on a share."""

    source: str
    counts: bool = True
    """Whether it may decide what the share is."""
    bytes_per_gpu: dict[str, int | None] = {}
    """By GPU UUID; under "" while the GPU is unknown."""


class SaidHolding(Said, frozen=True):
    """What a pod holds on one GPU, bytes."""

    gpu_uuid: str
    gpu: int
    mig: bool = False
    used_bytes: int | None = None
    processes: int = 0


class SaidVerdict(Said, frozen=True):
    """A pod judged for one reason on one GPU."""

    reason: str
    gpu_uuid: str = ""
    flagged: bool = False
    lasted_seconds: float | None = None
    """Without a break up to now; None if the pod is not over now."""
    balance_seconds: float | None = None
    """Seconds that count towards the grace; None from an agent that has no balance."""


class SaidTenant(Said, frozen=True):
    """A pod's names in its vCluster."""

    name: str
    namespace: str
    pod: str


class SaidPod(Said, frozen=True):
    """One pod."""

    namespace: str
    name: str
    uid: str
    phase: str = ""
    queue: str | None = None
    vcluster: SaidTenant | None = None
    gpu_uuids: list[str] = []
    has_unsized_gpus: bool = False
    """Whether it gets GPUs by a claim or a resource that tells no size."""
    shares: dict[str, SaidAmount] = {}
    limits: dict[str, SaidAmount] = {}
    candidates: list[SaidCandidate] = []
    """Best first."""
    notes: list[str] = []
    gpus: list[SaidHolding] = []
    verdicts: list[SaidVerdict] = []


class Answer(Said, frozen=True):
    """The whole."""

    node: str
    simulated: bool = False
    driver_version: str | None = None
    sample_timestamp: float | None = None
    last_good_sample_timestamp: float | None = None
    """Unix time by the agent's clock."""
    attribution_ok: bool | None = None
    problems: list[SaidProblem] = []
    gpus: list[SaidGpu] = []
    pods: list[SaidPod] = []


_answer = msgspec.json.Decoder(Answer)


class NotAnAnswer(ValueError):
    """It is not what an agent says; the message is one line."""


def read_answer(body: bytes) -> Answer:
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
