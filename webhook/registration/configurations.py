"""Builds kaishare's two webhook configurations as plain objects, and compares names by call order. Pure.

Selectors and matchConditions exclude exactly the objects that `decide` and `verify` would skip. The API
server then makes no call for them, and they do not depend on a running webhook. No matchCondition uses
`namespaceObject`: the API server accepts such a condition and then refuses every pod that the selectors match
(verified on Kubernetes 1.36.3).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from kai import keys
from kai.cel import cel_list, is_of_kai, names_gpu
from kai.kaishare_keys import EXCLUDED_NAMESPACES, INJECT, MODE
from kai.key_classes import RESERVED_APPS
from kube.metadata import NAME_LABEL
from webhook.policy.labels import Mode
from webhook.policy.verify import DAEMON_SET_CONTROLLERS, KUBELET

CONFIGURATION_NAME: Final = "kai-00-kaishare"
"""Name of both configurations, chosen for its place in the call order.

The API server calls mutating webhooks in bytewise order of their configurations' names. A webhook whose
matchCondition is false at its turn is not called later either (verified on Kubernetes 1.36.3). The name must
therefore sort before KAI's `mutating-kai-admission`, `kai-pod-mutation` and `kai-resource-isolator-mutating`.
It sorts after the usual sidecar injectors.
"""

MUTATE: Final = "pods.mutate.kaishare.dev"
VALIDATE_PODS: Final = "pods.validate.kaishare.dev"
VALIDATE_NAMESPACES: Final = "namespaces.validate.kaishare.dev"
WARN_WORKLOADS: Final = "workloads.warn.kaishare.dev"
PATHS: Final[Mapping[str, str]] = {
    MUTATE: "/mutate",
    VALIDATE_PODS: "/validate/pods",
    VALIDATE_NAMESPACES: "/validate/namespaces",
    WARN_WORKLOADS: "/warn/workloads",
}

TIMEOUT_SECONDS: Final = 5
"""timeoutSeconds of each webhook: the delay of a create request when the webhook does not answer.

The time covers two lost SYNs (repeated after 1 and 3 s) and the retries after a 503. Together with the 10 s
of KAI's webhook it stays within the usual time limits of clients. An answer normally takes a millisecond.
"""

_MIRROR: Final = f"has(object.metadata.annotations) && '{keys.MIRROR_POD}' in object.metadata.annotations"
_ON_NODE: Final = "has(object.spec.nodeName) && object.spec.nodeName != ''"
_MOST_KEYS: Final = 1000
"""Labels or annotations that a condition reads."""
_MOST_LISTED: Final = 100
"""Owner references or containers that a condition reads."""
_MOST_AMOUNTS: Final = 500
"""Limits and requests of a list of containers that a condition reads."""
_OF_DAEMON_SET: Final = (
    "has(object.metadata.ownerReferences)"
    f" && size(object.metadata.ownerReferences) <= {_MOST_LISTED}"
    " && object.metadata.ownerReferences.exists(owner,"
    " owner.kind == 'DaemonSet' && owner.apiVersion.startsWith('apps/'))"
)
_OF_KUBELET: Final = f"request.userInfo.username.startsWith('{KUBELET}')"
_BY_DAEMON_SETS: Final = f"request.userInfo.username in {cel_list(sorted(DAEMON_SET_CONTROLLERS))}"


_KAI_KEY: Final = is_of_kai("key", keys.VCLUSTER_PREFIX)
_KAI_APP: Final = (
    f"'{keys.APP_LABEL}' in object.metadata.labels"
    f" && object.metadata.labels['{keys.APP_LABEL}'] in {cel_list(RESERVED_APPS)}"
)
_POLICY_KEY: Final = (
    "key.contains('kaishare') || key.startsWith('kai.scheduler/') || key.startsWith('kai-scheduler/')"
    " || key.endsWith('/queue')"
)
"""CEL expression for: a label or annotation of a namespace belongs to a policy, or may be a misspelt one."""

NEVER_CHANGED: Final = (
    {"name": "no-mirror-pod", "expression": f"!({_MIRROR})"},
    {"name": "not-on-a-node", "expression": f"!({_ON_NODE})"},
    {"name": "not-of-a-daemon-set", "expression": f"!({_OF_DAEMON_SET})"},
)
"""The matchConditions that exclude pods which `decide` never changes."""


def _some_container(containers: str) -> str:
    """Return a CEL expression for: a container has a claim or a GPU, or there is too much to read."""
    kinds = ("limits", "requests")
    asks = " || ".join(
        f"has(c.resources.{kind}) && c.resources.{kind}.exists(name, {names_gpu('name')})" for kind in kinds
    )
    claims = "has(c.resources.claims) && size(c.resources.claims) > 0"
    amounts = " + ".join(f"(has(c.resources.{kind}) ? size(c.resources.{kind}) : 0)" for kind in kinds)
    listed = f"object.spec.{containers}"
    return (
        f"has({listed}) && (size({listed}) > {_MOST_LISTED}"
        f" || {listed}.map(c, has(c.resources) ? {amounts} : 0).sum() > {_MOST_AMOUNTS}"
        f" || {listed}.exists(c, has(c.resources) && ({claims} || {asks})))"
    )


def _some_key(keys_of: str, condition: str) -> str:
    """Return the CEL expression for: a key of a map satisfies the condition, or the map is large."""
    return f"(size({keys_of}) > {_MOST_KEYS} || {keys_of}.exists(key, {condition}))"


_OF_GPUS: Final = " || ".join(
    (
        (
            "has(object.spec.schedulerName)"
            f" && !(object.spec.schedulerName in ['', '{keys.DEFAULT_SCHEDULER}'])"
        ),
        "has(object.spec.resourceClaims) && size(object.spec.resourceClaims) > 0",
        f"has(object.metadata.labels) && ({_some_key('object.metadata.labels', _KAI_KEY)} || {_KAI_APP})",
        f"has(object.metadata.annotations) && {_some_key('object.metadata.annotations', _KAI_KEY)}",
        _some_container("containers"),
        _some_container("initContainers"),
    )
)
"""CEL expression for: the pod may use GPUs or KAI. `verify` makes the exact decision.

Every optional field is guarded by has(), because under failurePolicy Fail an expression that fails denies the
pod. It also holds for maps and lists above the limits: an expression over them takes the API server quadratic
time (on Kubernetes 1.36.3 26 s for 70,000 labels and 12 s for 8,000 containers), and the webhook linear time.
"""

NEVER_REFUSED: Final = (
    {"name": "not-a-kubelets-own", "expression": f"!({_OF_KUBELET} && ({_MIRROR} || {_ON_NODE}))"},
    {
        "name": "not-by-the-daemon-set-controller",
        "expression": f"!({_BY_DAEMON_SETS} && {_OF_DAEMON_SET}"
        f" && !({_MIRROR} || {_ON_NODE}) && !({_OF_GPUS}))",
    },
)
"""The matchConditions that exclude pods which `verify` always admits."""
HAS_POLICY: Final = (
    {
        "name": "has-policy-labels",
        "expression": "has(object.metadata.labels)"
        f" && {_some_key('object.metadata.labels', _POLICY_KEY)}"
        " || has(object.metadata.annotations)"
        f" && {_some_key('object.metadata.annotations', _POLICY_KEY)}",
    },
)
"""The matchCondition for namespaces with a policy, or with keys that somewhat look like a policy.

Only the new object matters, because a removed label or annotation cannot be invalid.
"""


NEW_TEMPLATE: Final = (
    {"name": "not-of-a-controller", "expression": "!has(object.metadata.ownerReferences)"},
    {
        "name": "new-or-another-template",
        "expression": "request.operation == 'CREATE' || !has(object.spec) || !has(oldObject.spec)"
        " || (has(object.spec.template) && has(oldObject.spec.template)"
        " ? object.spec.template != oldObject.spec.template : object.spec != oldObject.spec)",
    },
)
"""The matchConditions for workloads that a user creates, or whose pods a user changes.

Scaling a Deployment changes no template. Kinds with other templates are compared by their whole spec.
"""

WORKLOADS: Final[Mapping[str, Sequence[str]]] = {
    "apps": ["deployments", "statefulsets", "daemonsets"],
    "batch": ["jobs", "cronjobs"],
    "jobset.x-k8s.io": ["jobsets"],
    "kubeflow.org": [
        "jaxjobs", "mpijobs", "notebooks", "paddlejobs", "pytorchjobs", "tfjobs", "xgboostjobs",
    ],
    "leaderworkerset.x-k8s.io": ["leaderworkersets"],
    "ray.io": ["rayclusters", "rayjobs", "rayservices"],
    "serving.knative.dev": ["services"],
    "serving.kserve.io": ["inferenceservices"],
}  # fmt: skip
"""Resources of workloads by API group; rules for groups that are not served have no effect."""


def _without(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "NotIn", "values": list(values)}


NOT_OPTED_OUT: Final = {"matchExpressions": [_without(INJECT, "false")]}
"""The objectSelector for pods that do not opt out by their label."""


def mutating_configuration() -> dict[str, Any]:
    """Build the MutatingWebhookConfiguration, without the address of the webhook."""
    webhook = {
        **_webhook(MUTATE),
        "failurePolicy": "Ignore",  # without the webhook, pods are admitted unchanged
        "reinvocationPolicy": "IfNeeded",  # another webhook may add a container with a GPU
        "namespaceSelector": namespaces_without([Mode.OFF], EXCLUDED_NAMESPACES),
        "objectSelector": NOT_OPTED_OUT,
        "matchConditions": list(NEVER_CHANGED),
        "rules": [pod_rule()],
    }
    return _configuration("MutatingWebhookConfiguration", [webhook])


def validating_configuration() -> dict[str, Any]:
    """Build the ValidatingWebhookConfiguration, without the address of the webhook."""
    pods = {
        **_webhook(VALIDATE_PODS),
        "failurePolicy": "Fail",
        "namespaceSelector": namespaces_with(Mode.ENFORCE, EXCLUDED_NAMESPACES),
        "objectSelector": {},  # pods that opt out are included, because enforce denies them
        # The requester comes first, because enforce denies such pods of any other requester. Pods of a CNI or
        # a monitoring agent are excluded, so that they start while the webhook is down. A DaemonSet's pod
        # with a GPU or with KAI's keys is still validated.
        "matchConditions": list(NEVER_REFUSED),
        "rules": [pod_rule()],
    }
    namespaces = {
        **_webhook(VALIDATE_NAMESPACES),
        "failurePolicy": "Ignore",
        "namespaceSelector": {},
        "objectSelector": {},
        "matchConditions": list(HAS_POLICY),
        "rules": [namespace_rule()],
    }
    workloads = {
        **_webhook(WARN_WORKLOADS),
        "failurePolicy": "Ignore",
        "timeoutSeconds": 1,  # an apply never waits longer for a warning
        "namespaceSelector": namespaces_without([Mode.OBSERVE, Mode.OFF], EXCLUDED_NAMESPACES),
        "objectSelector": {},
        "matchConditions": list(NEW_TEMPLATE),
        "rules": [_rule(["CREATE", "UPDATE"], each, group=group) for group, each in WORKLOADS.items()],
    }
    return _configuration("ValidatingWebhookConfiguration", [pods, namespaces, workloads])


def sorts_behind(name: str, other: str) -> bool:
    """Whether the API server calls a mutating configuration named `name` after one named `other`."""
    return name.encode() > other.encode()


def _configuration(kind: str, webhooks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": CONFIGURATION_NAME},
        "webhooks": list(webhooks),
    }


def _webhook(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "matchPolicy": "Equivalent",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
    }


def namespaces_with(mode: Mode, excluded: Collection[str]) -> dict[str, Any]:
    """Return the namespaceSelector for managed namespaces whose label names a mode."""
    return _managed({"key": MODE, "operator": "In", "values": [mode.value]}, excluded)


def namespaces_without(modes: Iterable[Mode], excluded: Collection[str]) -> dict[str, Any]:
    """Return the namespaceSelector for managed namespaces whose label names none of the modes."""
    return _managed(_without(MODE, *(mode.value for mode in modes)), excluded)


def _managed(mode: Mapping[str, Any], excluded: Collection[str]) -> dict[str, Any]:
    expressions: list[Mapping[str, Any]] = [{"key": keys.QUEUE_LABEL, "operator": "Exists"}, mode]
    if excluded:
        expressions.append(_without(NAME_LABEL, *sorted(excluded)))
    return {"matchExpressions": expressions}


def pod_rule() -> dict[str, Any]:
    """Return the rule for creations of pods, of a webhook or of an admission policy."""
    return _rule(["CREATE"], ["pods"])


def namespace_rule() -> dict[str, Any]:
    """Return the rule for edits of namespaces, of a webhook or of an admission policy."""
    return _rule(["CREATE", "UPDATE"], ["namespaces"], scope="Cluster")


def _rule(
    operations: Sequence[str], resources: Sequence[str], *, group: str = "", scope: str = "Namespaced"
) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["*" if group else "v1"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": scope,
    }
