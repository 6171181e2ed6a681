"""Messages of API servers about pods that they do not create, and what refused the pods.

The messages are recorded from Kubernetes 1.30.14 and 1.36.3; both write the same, where nothing else is said.
"""

import pytest

from console.explain.server_dry_runs import read_refusal

DENIED = 'admission webhook "pods.validate.kaishare.dev" denied the request: the pod\'s queue is not set'
POLICY = "ValidatingAdmissionPolicy 'vap' with binding 'vap-bind' denied request: no \"pods\" here"
NO_CALL = (
    'Internal error occurred: failed calling webhook "pods.validate.kaishare.dev": failed to call webhook:'
    ' Post "https://127.0.0.1:37659/validate/pods?timeout=5s": dial tcp 127.0.0.1:37659: connect: connection refused'
)
OWNED = "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>"
PRIORITY = (
    "the integer value of priority (5) must not be provided in pod spec; priority admission controller computed"
    " 0 from the given PriorityClass name"
)


def forbidden(message: str) -> str:
    return f'pods "p" is forbidden: {message}'


@pytest.mark.parametrize(
    ("status", "message", "refused_by"),
    [
        (403, DENIED, "webhook pods.validate.kaishare.dev"),
        (503, DENIED, "webhook pods.validate.kaishare.dev"),  # webhooks choose the status
        (403, forbidden(DENIED), "webhook pods.validate.kaishare.dev"),  # newer than 1.36 (statuserror.go)
        (400, 'admission webhook "x.y" denied the request without explanation', "webhook x.y"),
        (500, NO_CALL, "webhook pods.validate.kaishare.dev"),
        (422, forbidden(POLICY), "ValidatingAdmissionPolicy vap"),
        (403, "policy 'map' with binding 'map-bind' denied request: JSON Patch: error in remove for path: '/spec/a': missing value", "MutatingAdmissionPolicy map"),  # 1.36
        (403, forbidden("exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=0"), "quota gpu-quota"),
        (403, forbidden("failed quota: compute: must specify requests.cpu for: main"), "quota compute"),
        (403, forbidden("status unknown for quota: unknown, resources: pods"), "quota unknown"),
        (403, forbidden("insufficient quota to consume: requests.nvidia.com/gpu"), "a quota"),  # resourcequota/controller.go
        (403, forbidden('violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)'), "Pod Security baseline"),
        (403, forbidden('violates PodSecurity "restricted:v1.30": runAsNonRoot != true'), "Pod Security restricted"),
        (403, forbidden("maximum nvidia.com/gpu usage per Container is 1, but limit is 2"), "a LimitRange"),
        (403, forbidden("[maximum cpu usage per Pod is 1, but limit is 2, maximum memory usage per Pod is 1]"), "a LimitRange"),
        (403, forbidden("minimum cpu usage per Container is 1. No request is specified"), "a LimitRange"),
        (403, forbidden("memory max limit to request ratio per Container is 1, but provided ratio is 2.000000"), "a LimitRange"),
        (403, forbidden("no PriorityClass with name nope was found"), "admission plugin Priority"),
        (403, forbidden(PRIORITY), "admission plugin Priority"),
        (403, forbidden('pod rejected: RuntimeClass "nope" not found'), "admission plugin RuntimeClass"),
        (403, forbidden('error looking up service account plain/nope: serviceaccount "nope" not found'), "admission plugin ServiceAccount"),
        (403, forbidden("pod node label selector conflicts with its namespace node label selector"), "admission plugin PodNodeSelector"),
        (403, forbidden(OWNED), "admission plugin OwnerReferencesPermissionEnforcement"),
        (403, forbidden("unable to create new content in namespace sel because it is being terminated"), "namespace sel, which is being deleted"),
        (422, 'Pod "p" is invalid: spec.containers[0].image: Required value', "the API server"),
        (400, 'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal string into Go struct field', "the API server"),
        # Not known, and said to be so.
        (403, forbidden("a plugin that this table does not know"), ""),
        (500, "Internal error occurred: add operation does not apply: doc is missing path /spec/a", ""),
        # Names and texts of others do not pass for words of the API server.
        (403, 'pods "p\\" is forbidden: exceeded quota: x" is forbidden: ' + POLICY, "ValidatingAdmissionPolicy vap"),
        (403, 'admission webhook "a.b" denied the request: exceeded quota: x, violates PodSecurity "y:z"', "webhook a.b"),
        (422, 'Pod "p" is invalid: metadata.labels: Invalid value: "exceeded quota: x"', "the API server"),
    ],
)  # fmt: skip
def test_refusals(status: int, message: str, refused_by: str) -> None:
    assert read_refusal(status, "Any", message, "team") == (refused_by, "")


@pytest.mark.parametrize(
    ("status", "reason", "message", "refused_by", "problem"),
    [
        (403, "Forbidden", 'pods is forbidden: User "system:serviceaccount:team-a:stranger" cannot create resource "pods" in API group "" in the namespace "team"', "RBAC", "you may not create pods in namespace team"),
        (404, "NotFound", 'namespaces "team" not found', "", "namespace team does not exist in this cluster"),
        (400, "BadRequest", 'admission webhook "x.y" does not support dry run', "webhook x.y", "webhook x.y does not support dry runs, so no pod can be tried"),
        (401, "Unauthorized", "Unauthorized", "", "the API server answered 401 Unauthorized: Unauthorized"),
        (429, "TooManyRequests", "later", "", "the API server answered 429 TooManyRequests: later"),
        (504, "Timeout", "Timeout: request did not complete", "", "the API server answered 504 Timeout: Timeout: request did not complete"),
        (409, "Conflict", "Operation cannot be fulfilled", "", "the API server answered 409 Conflict: Operation cannot be fulfilled"),
        (302, "Found", "", "", "the API server answered 302 Found: "),
    ],
)  # fmt: skip
def test_answers_that_say_nothing_about_the_pod(
    status: int, reason: str, message: str, refused_by: str, problem: str
) -> None:
    assert read_refusal(status, reason, message, "team") == (refused_by, problem)
