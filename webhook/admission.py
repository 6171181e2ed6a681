"""AdmissionReview (admission.k8s.io/v1): bytes in, the few fields that decide; an answer, bytes out.

The object itself stays raw: a typed round trip would drop every field the API grew since.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson
from msgspec import Raw, Struct

from kai.pod import explain_shape
from webhook.patch import Operation
from webhook.reasons import quoted

API_VERSION: Final = "admission.k8s.io/v1"


class BadReview(ValueError):
    """The body is no AdmissionReview that could be answered; the message says what is wrong with it."""


class GroupKind(Struct):
    """`request.kind`."""

    group: str | None = None
    kind: str | None = None


class UserInfo(Struct):
    """`request.userInfo`."""

    username: str | None = None


class Review(Struct):
    """`request` of an AdmissionReview: what the API server asks, under its names in JSON."""

    uid: str
    operation: str
    kind: GroupKind | None = None
    subResource: str | None = None
    namespace: str | None = None
    name: str | None = None
    userInfo: UserInfo | None = None
    dryRun: bool | None = None
    object: Raw = Raw(b"null")

    @property
    def is_pod_creation(self) -> bool:
        """Whether this is the creation of a pod, not of a subresource of one."""
        kind = self.kind
        is_pod = kind is not None and kind.kind == "Pod" and not kind.group
        return is_pod and self.operation == "CREATE" and not self.subResource

    @property
    def username(self) -> str:
        """Who asks."""
        return (self.userInfo.username if self.userInfo else None) or ""


class _Envelope(Struct):
    request: Review | None = None
    apiVersion: str | None = None
    kind: str | None = None


_decoder = msgspec.json.Decoder(_Envelope)


def decode(body: bytes) -> Review:
    """Read a review.

    Raises:
        BadReview: not JSON, not an AdmissionReview of v1, or without what an answer needs.
    """
    try:
        envelope = _decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BadReview(f"no AdmissionReview: {explain_shape(error, 'the body')}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReview(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadReview("the body is nested too deep") from None
    if envelope.kind != "AdmissionReview" or envelope.apiVersion != API_VERSION:
        found = f"kind {quoted(envelope.kind)} of apiVersion {quoted(envelope.apiVersion)}"
        raise BadReview(f"{found} is not AdmissionReview of {API_VERSION}")
    if envelope.request is None:
        raise BadReview("no AdmissionReview: request is missing")
    if not envelope.request.uid or not envelope.request.operation:
        raise BadReview("no AdmissionReview: request.uid and request.operation must not be empty")
    return envelope.request


def allow(
    uid: str,
    *,
    patch: Sequence[Operation] = (),
    warnings: Sequence[str] = (),
    audit: Mapping[str, str] | None = None,
) -> bytes:
    """Encode an answer that admits the object, with a patch or without one.

    An empty patch leaves out both `patch` and `patchType`: one without the other is an invalid answer.
    """
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(patch)).decode()
    if warnings:
        response["warnings"] = warnings
    if audit:
        response["auditAnnotations"] = audit
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
