"""Asks the API server whether the caller has a right (SelfSubjectAccessReview)."""

from typing import Final

import msgspec
from msgspec import Struct

from kube.client import KubeClient
from kube.errors import decode_answer

_PATH: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class AccessStatus(Struct):
    """The API server's answer about one right."""

    allowed: bool = False
    denied: bool = False
    reason: str = ""
    error: str = msgspec.field(name="evaluationError", default="")


class _Review(Struct):
    status: AccessStatus


_review = msgspec.json.Decoder(_Review)


async def review_right(
    client: KubeClient,
    *,
    verb: str,
    resource: str,
    group: str = "",
    subresource: str = "",
    namespace: str = "",
) -> AccessStatus:
    """Ask whether the caller has one right in a namespace, or in every one if the namespace is empty.

    Raises:
        kube.errors.ApiError, kube.errors.Unreachable, kube.access.AccessError: there is no answer.
    """
    attributes = {"verb": verb, "resource": resource, "group": group}
    if subresource:
        attributes["subresource"] = subresource
    if namespace:
        attributes["namespace"] = namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.request("POST", _PATH, body=msgspec.json.encode(body))
    return decode_answer(_review, answer, f"POST {_PATH}", expected="a review").status
