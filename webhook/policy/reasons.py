"""What can happen to a pod, and why: one list for metrics, logs, audit annotations, warnings and docs."""

from enum import Enum, StrEnum
from typing import Any

from msgspec import Struct

from service.text import printable, shorten

LONGEST_WARNING = 120
"""Characters of one warning. The API server drops a warning with a newline and cuts long ones
(verified on Kubernetes 1.36.3: over 4096 characters in all, each is cut to 256)."""

_LONGEST_DETAIL = 1000
"""Characters of one detail: the longest of ours names every label."""


class Action(StrEnum):
    """What was done; the `action` label of `kaishare_webhook_requests_total`."""

    INJECTED = "injected"
    """A patch was sent."""
    OBSERVED = "observed"
    """A patch would have been sent, were the namespace not in mode observe."""
    UNCHANGED = "unchanged"
    """The pod is managed and already says everything."""
    SKIPPED = "skipped"
    """The pod is none of ours and was left alone."""
    ADMITTED = "admitted"
    """A validating webhook had nothing against it."""
    DENIED = "denied"
    """A validating webhook refused it."""
    ERROR = "error"
    """Something failed on our side; the mutating webhook admitted the pod unchanged."""


class Group(StrEnum):
    """What a reason is about: a heading of docs/policy.md."""

    LEFT_ALONE = "The pod is left alone"
    SHARE = "The pod is managed: what becomes of its share"
    WARNING = "Warnings"
    WARNING_OR_DENIAL = "Warnings that are denials under enforce"
    DENIED = "Denials under enforce"
    ADMITTED = "Admitted by a validating webhook"
    LABELS = "A namespace's labels are refused"
    FAILED = "Something failed on kaishare's side"


class Reason(Enum):
    """Why. `code` is the wire form; `text` is a sentence with the places of its details in braces."""

    group: Group
    code: str
    text: str

    def __new__(cls, group: Group, code: str, text: str) -> "Reason":
        """Make a member whose value is its code."""
        member = object.__new__(cls)
        member._value_ = code
        member.group = group
        member.code = code
        member.text = text
        return member

    NOT_MANAGED = Group.LEFT_ALONE, "not-managed", "the namespace has no label kai.scheduler/queue"
    NAMESPACE_EXCLUDED = Group.LEFT_ALONE, "namespace-excluded", "namespace {namespace} is excluded"
    MODE_OFF = Group.LEFT_ALONE, "mode-off", "kaishare.dev/mode is off in this namespace"
    MIRROR_POD = Group.LEFT_ALONE, "mirror-pod", "a static pod's mirror never meets a scheduler"
    NODE_NAME_SET = Group.LEFT_ALONE, "node-name-set", "spec.nodeName is set: the pod never meets a scheduler"
    DAEMONSET = Group.LEFT_ALONE, "daemonset", "DaemonSet pods belong to their node, not to a queue"
    OPTED_OUT = Group.LEFT_ALONE, "opted-out", 'the pod label kaishare.dev/inject is "false"'
    OTHER_SCHEDULER = Group.LEFT_ALONE, "other-scheduler", "the pod chose scheduler {scheduler}"
    POLICY_INVALID = Group.LEFT_ALONE, "policy-invalid", "the namespace's policy is invalid: {problem}"
    MALFORMED_POD = Group.LEFT_ALONE, "malformed-pod", "{problem}"
    OUT_OF_SCOPE = Group.LEFT_ALONE, "out-of-scope", "only the creation of pods is ours"

    WHOLE_GPU_CONVERTED = (
        Group.SHARE,
        "whole-gpu-converted",
        "the whole GPU of container {container} becomes {share}",
    )
    SHARE_INJECTED = Group.SHARE, "share-injected", "container {container} gets {share}"
    GPU_REMOVED_AGAIN = (
        Group.SHARE,
        "gpu-removed-again",
        "nvidia.com/gpu came back beside {share} (a LimitRange gives it to every pod), and is removed again",
    )
    OWN_SHARE = Group.SHARE, "own-share", "the pod writes its own share; it is kept as written"
    NO_DEFAULT_SHARE = Group.SHARE, "no-default-share", "the namespace has no default share"
    SHARES_OFF = Group.SHARE, "shares-off", "the webhook runs with --inject-shares=false"
    SCHEDULER_NOT_KAI = (
        Group.SHARE,
        "scheduler-not-kai",
        "the namespace's scheduler is default-scheduler: it knows no shares",
    )
    NO_GPU = Group.SHARE, "no-gpu", "the pod asks for no GPU, and kaishare.dev/share-for is {share_for}"
    WHOLE_GPU_KEPT = Group.SHARE, "whole-gpu-kept", 'the pod annotation kaishare.dev/whole-gpu is "true"'
    SEVERAL_GPUS = (
        Group.SHARE,
        "several-gpus",
        "the pod asks for {count} GPUs in {containers}; only one in one container becomes a share",
    )
    MANY_GPU_CONTAINERS = (
        Group.SHARE,
        "many-gpu-containers",
        "more than {most} containers of the pod name nvidia.com/gpu",
    )
    INIT_CONTAINER_GPU = Group.SHARE, "init-container-gpu", "init container {container} asks for a GPU"
    MIG = Group.SHARE, "mig", "the pod uses MIG devices"
    RESOURCE_CLAIMS = Group.SHARE, "resource-claims", "the pod uses dynamic resource claims"
    OTHER_GPU = Group.SHARE, "other-gpu-resource", "the pod asks for {resource}: some other way to get a GPU"
    UNCLEAR_QUANTITY = (
        Group.SHARE,
        "unclear-quantity",
        "container {container} asks for {quantity} nvidia.com/gpu",
    )
    CONTAINER_CONFLICT = (
        Group.SHARE,
        "container-conflict",
        "the pod's gpu-fraction-container-name is {named}, the share would be {container}'s",
    )
    CONTAINER_NOT_FIRST = (
        Group.SHARE,
        "container-not-first",
        "no share: container {container} is not the pod's first, which KAI before v0.9.12 needs",
    )
    NAME_UNSUPPORTED = Group.SHARE, "name-unsupported", "no share: KAI cannot give one to {what}"

    VERIFIED = Group.ADMITTED, "verified", "the pod is as the namespace's policy asks"
    NOT_ENFORCED = Group.ADMITTED, "not-enforced", "the namespace's kaishare.dev/mode is not enforce"
    LABELS_VALID = Group.ADMITTED, "labels-valid", "every label of ours has an allowed value"
    LABELS_KEPT = Group.ADMITTED, "labels-kept", "the update leaves our labels as they were"

    NODE_NAME_DENIED = (
        Group.DENIED,
        "node-name-denied",
        "spec.nodeName is set, and only a kubelet may do that here: remove it and let KAI place the pod",
    )
    MIRROR_DENIED = (
        Group.DENIED,
        "mirror-denied",
        "only a kubelet may make a mirror pod: remove the annotation kubernetes.io/config.mirror",
    )
    DAEMONSET_DENIED = (
        Group.DENIED,
        "daemonset-denied",
        "the owner reference to a DaemonSet is for the daemon-set controller alone: remove it",
    )
    DAEMONSET_GPU_DENIED = (
        Group.DENIED,
        "daemonset-gpu-denied",
        "a DaemonSet's pod may have nothing to do with GPUs or KAI here, and this one {what}: remove that",
    )
    OPT_OUT_DENIED = (
        Group.DENIED,
        "opt-out-denied",
        "the label kaishare.dev/inject: {value} is not allowed here: remove it",
    )
    WRONG_SCHEDULER = (
        Group.DENIED,
        "wrong-scheduler",
        "the pod's scheduler is {scheduler}: set spec.schedulerName to {allowed}",
    )
    WRONG_QUEUE = (
        Group.DENIED,
        "wrong-queue",
        "the pod's queue is {queue}: set the label kai.scheduler/queue to {allowed}",
    )

    LABEL_INVALID = Group.LABELS, "label-invalid", "{problem}"

    PATCH_UNSAFE = Group.FAILED, "patch-unsafe", "the patch did not pass its own check: {problem}"
    POLICY_UNKNOWN = (
        Group.FAILED,
        "policy-unknown",
        "the namespace's policy cannot be read now: {problem}",
    )
    INTERNAL_ERROR = Group.FAILED, "internal-error", "an internal error; the log has its traceback"

    KAI_REFUSES = Group.WARNING, "kai-refuses", "KAI will refuse this pod: {message}"
    COUNTED_DIFFERENTLY = Group.WARNING, "counted-differently", "{key} {value}: KAI {difference}"
    ABOVE_CAP = Group.WARNING_OR_DENIAL, "above-cap", "the pod asks for {asked}: ask for no more than {cap}"
    CAP_UNIT = (
        Group.WARNING_OR_DENIAL,
        "cap-unit",
        "the pod asks for {asked}, which this namespace's cap cannot be compared with: use {key}",
    )
    CLUSTER_SCOPED_OWNER = (
        Group.WARNING_OR_DENIAL,
        "cluster-scoped-owner",
        "the owner {owner} is not namespaced, and KAI follows its queue label: remove the owner reference",
    )
    RESERVED_KEY = Group.WARNING_OR_DENIAL, "reserved-key", "{key} may only be written by {owner}: remove it"
    FRAMEWORK_DEFAULT = (
        Group.WARNING,
        "framework-default",
        "{framework} takes {takes} of the GPU: set {option} to {share} or less",
    )
    FRAMEWORK_ABOVE_SHARE = (
        Group.WARNING,
        "framework-above-share",
        "{framework} has {option} {value}, above its share: set {share} or less",
    )
    FRAMEWORK_MEMORY = (
        Group.WARNING,
        "framework-memory",
        "{framework} takes {takes} of the GPU: set {option} to what fits in {share}",
    )
    OWNER_QUEUE = (
        Group.WARNING,
        "owner-queue",
        "the {owner}'s own queue label {queue} beats the pods' {pods}: remove it or make it the same",
    )
    NO_QUEUE_LABEL = (
        Group.WARNING,
        "no-queue-label",
        "{label} has no effect until the namespace has kai.scheduler/queue",
    )
    SHARE_BEYOND_CAP_UNIT = (
        Group.WARNING,
        "share-beyond-cap-unit",
        "{label} and {cap} are in different units: pods that get the share cannot be compared with the cap",
    )
    UNKNOWN_VALUE = (
        Group.WARNING,
        "unknown-value",
        "{key} is {value}, which means nothing; allowed: {allowed}",
    )


class Finding(Struct, frozen=True):
    """A reason with its details.

    A msgspec Struct like all values on the hot path: a frozen dataclass takes ten times as long to make.
    """

    reason: Reason
    details: dict[str, Any] = {}

    @property
    def sentence(self) -> str:
        """The reason's sentence with its details in place, on one line, however odd they are."""
        if not self.details:
            return self.reason.text
        return self.reason.text.format_map(
            {key: printable(str(value), _LONGEST_DETAIL) for key, value in self.details.items()}
        )

    @property
    def warning(self) -> str:
        """The sentence as a warning to the user: at most 120 characters."""
        return shorten(f"kaishare: {self.sentence}", LONGEST_WARNING)
