"""Types of the agent's JSON API: what the server encodes, and what `kaishare` decodes.

None is an unknown value, and null in JSON. A field with a default may be missing in the response of an older
agent. The docstrings of the fields are their descriptions in docs/api.md and in the schema.
"""

from typing import TypeVar

import msgspec
from msgspec import Struct

SHARES_PATH = "/api/v1/shares"
HISTORY_PATH = "/api/v1/history"


class ApiObject(Struct, rename="camel", frozen=True, gc=False):
    """One object of the response; unknown fields of newer agents are ignored.

    JSON has no cycles, so garbage collection need not visit the objects.
    """


class WithRemedy(ApiObject, frozen=True, kw_only=True, gc=False):
    """A flag, a problem or a GPU, with what to do about it; these fields come last."""

    first_act: str | None = None
    """What to do first, in one sentence. Null if there is nothing to do, or if `detail` says it."""
    runbook: str | None = None
    """Section of docs/runbooks.md with the rest of what to do. Null without `firstAct`."""


class ApiProblem(WithRemedy, frozen=True, gc=False):
    """Why figures are unknown or verdicts suspended, or a fault of a reservation pod or of the agent."""

    reason: str
    """As `reason` of `kaishare_agent_attribution_problem`, or a fault of the agent's own pod or of the node's
    labels: `device-files`, `visible-devices`, `mig-monitor`, `host-proc`, `node-label`, `rights`."""
    gpu_uuid: str = ""
    """UUID of the GPU or MIG device; `index-3` for a GPU that never answered; empty if the problem concerns
    the whole node."""
    detail: str = ""
    """One line for a person."""


class ApiXid(ApiObject, frozen=True, gc=False):
    """An error that the driver reported for a GPU (XID)."""

    code: int
    """Number of the error, as in the driver's log and NVIDIA's list of XIDs."""
    time: float
    """Unix time of the sample in which the agent received it, in seconds."""


class ApiRiskCause(ApiObject, frozen=True, gc=False):
    """What has taken memory that pods are promised."""

    cause: str
    """One of `pods-above-share`, `promised-above-total`, `host-processes`, `ended-pods`, `unattributed`; the
    last is memory of no process."""
    bytes: int
    """Amount of memory, in bytes."""


class ApiEndedPod(ApiObject, frozen=True, gc=False):
    """A pod that the API server no longer has, with processes that still use a GPU."""

    namespace: str
    """Namespace of the pod."""
    name: str
    """Name of the pod."""
    uid: str
    """UID of the pod."""
    owner: str
    """Workload of the pod, such as `Deployment/web`; empty if it had none."""
    gpu_uuid: str
    """UUID of the GPU."""
    used_bytes: int | None
    """Memory of its processes, in bytes. Null if the driver does not report it."""


class ApiGpu(WithRemedy, frozen=True, gc=False):
    """One GPU that answered in the sample, with its sums."""

    uuid: str
    """UUID of the GPU."""
    index: int
    """Index of the GPU in the driver's list."""
    model: str = ""
    """Name of the model, as the driver has it."""
    mig: bool = False
    """Whether the GPU is in MIG mode."""
    verdicts_suspended: bool = False
    """Whether a problem suspends the verdicts on the GPU."""
    total_bytes: int | None = None
    """Total memory, in bytes. Null if the driver does not report it."""
    used_bytes: int | None = None
    """Total minus free minus reserved memory, in bytes. Null if the driver does not report it."""
    reserved_bytes: int | None = None
    """Memory that the driver reserves, in bytes. Null if the driver does not report it."""
    memory_unknown: str | None = None
    """Why the driver does not report the memory of the GPU, in one line. Null while it does."""
    promised_bytes: int | None = None
    """Sum of the pods' shares of the GPU, in bytes. Null if the pods, or the share of one of them on this
    GPU, are unknown."""
    host_bytes: int | None = None
    """Memory of processes outside of the node's pods and of reservation pods, in bytes. Null if the memory of
    such a process, or the owner of any process, is unknown."""
    ended_pods_bytes: int | None = None
    """Memory of processes of pods that the API server no longer has, in bytes. Null as `hostBytes`."""
    unattributed_bytes: int | None = None
    """Used memory that no process accounts for, in bytes; may be negative. Null if the memory of the GPU or
    of a process, or the list of processes, is unknown."""
    at_risk_bytes: int | None = None
    """Memory that the pods are still promised, their shares less their use, and that is neither free nor
    reserved by the driver, in bytes. Null if a figure is unknown, and in MIG mode."""
    risk_causes: tuple[ApiRiskCause, ...] = ()
    """What has taken memory of a GPU at risk, the largest amount first."""
    utilization_ratio: float | None = None
    """Part of the driver's last measuring period in which a kernel ran on the GPU, from 0 to 1. Null if the
    driver does not report it."""
    temperature_celsius: int | None = None
    """Temperature of the chip, in degrees Celsius. Null if the driver does not report it."""
    power_watts: float | None = None
    """Power draw, in watts. Null if the driver does not report it."""
    power_limit_watts: float | None = None
    """Enforced limit of the power, in watts. Null if the driver does not report it."""
    xid: ApiXid | None = None
    """The newest error (XID) that the driver reported since the agent started. Null if it reported none, or
    does not report errors for the GPU."""


def is_noticeable_risk(at_risk_bytes: int | None, total_bytes: int | None) -> bool:
    """Whether memory at risk is more than the driver itself takes: 256 MiB and a hundredth of the GPU."""
    return (at_risk_bytes or 0) > max(256 << 20, (total_bytes or 0) // 100)


class ApiLostGpu(WithRemedy, frozen=True, gc=False):
    """One GPU that did not answer in the sample, or that the driver no longer lists."""

    index: int
    """Index at its last answer; for a GPU that never answered, its place in the list."""
    uuid: str = ""
    """UUID of the GPU; empty if it has not answered since the agent started."""
    model: str = ""
    """Name of the model; empty if unknown."""
    xid: ApiXid | None = None
    """The newest error (XID) that the driver reported since the agent started, such as 79 for a GPU that has
    fallen off the bus. Null if it reported none."""
    lost: bool = True
    """Whether the GPU itself is lost: it fell off the bus, must be reset, or is no longer listed. False if it
    does not answer for another reason, such as a driver that is being replaced."""


class ApiAmount(ApiObject, frozen=True, gc=False, omit_defaults=True):
    """A share or a limit on one GPU."""

    bytes: int
    """Amount of memory, in bytes."""
    source: str
    """Origin of the amount, as `source` of `kaishare_pod_gpu_memory_share_bytes` or `…_limit_bytes`."""
    counts: bool = True
    """False for a limit above the share that KAI is not known to enforce. The agent omits the field where it
    is true."""


class ApiCandidate(ApiObject, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The share of a pod according to one source."""

    source: str
    """Origin of the share, as in a share."""
    text: str = ""
    """The share in the source's own form, such as `portion 0.50`."""
    bytes_per_gpu: dict[str, int | None]
    """Memory by UUID of the GPU, in bytes. The key is empty while the GPU is unknown. A value is null if the
    share is a fraction of a GPU whose memory is unknown."""
    counts: bool = True
    """False if the source never decides the share. The agent omits the field where it is true."""


class ApiHolding(ApiObject, frozen=True, gc=False):
    """The memory and utilisation of a pod on one GPU or MIG device."""

    gpu_uuid: str
    """UUID of the GPU or MIG device."""
    gpu: int
    """Index of the GPU."""
    mig: bool = False
    """Whether the GPU is in MIG mode; there is no verdict then."""
    used_bytes: int | None = None
    """Memory of the pod's processes, in bytes; 0 without a process. Null if the memory or the owner of a
    process that may belong to the pod is unknown."""
    utilization_ratio: float | None = None
    """Part of the last interval in which the pod's processes had a kernel running, from 0 to 1. Null if the
    driver does not report it, or without a previous sample of at most 12 s before."""
    processes: int | None = None
    """Number of the pod's processes. Null if the list of processes is missing or cut at 950, or the owner of
    a process that may belong to the pod is unknown."""
    idle_seconds: float | None = None
    """Time since the pod last ran a kernel on the GPU, in seconds: it held no memory, or its utilisation was
    0. Null if it is not idle, if that is unknown, or for a pod without a share."""


class ApiVerdict(WithRemedy, frozen=True, gc=False):
    """The verdict on one pod for one reason on one GPU. A pod without one is not judged for it."""

    reason: str
    """As `reason` of `kaishare_pod_flagged`."""
    gpu_uuid: str = ""
    """UUID of the GPU; empty if the pod's GPU is unknown."""
    flagged: bool = False
    """Whether the pod is flagged."""
    lasted_seconds: float | None = None
    """Duration of the present, uninterrupted violation, in seconds. Null if the newest sample shows none."""
    balance_seconds: float | None = None
    """Seconds that count towards the grace. Null only from an older agent without a balance."""
    used_bytes: int | None = None
    """Memory that was compared, in bytes. Null if only a lower bound is known, or if the reason is not about
    memory."""
    used_at_least_bytes: int | None = None
    """Lower bound of the memory that was compared, in bytes. Null if `usedBytes` is known, or if the reason
    is not about memory."""
    allowed_bytes: int | None = None
    """Share or limit that it was compared with, without slack, in bytes. Null if there is none."""
    message: str | None = None
    """The flag with its figures, and the option to set where the pod runs a framework that has one; the Event
    has `firstAct`, too. Null without a flag."""

    @property
    def is_over(self) -> bool:
        """Whether the newest sample shows the violation."""
        return self.lasted_seconds is not None

    @property
    def is_of_memory(self) -> bool:
        """Whether the reason is about memory, and not about KAI's records."""
        return self.used_bytes is not None or self.used_at_least_bytes is not None

    @property
    def over_seconds(self) -> float:
        """Seconds of the violation: the uninterrupted ones, or the balance where it is longer."""
        return max(self.lasted_seconds or 0.0, self.balance_seconds or 0.0)


class ApiOverSharePolicy(ApiObject, frozen=True, gc=False):
    """The settings of a pod's namespace for pods above their share."""

    evict: bool = False
    """Whether the namespace asks for eviction."""
    grace_seconds: float | None = None
    """Grace of the namespace, in seconds. Null if the namespace sets none; the agent's `--grace` applies
    then."""


class ApiTenant(ApiObject, frozen=True, gc=False):
    """The names of a pod inside its vCluster."""

    name: str
    """Name of the vCluster."""
    namespace: str
    """Namespace inside the vCluster."""
    pod: str
    """Name of the pod inside the vCluster."""


class ApiWorkload(ApiObject, frozen=True, gc=False):
    """The workload of a pod, from metadata that the pod's owner can write."""

    kind: str
    """Kind of the controller, such as `Deployment`."""
    name: str
    """Name of the controller."""


class ApiContainerLimit(ApiObject, frozen=True, kw_only=True, gc=False):
    """What the driver holds one container to on one GPU, beside a limit that it was promised."""

    container: str
    """Name of the container; empty while the pod's status lacks it."""
    gpu_uuid: str
    """UUID of the GPU."""
    promised: int | None = None
    """Promised limit, in bytes. Null without a promise."""
    soft: int | None = None
    """Soft limit, in bytes. Null without a limit, or if unknown."""
    hard: int | None = None
    """Hard limit, in bytes. Null without a limit, or if unknown."""
    inherited: bool | None = None
    """Whether the limit is that of the pod's cgroup. Null without a limit, or if unknown."""
    source: str | None = None
    """Origin of the promise: `annotation` of KAI's mode NvFractions, or `variables` of NVIDIA's container
    toolkit. Null without a promise."""
    in_force: bool | None = None
    """Whether the driver holds the promised limit. Null without a promise, or if unknown."""
    cause: str | None = None
    """Why the limit is not as promised, or unknown, such as `one-variable` or `too-old`. Null if there is no
    cause, or if it cannot be seen."""


class ApiPod(ApiObject, frozen=True, gc=False):
    """One pod that has a share, an assigned GPU, memory on a GPU, or a flag, with its verdicts."""

    namespace: str
    """Namespace of the pod on the host."""
    name: str
    """Name of the pod on the host."""
    uid: str
    """UID of the pod."""
    phase: str = ""
    """`status.phase` of the pod; empty if the pod has none."""
    queue: str | None = None
    """Queue label as the agent first saw it. Null if the pod had none."""
    size: str | None = None
    """Name of the size, as the agent first saw it. Null if the pod has none."""
    workload: ApiWorkload | None = None
    """Workload of the pod. Null if the pod has no controller."""
    vcluster: ApiTenant | None = None
    """Names inside the vCluster. Null if the pod belongs to the host."""
    gpu_groups: tuple[str, ...] = ()
    """KAI's GPU groups of the pod."""
    gpu_uuids: tuple[str, ...] = ()
    """UUIDs of the assigned GPUs; empty if the pod has none, or if they are unknown."""
    gpu_unresolved: bool = False
    """Whether the pod has a share of a GPU that is unknown."""
    has_unsized_gpus: bool = False
    """Whether the pod gets GPUs of unknown size: by a ResourceClaim that the agent does not read, or by a
    resource whose size its manifest does not state."""
    lacks_reservation: bool = False
    """Whether the pod runs with a share in a group that has no reservation pod."""
    shares: dict[str, ApiAmount] = {}
    """The share in force, by UUID of the GPU. No entry for a GPU whose share is unknown."""
    limits: dict[str, ApiAmount] = {}
    """The limit of an enforcer, by UUID of the GPU. No entry for a GPU without a limit."""
    driver_limits: list[ApiContainerLimit] = []
    """Each container with a process on a GPU that was promised a limit, or that the driver limits there."""
    candidates: list[ApiCandidate] = []
    """The share according to each source, the best source first."""
    over_share_policy: ApiOverSharePolicy | None = None
    """Settings of the pod's namespace for pods above their share. Null if the namespace has none, or its
    labels are unknown."""
    not_evicted: str | None = None
    """Why the pod is not evicted although its namespace asks for it and it is over now, as `result` of
    `kaishare_agent_evictions_total`, or `eviction-off`. Null else, and for a pod that waits for its turn."""
    share_changed: str | None = None
    """How the pod's annotations differ from the record that counts. Null if they do not."""
    notes: tuple[str, ...] = ()
    """Invalid values of the pod, one line each; at most nine."""
    gpus: list[ApiHolding] = []
    """Every GPU that the pod uses, or that is assigned to it."""
    verdicts: list[ApiVerdict] = []
    """Every reason for which the pod is judged, on each GPU."""

    @property
    def has_share(self) -> bool:
        """Whether any source that counts has a share for the pod."""
        return (
            bool(self.shares) or self.gpu_unresolved or any(candidate.counts for candidate in self.candidates)
        )

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
    """Name of the node."""
    simulated: bool = False
    """Whether the figures are synthetic (`--gpus simulated`)."""
    driver_version: str | None = None
    """Version of the driver. Null if the driver has not reported it in the newest sample."""
    sample_timestamp: float | None = None
    """Unix time of the sample that is shown, in seconds. Null before the first sample, and while the last one
    is stale: `gpus` and `pods` are empty then, which means unknown and not none."""
    last_good_sample_timestamp: float | None = None
    """Unix time of the last sample for which the driver answered, in seconds, on the agent's clock. Null
    before the first one."""
    gpu_sharing_mode: str | None = None
    """KAI's mode by `--gpu-sharing-mode`. Null without the option."""
    attribution_ok: bool | None = None
    """False while a problem of the node or of every GPU suspends all verdicts. Null before the first
    sample."""
    flag_transitions: dict[str, dict[str, int]] = {}
    """Flags since the agent started: by reason, the numbers `raised`, `cleared` and `dropped`."""
    grace_seconds: float | None = None
    """The agent's `--grace`, in seconds; `overSharePolicy` of a pod has another one. Null before the first
    sample."""
    runbooks_url: str | None = None
    """Address of docs/runbooks.md, by `--runbooks`. Null without the option."""
    fleet_url: str | None = None
    """Address of a page of all nodes, by `--fleet-url`. Null without the option."""
    problems: list[ApiProblem] = []
    """All present problems."""
    gpus: list[ApiGpu] = []
    """The GPUs that answered; those that did not are in `lostGpus`."""
    lost_gpus: list[ApiLostGpu] = []
    """The GPUs that did not answer, by index, as far as the agent knows them."""
    ended_pods: list[ApiEndedPod] = []
    """Pods that the API server no longer has and that still use a GPU, at most 128."""
    pods: list[ApiPod] = []
    """The pods with GPUs, by namespace and name."""


class ApiPodHistory(ApiObject, frozen=True, kw_only=True, gc=False):
    """The past of one pod on one GPU."""

    uid: str
    """UID of the pod."""
    gpu_uuid: str
    """UUID of the GPU or MIG device."""
    share_mebibytes: int | None
    """Last known share on the GPU. Null without one."""
    used_mebibytes: tuple[int | None, ...]
    """Peak of the pod's memory in each bucket, rounded up, the oldest first. Null if unknown, and before the
    pod was first seen."""


class HistoryResponse(ApiObject, frozen=True, gc=False):
    """The root of the response of `/api/v1/history`."""

    node: str
    """Name of the node."""
    sample_timestamp: float | None = None
    """Unix time of the newest sample, in seconds. Null before the first."""
    bucket_seconds: float | None = None
    """Length of a bucket. Null without a history."""
    complete: bool = True
    """False if pods are left out, since the response would exceed 1 MiB."""
    pods: list[ApiPodHistory] = []
    """Each pod on each GPU with known use."""


_T = TypeVar("_T")


class NotAnAnswer(ValueError):
    """The text is not a response of an agent; the message is one line."""


def read_answer(body: bytes) -> AgentResponse:
    """Decode the JSON of an agent.

    Raises:
        NotAnAnswer: the JSON is malformed or has another shape.
    """
    return _read(msgspec.json.Decoder(AgentResponse), body)


def read_history(body: bytes) -> HistoryResponse:
    """Decode the JSON of `/api/v1/history`; raises as `read_answer`."""
    return _read(msgspec.json.Decoder(HistoryResponse), body)


def _read(decoder: msgspec.json.Decoder[_T], body: bytes) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotAnAnswer(str(error)) from None
