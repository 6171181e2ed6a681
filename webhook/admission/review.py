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
from service.text import quoted
from webhook.policy.patch import Operation

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
    oldObject: Raw = Raw(b"null")

    def is_about(self, kind: str, *operations: str) -> bool:
        """Whether this is one of the operations on an object of a core kind, not on a subresource of it."""
        asked = self.kind
        is_kind = asked is not None and asked.kind == kind and not asked.group
        return is_kind and self.operation in operations and not self.subResource

    @property
    def username(self) -> str:
        """Who asks."""
        return (self.userInfo.username if self.userInfo else None) or ""


class _Envelope(Struct):
    request: Review | None = None
    apiVersion: str | None = None
    kind: str | None = None


_decoder = msgspec.json.Decoder(_Envelope)
_LONGEST_UID: Final = 253
"""Characters of a review's uid, which the answer repeats; API servers send 36."""


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
    if len(envelope.request.uid) > _LONGEST_UID:
        raise BadReview(f"no AdmissionReview: request.uid has more than {_LONGEST_UID} characters")
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
    return _encode(response)


def deny(uid: str, message: str, *, audit: Mapping[str, str]) -> bytes:
    """Encode an answer that refuses the object; the API server puts its own words before the message."""
    status = {"code": 403, "reason": "Forbidden", "message": message}
    return _encode({"uid": uid, "allowed": False, "status": status, "auditAnnotations": audit})


def _encode(response: dict[str, Any]) -> bytes:
    return orjson.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response})
