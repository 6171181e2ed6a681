"""Types of the agent's JSON API: what the server encodes, and what `kaishare` decodes.

None is an unknown value, and null in JSON. A field with a default may be missing in the response of an older
agent. docs/api.md has the fields with these descriptions.

None is an unknown value, and null in JSON.
"""

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from gpuagent.problems import OwnCause, RiskName

SHARES_PATH = "/api/v1/shares"
HISTORY_PATH = "/api/v1/history"


def _about(description: str) -> Meta:
    """Return the description of a field, for the schema and docs/api.md."""
    return Meta(description=description)


FirstActText: TypeAlias = Annotated[
    str | None,
    _about(
        "What to do first, in one sentence. Null if there is nothing to do, if `detail` says it, or from an"
        " older agent."
    ),
]
RunbookSection: TypeAlias = Annotated[
    str | None, _about("Section of docs/runbooks.md with the rest of what to do. Null without `firstAct`.")
]


class ApiObject(Struct, rename="camel", frozen=True, gc=False):
    """One object of the response; unknown fields of newer agents are ignored.

    JSON has no cycles, so garbage collection need not visit the objects.
    """


class ApiProblem(ApiObject, frozen=True, gc=False):
    """Why figures are unknown or verdicts suspended, or a fault of a reservation pod or of the agent."""

    reason: Annotated[
        str,
        _about(
            "As `reason` of `kaishare_agent_attribution_problem`, or a fault of the agent's own pod or of the"
            " node's labels:"
            f" {', '.join(f'`{cause}`' for cause in OwnCause)}."
        ),
    ]
    gpu_uuid: Annotated[
        str,
        _about(
            "UUID of the GPU or MIG device; `index-3` for a GPU that never answered; empty if the problem"
            " concerns the whole node."
        ),
    ] = ""
    detail: Annotated[str, _about("One line for a person.")] = ""
    first_act: FirstActText = None
    runbook: RunbookSection = None


class ApiXid(ApiObject, frozen=True, gc=False):
    """An error that the driver reported for a GPU (XID)."""

    code: Annotated[int, _about("Number of the error, as in the driver's log and NVIDIA's list of XIDs.")]
    time: Annotated[float, _about("Unix time of the sample in which the agent received it, in seconds.")]


class ApiRiskCause(ApiObject, frozen=True, gc=False):
    """What has taken memory that pods are promised."""

    cause: Annotated[
        str,
        _about(f"One of {', '.join(f'`{name}`' for name in RiskName)}; the last is memory of no process."),
    ]
    bytes: Annotated[int, _about("Amount of memory, in bytes.")]


class ApiEndedPod(ApiObject, frozen=True, gc=False):
    """A pod that the API server no longer has, with processes that still use a GPU."""

    namespace: Annotated[str, _about("Namespace of the pod.")]
    name: Annotated[str, _about("Name of the pod.")]
    uid: Annotated[str, _about("UID of the pod.")]
    owner: Annotated[str, _about("Workload of the pod, such as `Deployment/web`; empty if it had none.")]
    gpu_uuid: Annotated[str, _about("UUID of the GPU.")]
    used_bytes: Annotated[
        int | None, _about("Memory of its processes, in bytes. Null if the driver does not report it.")
    ]


class ApiGpu(ApiObject, frozen=True, gc=False):
    """One GPU that answered in the sample, with its sums."""

    uuid: Annotated[str, _about("UUID of the GPU.")]
    index: Annotated[int, _about("Index of the GPU in the driver's list.")]
    model: Annotated[str, _about("Name of the model, as the driver has it.")] = ""
    mig: Annotated[bool, _about("Whether the GPU is in MIG mode.")] = False
    verdicts_suspended: Annotated[bool, _about("Whether a problem suspends the verdicts on the GPU.")] = False
    total_bytes: Annotated[
        int | None, _about("Total memory, in bytes. Null if the driver does not report it.")
    ] = None
    used_bytes: Annotated[
        int | None,
        _about("Total minus free minus reserved memory, in bytes. Null if the driver does not report it."),
    ] = None
    reserved_bytes: Annotated[
        int | None,
        _about("Memory that the driver reserves, in bytes. Null if the driver does not report it."),
    ] = None
    memory_unknown: Annotated[
        str | None,
        _about("Why the driver does not report the memory of the GPU, in one line. Null while it does."),
    ] = None
    promised_bytes: Annotated[
        int | None,
        _about(
            "Sum of the pods' shares of the GPU, in bytes. Null if the pods, or the share of one of them on"
            " this GPU, are unknown."
        ),
    ] = None
    host_bytes: Annotated[
        int | None,
        _about(
            "Memory of processes outside of the node's pods and of reservation pods, in bytes. Null if the"
            " memory of such a process, or the owner of any process, is unknown."
        ),
    ] = None
    ended_pods_bytes: Annotated[
        int | None,
        _about(
            "Memory of processes of pods that the API server no longer has, in bytes. Null as `hostBytes`,"
            " and from an older agent."
        ),
    ] = None
    unattributed_bytes: Annotated[
        int | None,
        _about(
            "Used memory that no process accounts for, in bytes; may be negative. Null if the memory of the"
            " GPU or of a process, or the list of processes, is unknown."
        ),
    ] = None
    at_risk_bytes: Annotated[
        int | None,
        _about(
            "Memory that the pods are still promised, their shares less their use, and that is neither free"
            " nor reserved by the driver, in bytes. Null if a figure is unknown, and in MIG mode."
        ),
    ] = None
    risk_causes: Annotated[
        tuple[ApiRiskCause, ...],
        _about("What has taken memory of a GPU at risk, the largest amount first."),
    ] = ()
    utilization_ratio: Annotated[
        float | None,
        _about(
            "Part of the driver's last measuring period in which a kernel ran on the GPU, from 0 to 1. Null"
            " if the driver does not report it."
        ),
    ] = None
    temperature_celsius: Annotated[
        int | None,
        _about("Temperature of the chip, in degrees Celsius. Null if the driver does not report it."),
    ] = None
    power_watts: Annotated[
        float | None, _about("Power draw, in watts. Null if the driver does not report it.")
    ] = None
    power_limit_watts: Annotated[
        float | None, _about("Enforced limit of the power, in watts. Null if the driver does not report it.")
    ] = None
    xid: Annotated[
        ApiXid | None,
        _about(
            "The newest error (XID) that the driver reported since the agent started. Null if it reported"
            " none, or does not report errors for the GPU."
        ),
    ] = None
    first_act: FirstActText = None
    runbook: RunbookSection = None


_NOTICEABLE_RISK: Final = 256 << 20


def is_noticeable_risk(at_risk_bytes: int | None, total_bytes: int | None) -> bool:
    """Whether memory at risk is more than the driver itself takes: 256 MiB and a hundredth of the GPU."""
    return (at_risk_bytes or 0) > max(_NOTICEABLE_RISK, (total_bytes or 0) // 100)


class ApiLostGpu(ApiObject, frozen=True, gc=False):
    """One GPU that did not answer in the sample, or that the driver no longer lists."""

    index: Annotated[
        int, _about("Index at its last answer; for a GPU that never answered, its place in the list.")
    ]
    uuid: Annotated[str, _about("UUID of the GPU; empty if it has not answered since the agent started.")] = (
        ""
    )
    model: Annotated[str, _about("Name of the model; empty if unknown.")] = ""
    xid: Annotated[
        ApiXid | None,
        _about(
            "The newest error (XID) that the driver reported since the agent started, such as 79 for a GPU"
            " that has fallen off the bus. Null if it reported none."
        ),
    ] = None
    first_act: FirstActText = None
    runbook: RunbookSection = None
    lost: Annotated[
        bool,
        _about(
            "Whether the GPU itself is lost: it fell off the bus, must be reset, or is no longer listed."
            " False if it does not answer for another reason, such as a driver that is being replaced. True"
            " from an older agent."
        ),
    ] = True


class ApiAmount(ApiObject, frozen=True, gc=False, omit_defaults=True):
    """A share or a limit on one GPU."""

    bytes: Annotated[int, _about("Amount of memory, in bytes.")]
    source: Annotated[
        str,
        _about(
            "Origin of the amount, as `source` of `kaishare_pod_gpu_memory_share_bytes` or `…_limit_bytes`."
        ),
    ]
    counts: Annotated[
        bool,
        _about(
            "False for a limit above the share that KAI is not known to enforce. The agent omits the field"
            " where it is true."
        ),
    ] = True


BytesOnGpu: TypeAlias = Annotated[
    int | None,
    _about("Memory, in bytes. Null if the share is a fraction of a GPU whose memory is unknown."),
]


class ApiCandidate(ApiObject, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """The share of a pod according to one source."""

    source: Annotated[str, _about("Origin of the share, as in a share.")]
    text: Annotated[
        str,
        _about(
            "The share in the source's own form, such as `portion 0.50`. Agents before 0.2.0 have it as"
            " `says`."
        ),
    ] = ""
    bytes_per_gpu: Annotated[
        dict[str, BytesOnGpu],
        _about(
            "Memory by UUID of the GPU, in bytes. The key is empty while the GPU is unknown. A value is null"
            " if the share is a fraction of a GPU whose memory is unknown."
        ),
    ]
    counts: Annotated[
        bool,
        _about("False if the source never decides the share. The agent omits the field where it is true."),
    ] = True


class ApiHolding(ApiObject, frozen=True, gc=False):
    """The memory and utilisation of a pod on one GPU or MIG device."""

    gpu_uuid: Annotated[str, _about("UUID of the GPU or MIG device.")]
    gpu: Annotated[int, _about("Index of the GPU.")]
    mig: Annotated[bool, _about("Whether the GPU is in MIG mode; there is no verdict then.")] = False
    used_bytes: Annotated[
        int | None,
        _about(
            "Memory of the pod's processes, in bytes; 0 without a process. Null if the memory or the owner of"
            " a process that may belong to the pod is unknown."
        ),
    ] = None
    utilization_ratio: Annotated[
        float | None,
        _about(
            "Part of the last interval in which the pod's processes had a kernel running, from 0 to 1. Null"
            " if the driver does not report it, or without a previous sample of at most 12 s before."
        ),
    ] = None
    processes: Annotated[
        int | None,
        _about(
            "Number of the pod's processes. Null if the list of processes is missing or cut at 950, or the"
            " owner of a process that may belong to the pod is unknown."
        ),
    ] = None
    idle_seconds: Annotated[
        float | None,
        _about(
            "Time since the pod last ran a kernel on the GPU, in seconds: it held no memory, or its"
            " utilisation was 0. Null if it is not idle, if that is unknown, or for a pod without a share."
        ),
    ] = None

    @property
    def known_processes(self) -> int | None:
        """The number of processes; None if unknown: 0 from an older agent if the memory is unknown."""
        return self.processes if self.processes or self.used_bytes is not None else None


class ApiVerdict(ApiObject, frozen=True, gc=False):
    """The verdict on one pod for one reason on one GPU. A pod without one is not judged for it."""

    reason: Annotated[str, _about("As `reason` of `kaishare_pod_flagged`.")]
    gpu_uuid: Annotated[str, _about("UUID of the GPU; empty if the pod's GPU is unknown.")] = ""
    flagged: Annotated[bool, _about("Whether the pod is flagged.")] = False
    lasted_seconds: Annotated[
        float | None,
        _about(
            "Duration of the present, uninterrupted violation, in seconds. Null if the newest sample shows"
            " none."
        ),
    ] = None
    balance_seconds: Annotated[
        float | None,
        _about("Seconds that count towards the grace. Null only from an older agent without a balance."),
    ] = None
    used_bytes: Annotated[
        int | None,
        _about(
            "Memory that was compared, in bytes. Null if only a lower bound is known, or if the reason is not"
            " about memory."
        ),
    ] = None
    used_at_least_bytes: Annotated[
        int | None,
        _about(
            "Lower bound of the memory that was compared, in bytes. Null if `usedBytes` is known, or if the"
            " reason is not about memory."
        ),
    ] = None
    allowed_bytes: Annotated[
        int | None,
        _about("Share or limit that it was compared with, without slack, in bytes. Null if there is none."),
    ] = None
    message: Annotated[
        str | None,
        _about(
            "The flag with its figures, and the option to set where the pod runs a framework that has one;"
            " the Event has `firstAct`, too. Null without a flag, or from an older agent."
        ),
    ] = None
    first_act: FirstActText = None
    runbook: RunbookSection = None

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

    evict: Annotated[bool, _about("Whether the namespace asks for eviction.")] = False
    grace_seconds: Annotated[
        float | None,
        _about(
            "Grace of the namespace, in seconds. Null if the namespace sets none; the agent's `--grace`"
            " applies then."
        ),
    ] = None


class ApiTenant(ApiObject, frozen=True, gc=False):
    """The names of a pod inside its vCluster."""

    name: Annotated[str, _about("Name of the vCluster.")]
    namespace: Annotated[str, _about("Namespace inside the vCluster.")]
    pod: Annotated[str, _about("Name of the pod inside the vCluster.")]


class ApiWorkload(ApiObject, frozen=True, gc=False):
    """The workload of a pod, from metadata that the pod's owner can write."""

    kind: Annotated[str, _about("Kind of the controller, such as `Deployment`.")]
    name: Annotated[str, _about("Name of the controller.")]


class ApiContainerLimit(ApiObject, frozen=True, kw_only=True, gc=False):
    """What the driver holds one container to on one GPU, beside a limit that it was promised."""

    container: Annotated[str, _about("Name of the container; empty while the pod's status lacks it.")]
    gpu_uuid: Annotated[str, _about("UUID of the GPU.")]
    promised: Annotated[int | None, _about("Promised limit, in bytes. Null without a promise.")] = None
    soft: Annotated[int | None, _about("Soft limit, in bytes. Null without a limit, or if unknown.")] = None
    hard: Annotated[int | None, _about("Hard limit, in bytes. Null without a limit, or if unknown.")] = None
    inherited: Annotated[
        bool | None,
        _about("Whether the limit is that of the pod's cgroup. Null without a limit, or if unknown."),
    ] = None
    source: Annotated[
        str | None,
        _about(
            "Origin of the promise: `annotation` of KAI's mode NvFractions, or `variables` of NVIDIA's"
            " container toolkit. Null without a promise."
        ),
    ] = None
    in_force: Annotated[
        bool | None,
        _about("Whether the driver holds the promised limit. Null without a promise, or if unknown."),
    ] = None
    cause: Annotated[
        str | None,
        _about(
            "Why the limit is not as promised, or unknown, such as `one-variable` or `too-old`. Null if"
            " there is no cause, or if it cannot be seen."
        ),
    ] = None


class ApiPod(ApiObject, frozen=True, gc=False):
    """One pod that has a share, an assigned GPU, memory on a GPU, or a flag, with its verdicts."""

    namespace: Annotated[str, _about("Namespace of the pod on the host.")]
    name: Annotated[str, _about("Name of the pod on the host.")]
    uid: Annotated[str, _about("UID of the pod.")]
    phase: Annotated[str, _about("`status.phase` of the pod; empty if the pod has none.")] = ""
    queue: Annotated[
        str | None, _about("Queue label as the agent first saw it. Null if the pod had none.")
    ] = None
    size: Annotated[
        str | None,
        _about(
            "Name of the size, as the agent first saw it. Null if the pod has none, or from an older agent."
        ),
    ] = None
    workload: Annotated[
        ApiWorkload | None, _about("Workload of the pod. Null if the pod has no controller.")
    ] = None
    vcluster: Annotated[
        ApiTenant | None, _about("Names inside the vCluster. Null if the pod belongs to the host.")
    ] = None
    gpu_groups: Annotated[tuple[str, ...], _about("KAI's GPU groups of the pod.")] = ()
    gpu_uuids: Annotated[
        tuple[str, ...],
        _about("UUIDs of the assigned GPUs; empty if the pod has none, or if they are unknown."),
    ] = ()
    gpu_unresolved: Annotated[bool, _about("Whether the pod has a share of a GPU that is unknown.")] = False
    has_unsized_gpus: Annotated[
        bool,
        _about(
            "Whether the pod gets GPUs of unknown size: by a ResourceClaim that the agent does not read, or"
            " by a resource whose size its manifest does not state."
        ),
    ] = False
    lacks_reservation: Annotated[
        bool, _about("Whether the pod runs with a share in a group that has no reservation pod.")
    ] = False
    shares: Annotated[
        dict[str, ApiAmount],
        _about("The share in force, by UUID of the GPU. No entry for a GPU whose share is unknown."),
    ] = {}
    limits: Annotated[
        dict[str, ApiAmount],
        _about("The limit of an enforcer, by UUID of the GPU. No entry for a GPU without a limit."),
    ] = {}
    driver_limits: Annotated[
        list[ApiContainerLimit],
        _about(
            "Each container with a process on a GPU that was promised a limit, or that the driver limits"
            " there. Empty from an older agent."
        ),
    ] = []
    candidates: Annotated[
        list[ApiCandidate], _about("The share according to each source, the best source first.")
    ] = []
    over_share_policy: Annotated[
        ApiOverSharePolicy | None,
        _about(
            "Settings of the pod's namespace for pods above their share. Null if the namespace has none, or"
            " its labels are unknown."
        ),
    ] = None
    not_evicted: Annotated[
        str | None,
        _about(
            "Why the pod is not evicted although its namespace asks for it and it is over now, as `result` of"
            " `kaishare_agent_evictions_total`, or `eviction-off`. Null else, and for a pod that waits for"
            " its turn."
        ),
    ] = None
    share_changed: Annotated[
        str | None,
        _about("How the pod's annotations differ from the record that counts. Null if they do not."),
    ] = None
    notes: Annotated[tuple[str, ...], _about("Invalid values of the pod, one line each; at most nine.")] = ()
    gpus: Annotated[list[ApiHolding], _about("Every GPU that the pod uses, or that is assigned to it.")] = []
    verdicts: Annotated[
        list[ApiVerdict], _about("Every reason for which the pod is judged, on each GPU.")
    ] = []

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

    node: Annotated[str, _about("Name of the node.")]
    simulated: Annotated[bool, _about("Whether the figures are synthetic (`--gpus simulated`).")] = False
    driver_version: Annotated[
        str | None,
        _about("Version of the driver. Null if the driver has not reported it in the newest sample."),
    ] = None
    sample_timestamp: Annotated[
        float | None,
        _about(
            "Unix time of the sample that is shown, in seconds. Null before the first sample, and while the"
            " last one is stale: `gpus` and `pods` are empty then, which means unknown and not none."
        ),
    ] = None
    last_good_sample_timestamp: Annotated[
        float | None,
        _about(
            "Unix time of the last sample for which the driver answered, in seconds, on the agent's clock."
            " Null before the first one."
        ),
    ] = None
    gpu_sharing_mode: Annotated[
        str | None, _about("KAI's mode by `--gpu-sharing-mode`. Null without the option.")
    ] = None
    attribution_ok: Annotated[
        bool | None,
        _about(
            "False while a problem of the node or of every GPU suspends all verdicts. Null before the first"
            " sample."
        ),
    ] = None
    flag_transitions: Annotated[
        dict[str, dict[str, int]],
        _about(
            "Flags since the agent started: by reason, the numbers `raised`, `cleared` and `dropped`. Empty"
            " from an older agent."
        ),
    ] = {}
    grace_seconds: Annotated[
        float | None,
        _about(
            "The agent's `--grace`, in seconds; `overSharePolicy` of a pod has another one. Null before the"
            " first sample, and from an older agent."
        ),
    ] = None
    runbooks_url: Annotated[
        str | None, _about("Address of docs/runbooks.md, by `--runbooks`. Null without the option.")
    ] = None
    fleet_url: Annotated[
        str | None, _about("Address of a page of all nodes, by `--fleet-url`. Null without the option.")
    ] = None
    problems: Annotated[list[ApiProblem], _about("All present problems.")] = []
    gpus: Annotated[
        list[ApiGpu], _about("The GPUs that answered; those that did not are in `lostGpus`.")
    ] = []
    lost_gpus: Annotated[
        list[ApiLostGpu], _about("The GPUs that did not answer, by index, as far as the agent knows them.")
    ] = []
    ended_pods: Annotated[
        list[ApiEndedPod],
        _about("Pods that the API server no longer has and that still use a GPU, at most 128."),
    ] = []
    pods: Annotated[list[ApiPod], _about("The pods with GPUs, by namespace and name.")] = []


class ApiPodHistory(ApiObject, frozen=True, kw_only=True, gc=False):
    """The past of one pod on one GPU."""

    uid: Annotated[str, _about("UID of the pod.")]
    gpu_uuid: Annotated[str, _about("UUID of the GPU or MIG device.")]
    share_mebibytes: Annotated[int | None, _about("Last known share on the GPU. Null without one.")]
    used_mebibytes: Annotated[
        tuple[int | None, ...],
        _about(
            "Peak of the pod's memory in each bucket, rounded up, the oldest first. Null if unknown, and"
            " before the pod was first seen."
        ),
    ]


class HistoryResponse(ApiObject, frozen=True, gc=False):
    """The root of the response of `/api/v1/history`."""

    node: Annotated[str, _about("Name of the node.")]
    sample_timestamp: Annotated[
        float | None, _about("Unix time of the newest sample, in seconds. Null before the first.")
    ] = None
    bucket_seconds: Annotated[float | None, _about("Length of a bucket. Null without a history.")] = None
    complete: Annotated[
        bool, _about("False if pods are left out, since the response would exceed 1 MiB.")
    ] = True
    pods: Annotated[list[ApiPodHistory], _about("Each pod on each GPU with known use.")] = []


def transitions_text(response: AgentResponse) -> str:
    """Return how many flags were raised, cleared and dropped since the agent started; empty if none was."""
    sums = {
        change: sum(counts.get(change, 0) for counts in response.flag_transitions.values())
        for change in ("raised", "cleared", "dropped")
    }
    return ", ".join(f"{count} {change}" for change, count in sums.items()) if any(sums.values()) else ""


_answer = msgspec.json.Decoder(AgentResponse)
_history = msgspec.json.Decoder(HistoryResponse)
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class NotAnAnswer(ValueError):
    """The text is not a response of an agent; the message is one line."""


def read_answer(body: bytes) -> AgentResponse:
    """Decode the JSON of an agent.

    Raises:
        NotAnAnswer: the JSON is malformed or has another shape.
    """
    try:
        return _answer.decode(body)
    except _UNREADABLE as error:
        raise NotAnAnswer(str(error)) from None


def read_history(body: bytes) -> HistoryResponse:
    """Decode the JSON of `/api/v1/history`.

    Raises:
        NotAnAnswer: the JSON is malformed or has another shape.
    """
    try:
        return _history.decode(body)
    except _UNREADABLE as error:
        raise NotAnAnswer(str(error)) from None
