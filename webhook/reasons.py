"""What can happen to a pod, and why: one list for metrics, logs, audit annotations, warnings and docs."""

from enum import Enum, StrEnum
from typing import Any

from msgspec import Struct

LONGEST_WARNING = 120
"""Characters of one warning. The API server drops a warning with a newline and cuts long ones
(verified on Kubernetes 1.36.3: over 4096 characters in all, each is cut to 256)."""

_LONGEST_VALUE = 48


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


class Reason(Enum):
    """Why. `code` is the wire form; `text` is a sentence with the places of its details in braces."""

    code: str
    text: str

    def __new__(cls, code: str, text: str) -> "Reason":
        """Make a member whose value is its code."""
        member = object.__new__(cls)
        member._value_ = code
        member.code = code
        member.text = text
        return member

    # The pod is left alone.
    NOT_MANAGED = "not-managed", "the namespace has no label kai.scheduler/queue"
    NAMESPACE_EXCLUDED = "namespace-excluded", "namespace {namespace} is excluded"
    MODE_OFF = "mode-off", "kaishare.dev/mode is off in this namespace"
    MIRROR_POD = "mirror-pod", "a static pod's mirror never meets a scheduler"
    NODE_NAME_SET = "node-name-set", "spec.nodeName is set: the pod never meets a scheduler"
    DAEMONSET = "daemonset", "DaemonSet pods belong to their node, not to a queue"
    OPTED_OUT = "opted-out", 'the pod label kaishare.dev/inject is "false"'
    OTHER_SCHEDULER = "other-scheduler", "the pod chose scheduler {scheduler}"
    POLICY_INVALID = "policy-invalid", "the namespace's policy is invalid: {problem}"
    MALFORMED_POD = "malformed-pod", "{problem}"
    OUT_OF_SCOPE = "out-of-scope", "only the creation of pods is ours"

    # The pod is managed; this is about its share.
    WHOLE_GPU_CONVERTED = "whole-gpu-converted", "the whole GPU of container {container} becomes {share}"
    SHARE_INJECTED = "share-injected", "container {container} gets {share}"
    OWN_SHARE = "own-share", "the pod writes its own share; it is kept as written"
    NO_DEFAULT_SHARE = "no-default-share", "the namespace has no default share"
    SHARES_OFF = "shares-off", "the webhook runs with --inject-shares=false"
    SCHEDULER_NOT_KAI = (
        "scheduler-not-kai",
        "the namespace's scheduler is default-scheduler: it knows no shares",
    )
    NO_GPU = "no-gpu", "the pod asks for no GPU, and kaishare.dev/share-for is {share_for}"
    WHOLE_GPU_KEPT = "whole-gpu-kept", 'the pod annotation kaishare.dev/whole-gpu is "true"'
    SEVERAL_GPUS = "several-gpus", "the pod asks for {count} GPUs in {containers}, not for one in one"
    INIT_CONTAINER_GPU = "init-container-gpu", "init container {container} asks for a GPU"
    MIG = "mig", "the pod uses MIG devices"
    RESOURCE_CLAIMS = "resource-claims", "the pod uses dynamic resource claims"
    OTHER_GPU = "other-gpu-resource", "the pod asks for {resource}: some other way to get a GPU"
    UNCLEAR_QUANTITY = "unclear-quantity", "container {container} asks for {quantity} nvidia.com/gpu"
    CONTAINER_CONFLICT = (
        "container-conflict",
        "the pod's gpu-fraction-container-name is {named}, the share would be {container}'s",
    )
    CONTAINER_NOT_FIRST = (
        "container-not-first",
        "no share: container {container} is not the pod's first, which KAI before v0.9.12 needs",
    )
    NAME_UNSUPPORTED = "name-unsupported", "no share: KAI cannot give one to {what}"

    # A validating webhook admits.
    VERIFIED = "verified", "the pod is as the namespace's policy asks"
    NOT_ENFORCED = "not-enforced", "the namespace's kaishare.dev/mode is not enforce"
    LABELS_VALID = "labels-valid", "every label of ours has an allowed value"
    LABELS_KEPT = "labels-kept", "the update leaves our labels as they were"

    # Under enforce a pod is denied. Each sentence says what to change.
    NODE_NAME_DENIED = (
        "node-name-denied",
        "spec.nodeName is set, and only a kubelet may do that here: remove it and let KAI place the pod",
    )
    MIRROR_DENIED = (
        "mirror-denied",
        "only a kubelet may make a mirror pod: remove the annotation kubernetes.io/config.mirror",
    )
    DAEMONSET_DENIED = (
        "daemonset-denied",
        "the owner reference to a DaemonSet is for the daemon-set controller alone: remove it",
    )
    OPT_OUT_DENIED = "opt-out-denied", "the label kaishare.dev/inject: {value} is not allowed here: remove it"
    WRONG_SCHEDULER = (
        "wrong-scheduler",
        "the pod's scheduler is {scheduler}: set spec.schedulerName to {allowed}",
    )
    WRONG_QUEUE = "wrong-queue", "the pod's queue is {queue}: set the label kai.scheduler/queue to {allowed}"

    # A namespace's labels are refused.
    LABEL_INVALID = "label-invalid", "{problem}"

    # Something failed on our side.
    PATCH_UNSAFE = "patch-unsafe", "the patch did not pass its own check: {problem}"
    INTERNAL_ERROR = "internal-error", "an internal error; the log has its traceback"

    # Warnings to the user.
    KAI_REFUSES = "kai-refuses", "KAI will refuse this pod: {message}"
    COUNTED_DIFFERENTLY = "counted-differently", "{key} {value}: KAI {difference}"
    ABOVE_CAP = "above-cap", "the pod asks for {asked}: ask for no more than {cap}"
    CAP_UNIT = "cap-unit", "the pod asks for {asked}, this namespace's cap is in the other unit: use {key}"
    RESERVED_KEY = "reserved-key", "{key} may only be written by {owner}: remove it"
    FRAMEWORK_DEFAULT = (
        "framework-default",
        "{framework} takes {takes} of the GPU: set {option} to {share} or less",
    )
    FRAMEWORK_ABOVE_SHARE = (
        "framework-above-share",
        "{framework} has {option} {value}, above its share: set {share} or less",
    )
    FRAMEWORK_MEMORY = (
        "framework-memory",
        "{framework} takes {takes} of the GPU: set {option} to what fits in {share}",
    )
    OWNER_QUEUE = (
        "owner-queue",
        "the {owner}'s own queue label {queue} beats the pods' {pods}: remove it or make it the same",
    )
    NO_QUEUE_LABEL = "no-queue-label", "{label} has no effect until the namespace has kai.scheduler/queue"
    SHARE_BEYOND_CAP_UNIT = (
        "share-beyond-cap-unit",
        "{label} and {cap} are in different units: pods that get the share cannot be compared with the cap",
    )
    UNKNOWN_VALUE = "unknown-value", "{key} is {value}, which means nothing; allowed: {allowed}"


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
        return self.reason.text.format_map({key: clean(value) for key, value in self.details.items()})

    @property
    def warning(self) -> str:
        """The sentence as a warning to the user: at most 120 characters."""
        return clip(f"kaishare: {self.sentence}", LONGEST_WARNING)


def clean(value: object) -> str:
    """Show a value from outside on one line: control characters out, long text cut."""
    text = str(value)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    return text


def clip(text: str, longest: int = _LONGEST_VALUE) -> str:
    """Cut a text that is too long, and show that it was cut."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def quoted(value: object) -> str:
    """Show a value a person typed: cleaned, cut, and in quotes."""
    return f'"{clip(clean(value))}"'
