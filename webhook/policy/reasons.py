"""The actions and reasons of decisions: one list for metrics, logs, audit annotations, warnings and docs."""

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Any

from msgspec import Struct

from service.text import first_few, printable, shorten

LONGEST_WARNING = 120
"""Maximum length of a warning, in characters.

The API server drops a warning that contains a newline. It cuts each warning to 256 characters if all of them
exceed 4096 (both verified on Kubernetes 1.36.3).
"""

_LONGEST_DETAIL = 1000
"""Maximum length of one detail, in characters. The longest detail lists every policy label."""


class Action(StrEnum):
    """The outcome of a review; the `action` label of `kaishare_webhook_requests_total`."""

    INJECTED = "injected"
    """A patch was sent."""
    OBSERVED = "observed"
    """A patch was computed and not sent, because the namespace is in mode observe."""
    UNCHANGED = "unchanged"
    """The pod is managed and needs no patch."""
    SKIPPED = "skipped"
    """The webhook does not manage the pod and left it unchanged."""
    ADMITTED = "admitted"
    """A validating webhook admitted the object."""
    DENIED = "denied"
    """A validating webhook denied the object."""
    ERROR = "error"
    """The webhook failed; the mutating webhook admitted the pod unchanged."""


class Group(StrEnum):
    """The subject of a reason; selects the table of docs/policy.md that lists the reason."""

    LEFT_ALONE = "The pod is left alone"
    SHARE = "The pod is managed: its share"
    SIZE = "The pod's size is in doubt: no share; a warning, and a denial under enforce"
    WARNING = "Warnings"
    WARNING_OR_DENIAL = "Warnings that are denials under enforce"
    DENIED = "Denials under enforce"
    ADMITTED = "Admitted by a validating webhook"
    LABELS = "A namespace's labels are refused"
    FAILED = "Something failed on kaishare's side"


class Clipped(Struct, frozen=True):
    """A detail of a sentence that may be shortened in a warning, such as the name of a container."""

    text: str
    lead: str = ""
    """Text before it, which is never shortened."""
    tail: str = ""

    def __len__(self) -> int:
        return len(self.text)

    def __str__(self) -> str:
        return f"{self.lead}{self.text}{self.tail}"

    def within(self, limit: int) -> str:
        """Return the detail with at most `limit` characters between its lead and its tail."""
        return f"{self.lead}{shorten(self.text, limit)}{self.tail}"


class NameList(Struct, frozen=True):
    """Names in a sentence: all of them, or as many as fit into a warning."""

    names: Sequence[str]
    """The names, most important first."""
    lead: str = ""
    none: str = "none"
    """Text if there are no names."""

    def __str__(self) -> str:
        return self.lead + ", ".join(self.names) if self.names else self.none

    def within(self, limit: int) -> str:
        """Return the text with as many names as fit into the limit in characters, at least one."""
        text = str(self)
        count = len(self.names)
        while len(text) > limit and count > 1:
            count -= 1
            text = self.lead + first_few(self.names, count)
        return text


class Reason(Enum):
    """The reason of an action: its group, and a sentence with placeholders for details in braces.

    The name is the stable code: `WHOLE_GPU_CONVERTED` is `whole-gpu-converted` in metrics, logs and docs.
    """

    group: Group
    text: str

    def __new__(cls, group: Group, text: str) -> "Reason":
        """Create a member with a value of its own, since two reasons may have the same sentence."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        member.group = group
        member.text = text
        return member

    @property
    def code(self) -> str:
        """The reason in metrics, logs, audit annotations and docs."""
        return self.name.lower().replace("_", "-")

    NOT_MANAGED = Group.LEFT_ALONE, "the namespace has no label kai.scheduler/queue"
    NAMESPACE_EXCLUDED = Group.LEFT_ALONE, "namespace {namespace} is excluded"
    MODE_OFF = Group.LEFT_ALONE, "the mode of the namespace is off"
    MIRROR_POD = Group.LEFT_ALONE, "a mirror pod of a static pod is never scheduled"
    NODE_NAME_SET = Group.LEFT_ALONE, "spec.nodeName is set, so the pod is never scheduled"
    DAEMONSET = Group.LEFT_ALONE, "the pod belongs to a DaemonSet, which needs no queue"
    OPTED_OUT = Group.LEFT_ALONE, 'the pod label kaishare.dev/inject is "false"'
    OTHER_SCHEDULER = Group.LEFT_ALONE, "the pod names scheduler {scheduler}"
    POLICY_INVALID = Group.LEFT_ALONE, "the namespace's policy is invalid: {problem}"
    MALFORMED_POD = Group.LEFT_ALONE, "{problem}"
    OUT_OF_SCOPE = Group.LEFT_ALONE, "the webhook does not handle this operation"

    WHOLE_GPU_CONVERTED = (
        Group.SHARE,
        "container {container}: one whole GPU became {share} by namespace {namespace}{size}",
    )
    SHARE_INJECTED = Group.SHARE, "container {container} gets {share} by namespace {namespace}{size}"
    SIZE_WHOLE_GPU = Group.SHARE, "size {size} is a whole GPU: nothing is converted"
    SIZE_UNKNOWN = Group.SIZE, "size {size} is not defined here; {sizes}"
    SELECTORS_UNREAD = (
        Group.SHARE,
        "the namespace selects sizes by labels of pods, which an admission policy cannot read",
    )
    SIZE_AMBIGUOUS = Group.SIZE, "several sizes select this pod, so set its label kaishare.dev/size: {sizes}"
    GPU_REMOVED_AGAIN = (
        Group.SHARE,
        "a LimitRange added nvidia.com/gpu to a pod with {share}; it is removed again",
    )
    OWN_SHARE = Group.SHARE, "the pod sets its own share, which is not changed"
    NO_DEFAULT_SHARE = Group.SHARE, "the namespace has no default share"
    SHARES_OFF = Group.SHARE, "the webhook runs with --inject-shares=false"
    SCHEDULER_NOT_KAI = (
        Group.SHARE,
        "the namespace's scheduler is default-scheduler, which does not support shares",
    )
    NO_GPU = Group.SHARE, "the pod requests no GPU, and kaishare.dev/share-for is {share_for}"
    WHOLE_GPU_KEPT = Group.SHARE, 'the pod annotation kaishare.dev/whole-gpu is "true"'
    SEVERAL_GPUS = (
        Group.SHARE,
        "the pod requests {count} GPUs in {containers}; only a single GPU is converted to a share",
    )
    MANY_GPU_CONTAINERS = (
        Group.SHARE,
        "more than {most} containers of the pod have nvidia.com/gpu in their resources",
    )
    INIT_CONTAINER_GPU = Group.SHARE, "init container {container} requests a GPU"
    MIG = Group.SHARE, "the pod uses MIG devices"
    RESOURCE_CLAIMS = Group.SHARE, "the pod uses ResourceClaims (DRA)"
    OTHER_GPU_RESOURCE = (
        Group.SHARE,
        "no share: the pod requests {resource}, which may be another accelerator",
    )
    MIG_NODES = Group.SHARE, "no share: the pod selects nodes with MIG devices, by {label}"
    RUNTIME_CLASS = (
        Group.SHARE,
        "no share: a share reaches no GPU in a RuntimeClass that is not NVIDIA's, such as {name}",
    )
    VCLUSTER_SYNCED = (
        Group.SHARE,
        "no share: vCluster's syncer cannot update a pod whose GPU is removed; use the webhook inside",
    )
    LIMIT_RANGE = (
        Group.SHARE,
        "no share: a LimitRange with a minimum or maximum for nvidia.com/gpu needs it in each pod: {name}",
    )
    UNCLEAR_QUANTITY = (
        Group.SHARE,
        "container {container} requests {quantity} nvidia.com/gpu, which is not a whole number",
    )
    DISTRIBUTED = (
        Group.SHARE,
        "container {container} keeps its whole GPU: {evidence}; kaishare.dev/distributed=share {where}",
    )
    CONTAINER_CONFLICT = (
        Group.SHARE,
        "no share: gpu-fraction-container-name is {named}, but the share is for container {container}",
    )
    CONTAINER_NOT_FIRST = (
        Group.SHARE,
        "no share: KAI before v0.9.12 supports only the first container, not {container}",
    )
    NAME_UNSUPPORTED = Group.SHARE, "no share: KAI does not support one for {what}"

    VERIFIED = Group.ADMITTED, "the pod complies with the namespace's policy"
    NOT_ENFORCED = Group.ADMITTED, "the namespace's kaishare.dev/mode is not enforce"
    WORKLOAD_TOLD = Group.ADMITTED, "the author was told what happens to the workload's pods"
    WORKLOAD_QUIET = Group.ADMITTED, "there is nothing to tell about the workload's pods"
    LABELS_VALID = Group.ADMITTED, "every kaishare label has an allowed value"
    LABELS_KEPT = Group.ADMITTED, "the update changes no kaishare label"

    NODE_NAME_DENIED = (
        Group.DENIED,
        "only a kubelet may set spec.nodeName here: remove it and let KAI schedule the pod",
    )
    MIRROR_DENIED = (
        Group.DENIED,
        "only a kubelet may create a mirror pod: remove the annotation kubernetes.io/config.mirror",
    )
    DAEMONSET_DENIED = (
        Group.DENIED,
        "only the DaemonSet controller may create a pod that a DaemonSet owns: remove the owner reference",
    )
    DAEMONSET_GPU_DENIED = (
        Group.DENIED,
        "a DaemonSet's pod may not use GPUs or KAI here, and this one {what}: remove that",
    )
    OPT_OUT_DENIED = Group.DENIED, "the label kaishare.dev/inject: {value} is not allowed here: remove it"
    WRONG_SCHEDULER = Group.DENIED, "the pod's scheduler is {scheduler}: set spec.schedulerName to {allowed}"
    WRONG_QUEUE = Group.DENIED, "the pod's queue is {queue}: set the label kai.scheduler/queue to {allowed}"

    LABEL_INVALID = Group.LABELS, "{problem}"

    PATCH_UNSAFE = Group.FAILED, "the patch failed its own check: {problem}"
    POLICY_UNKNOWN = Group.FAILED, "the namespace's policy cannot be read now: {problem}"
    INTERNAL_ERROR = Group.FAILED, "an internal error; the log has its traceback"

    KAI_REFUSES = Group.WARNING, "KAI will refuse this pod: {message}"
    COUNTED_DIFFERENTLY = Group.WARNING, "{key} {value}: KAI {difference}"
    ABOVE_CAP = Group.WARNING_OR_DENIAL, "the pod requests {amount}: request no more than {cap}"
    CAP_UNIT = (
        Group.WARNING_OR_DENIAL,
        "the pod requests {amount}, which cannot be compared with this namespace's cap: use {key}",
    )
    RESERVED_KEY = Group.WARNING_OR_DENIAL, "{key} is reserved for {owner}: remove it"
    FRAMEWORK_DEFAULT = Group.WARNING, "{framework} takes {part} of {base}: set {sets}{unless}"
    FRAMEWORK_MEMORY = Group.WARNING, "{framework} takes {part} of {base}: set {sets}{unless}"  # noqa: PIE796
    FRAMEWORK_ABOVE_SHARE = (
        Group.WARNING,
        "{framework} has {option} {part}, above its share: set {value}{unless}",
    )
    FRAMEWORK_EITHER = (
        Group.WARNING,
        "{framework} takes {part} of its hard limit, else of {base}: set {sets} then",
    )
    FRAMEWORK_UNSEEN = Group.WARNING, "the pod does not show the memory option of {framework}: set {sets}"
    FRAMEWORK_PROCESSES = (
        Group.WARNING,
        "container {container} may run several GPU processes: limit each, to stay within {share} together",
    )
    FRAMEWORK_SET = Group.WARNING, "container {container} gets {options} by namespace {namespace}"
    RANKS_MAY_MEET = (
        Group.WARNING,
        "{evidence}: KAI may put ranks on one GPU, which is slow or fails; use whole GPUs",
    )
    WILL_BE_REFUSED = Group.WARNING, "mode enforce will refuse these pods: {why}"
    OWNER_QUEUE = (
        Group.WARNING,
        "KAI uses the {owner}'s queue label {queue}, not the pods' {pods}: remove it or make both equal",
    )
    NO_QUEUE_LABEL = Group.WARNING, "{label} has no effect until the namespace has kai.scheduler/queue"
    SELECTOR_LEFT = Group.WARNING, "the annotation {key} stays without its label: remove it, too"
    SIZES_OVERLAP = (
        Group.WARNING,
        "sizes {first} and {second} have {what}; a pod that both select gets no share",
    )
    MISSPELT_PREFIX = Group.WARNING, "the {key} has no effect; the nearest prefix is {prefix}"
    KEY_WITHOUT_EFFECT = Group.WARNING, "the {kind} {key} has no effect here: {remedy}"
    RUN_AI_KEY = Group.WARNING, "KAI ignores {key} of Run:ai: {remedy}"
    QUEUE_UNKNOWN = Group.WARNING, "KAI has no queue {queue} for pods, which wait for it{nearest}"
    CLAIM_OF_QUEUE = (
        Group.WARNING,
        "a GPU claim needs the label kai.scheduler/queue, or KAI keeps the pod waiting: {claim}",
    )
    SHARE_BEYOND_CAP_UNIT = (
        Group.WARNING,
        "{label} and {cap} use different units, so the share cannot be compared with the cap",
    )
    UNKNOWN_VALUE = Group.WARNING, "{key} is {value}, which has no effect; allowed: {allowed}"


_WARNING_PREFIX = "kaishare: "


class Finding(Struct, frozen=True):
    """A reason with the details of one case.

    Values on the hot path are msgspec Structs, because creating a frozen dataclass takes ten times as long.
    """

    reason: Reason
    details: dict[str, Any] = {}

    @property
    def sentence(self) -> str:
        """The reason's sentence with its details inserted, as one printable line."""
        if not self.details:
            return self.reason.text
        return self.reason.text.format_map(
            {key: printable(str(value), _LONGEST_DETAIL) for key, value in self.details.items()}
        )

    @property
    def warning(self) -> str:
        """The sentence as an admission warning of at most `LONGEST_WARNING` characters.

        Lists of names lose names, then details marked as `Clipped` lose their ends, then the sentence is cut.
        """
        warning = _WARNING_PREFIX + self.sentence
        if len(warning) > LONGEST_WARNING:
            excess = len(warning) - LONGEST_WARNING
            warning = _WARNING_PREFIX + Finding(self.reason, _fitted(self.details, excess)).sentence
        return shorten(warning, LONGEST_WARNING)


def _fitted(details: dict[str, Any], excess: int) -> dict[str, Any]:
    """Shorten details by a number of characters, as far as their types allow."""
    fitted = dict(details)
    for key, value in details.items():
        if isinstance(value, NameList):
            fitted[key] = value.within(len(str(value)) - excess)
    clipped = {key: value for key, value in details.items() if isinstance(value, Clipped)}
    limit = max(map(len, clipped.values()), default=0)
    while limit > 1 and sum(max(0, len(value) - limit) for value in clipped.values()) < excess:
        limit -= 1
    return fitted | {key: value.within(limit) for key, value in clipped.items()}
