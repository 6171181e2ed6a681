"""Decodes an AdmissionReview (admission.k8s.io/v1) and encodes its answer.

The reviewed object stays raw bytes, because a typed round trip would drop fields that newer APIs add. An
object that is nested too deep for a decoder loses its managedFields, which any user who may create a pod can
write. With failurePolicy Ignore, a review without an answer is a pod without KAI. The API server stores no
deep values in other fields of pods and namespaces (seen on Kubernetes 1.36.3).
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson
from msgspec import Raw, Struct

from kai.pod import explain_shape
from service.json_depth import decode_deep, is_deep, without_managed_fields
from service.text import quoted
from webhook.policy.patch import Operation

API_VERSION: Final = "admission.k8s.io/v1"


class BadReview(ValueError):
    """The body is not an AdmissionReview that can be answered; the message says what is wrong with it."""


class GroupKind(Struct):
    """`request.kind`."""

    group: str | None = None
    kind: str | None = None


class UserInfo(Struct):
    """`request.userInfo`."""

    username: str | None = None


class Review(Struct):
    """The `request` of an AdmissionReview; attributes are named as in JSON."""

    uid: str
    operation: str
    kind: GroupKind | None = None
    subResource: str | None = None
    namespace: str | None = None
    name: str | None = None
    userInfo: UserInfo | None = None
    dryRun: bool | None = None
    object: Raw = Raw(b"null")
    oldObject: Raw = Raw(b"null")

    def is_about(self, kind: str, *operations: str) -> bool:
        """Whether the review is for one of the operations on a core kind, and not for a subresource."""
        is_kind = self.kind is not None and self.kind.kind == kind and not self.kind.group
        return is_kind and self.operation in operations and not self.subResource

    @property
    def username(self) -> str:
        """The authenticated user of the request; empty if there is none."""
        return (self.userInfo.username if self.userInfo else None) or ""


class _Envelope(Struct):
    request: Review | None = None
    apiVersion: str | None = None
    kind: str | None = None


_decoder = msgspec.json.Decoder(_Envelope)
_LONGEST_UID: Final = 253
"""Maximum length of a review's uid, which the answer repeats. API servers send 36 characters."""


def decode(body: bytes) -> Review:
    """Decode a review. Objects that are nested too deep for a decoder lack their managedFields.

    Raises:
        BadReview: the body is not JSON, is not an AdmissionReview of v1, is nested deeper than an API server
            stores it, or lacks uid or operation.
    """
    try:
        envelope = decode_deep(_decoder.decode, body)
    except msgspec.ValidationError as error:
        raise BadReview(f"no AdmissionReview: {explain_shape(error, 'the body')}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadReview(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise BadReview("the body is nested too deep") from None
    if envelope.kind != "AdmissionReview" or envelope.apiVersion != API_VERSION:
        kind = f"kind {quoted(envelope.kind)} of apiVersion {quoted(envelope.apiVersion)}"
        raise BadReview(f"{kind} is not AdmissionReview of {API_VERSION}")
    if envelope.request is None:
        raise BadReview("no AdmissionReview: request is missing")
    if not envelope.request.uid or not envelope.request.operation:
        raise BadReview("no AdmissionReview: request.uid and request.operation must not be empty")
    if len(envelope.request.uid) > _LONGEST_UID:
        raise BadReview(f"no AdmissionReview: request.uid has more than {_LONGEST_UID} characters")
    request = envelope.request
    request.object, request.oldObject = _readable(request.object), _readable(request.oldObject)
    return request


def _readable(document: Raw) -> Raw:
    return Raw(without_managed_fields(document)) if is_deep(document) else document


def allow(
    uid: str,
    *,
    patch: Sequence[Operation] = (),
    warnings: Sequence[str] = (),
    audit: Mapping[str, str] | None = None,
) -> bytes:
    """Encode an answer that admits the object, with or without a patch.

    For an empty patch both `patch` and `patchType` are omitted, because one without the other is invalid.
    """
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(orjson.dumps(patch)).decode()
    if warnings:
        response["warnings"] = warnings
    if audit:
        response["auditAnnotations"] = audit
    return _encode(response)


def deny(uid: str, message: str, *, audit: Mapping[str, str]) -> bytes:
    """Encode an answer that denies the object. The API server prefixes the message with its own text."""
    status = {"code": 403, "reason": "Forbidden", "message": message}
    return _encode({"uid": uid, "allowed": False, "status": status, "auditAnnotations": audit})


def _encode(response: dict[str, Any]) -> bytes:
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
