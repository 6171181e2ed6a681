"""Finds out from an API server's message what refused a pod. Pure.

The messages are recorded from Kubernetes 1.30.14 and 1.36.3, which do not differ in the words that are read
here. The text of a webhook or a policy follows these words, and a pod's name before them is quoted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from webhook.explain.decision.server_answer import RBAC


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An answer without a pod."""

    refused_by: str = ""
    """The author; empty if it is not known."""
    problem: str = ""
    """Why this is no answer about the pod; empty for a refusal."""
    is_name_taken: bool = False
    """Whether a pod of that name exists; all admission has passed."""


_NAME_TAKEN: Final = "AlreadyExists"
_INTERNAL: Final = "Internal error occurred: "
_NO_RIGHT: Final = 'pods is forbidden: User "'
_FORBIDDEN = re.compile(r'pods "(?:[^"\\]|\\.)*" is forbidden: ')
_MISSING = re.compile(r'namespaces "([^"]{1,300})" not found$')
_NO_DRY_RUN = re.compile(r'admission webhook "([^"]{1,300})" does not support dry run')
_NO_CALL: Final = "failed calling webhook "
_SERVER: Final = "the API server"
_LIMIT_RANGE: Final = "a LimitRange"
_RATIO: Final = "max limit to request ratio per "
_OF_THE_SERVER: Final = frozenset({400, 422})
_NOT_OF_THE_POD: Final = frozenset({401, 404, 405, 408, 409, 415, 429, 502, 503, 504})

_ROWS: Final[Sequence[tuple[re.Pattern[str], str]]] = (
    # apiserver/pkg/admission/plugin/webhook/errors/statuserror.go
    (re.compile(r'admission webhook "([^"]{1,300})" denied the request'), "webhook {}"),
    # apiserver/pkg/admission/plugin/webhook/validating/dispatcher.go
    (re.compile(r'failed calling webhook "([^"]{1,300})": '), "webhook {}"),
    # apiserver/pkg/admission/plugin/policy/validating/dispatcher.go
    (
        re.compile(
            r"ValidatingAdmissionPolicy '([^']{1,300})' (?:with binding '[^']{1,300}' )?denied request: "
        ),
        "ValidatingAdmissionPolicy {}",
    ),
    # apiserver/pkg/admission/plugin/policy/mutating/dispatcher.go
    (
        re.compile(r"policy '([^']{1,300})' (?:with binding '[^']{1,300}' )?denied request: "),
        "MutatingAdmissionPolicy {}",
    ),
    # apiserver/pkg/admission/plugin/resourcequota/controller.go
    (
        re.compile(r"(?:exceeded quota|failed quota|status unknown for quota): ([-.a-z0-9]{1,253})"),
        "quota {}",
    ),
    (re.compile(r"insufficient quota to (?:consume|match these scopes)"), "a quota"),
    # pod-security-admission/admission/admission.go
    (re.compile(r'violates PodSecurity "([a-z]{1,30}):'), "Pod Security {}"),
    # plugin/pkg/admission/limitranger/admission.go
    (re.compile(r"\[?m(?:ax|in)imum [^ ]{1,320} usage per (?:Pod|Container) is "), _LIMIT_RANGE),
    # plugin/pkg/admission/priority/admission.go
    (
        re.compile(r"(?:no PriorityClass with name |the integer value of priority )"),
        "admission plugin Priority",
    ),
    # plugin/pkg/admission/runtimeclass/admission.go
    (re.compile(r"pod rejected: RuntimeClass "), "admission plugin RuntimeClass"),
    # plugin/pkg/admission/serviceaccount/admission.go
    (re.compile(r"error looking up service account "), "admission plugin ServiceAccount"),
    # plugin/pkg/admission/podnodeselector/admission.go
    (
        re.compile(r"pod node label selector conflicts with its namespace node label selector"),
        "admission plugin PodNodeSelector",
    ),
    # plugin/pkg/admission/gc/gc_admission.go
    (
        re.compile(r"cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set"),
        "admission plugin OwnerReferencesPermissionEnforcement",
    ),
    # apiserver/pkg/admission/plugin/namespace/lifecycle/admission.go
    (
        re.compile(
            r"unable to create new content in namespace ([-a-z0-9]{1,63}) because it is being terminated"
        ),
        "namespace {}, which is being deleted",
    ),
)
"""Forms of messages after their prefix, each with the author; braces stand for the first group of the form.

The comment above a form names the file of Kubernetes that writes the message, without `staging/src/k8s.io`.
"""


def read_refusal(status: int, reason: str, message: str, namespace: str) -> ErrorAnswer:
    """Read an answer that is an error.

    Args:
        status: HTTP's status. A webhook chooses the status of its denials.
        reason: reason of the Status object.
        message: its message.
        namespace: the namespace of the pod, for sentences.
    """
    if message.startswith(_NO_RIGHT):
        return ErrorAnswer(RBAC, f"you may not create pods in namespace {namespace}")
    match = _NO_DRY_RUN.match(message)
    if match:
        problem = f"webhook {match[1]} does not support dry runs, so no pod can be tried"
        return ErrorAnswer(f"webhook {match[1]}", problem)
    text = message.removeprefix(_INTERNAL)
    prefix = _FORBIDDEN.match(text)
    text = text[prefix.end() :] if prefix else text
    for form, refused_by in _ROWS:
        match = form.match(text)
        if match:
            return ErrorAnswer(refused_by.format(*match.groups()))
    if text.partition(" ")[2].startswith(_RATIO):  # after the resource's name (limitranger/admission.go)
        return ErrorAnswer(_LIMIT_RANGE)
    if status == 409 and reason == _NAME_TAKEN:
        return ErrorAnswer(_SERVER, f"the API server answered {status} {reason}", is_name_taken=True)
    if _MISSING.match(message):
        return ErrorAnswer(problem=f"namespace {namespace} does not exist in this cluster")
    if status in _NOT_OF_THE_POD or status < 400:
        return ErrorAnswer(problem=f"the API server answered {status} {reason}: {message}")
    return ErrorAnswer(_SERVER if status in _OF_THE_SERVER else "")


def is_unanswered_webhook(message: str) -> bool:
    """Whether a webhook with failurePolicy Fail did not answer."""
    return message.removeprefix(_INTERNAL).startswith(_NO_CALL)
