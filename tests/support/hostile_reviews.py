"""Reviews that are expensive to answer: with hostile pods and namespaces, and malformed reviews.
Each is a function of the size of its body, as in `hostile_pods`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from tests.support.hostile_pods import PODS, Kind, long_text
from webhook.admission.workloads import LARGEST

Make = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class Asked:
    path: str
    body: bytes


def review(document: bytes, *, namespace: str = "team-a", kind: str = "Pod", old: bytes = b"null") -> bytes:
    """Wrap an object in a review of its creation, or of its update if it has an old state."""
    fields = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "kind": {"group": "", "version": "v1", "kind": kind},
        "namespace": namespace, "operation": "CREATE" if old == b"null" else "UPDATE",
        "userInfo": {"username": "mallory"},
    }  # fmt: skip
    head = json.dumps(
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": fields}
    ).encode()
    return head[:-2] + b',"oldObject":' + old + b',"object":' + document + b"}}"


def _namespace(labels: Mapping[str, str], annotations: Mapping[str, str] | None = None) -> bytes:
    metadata = {"name": "team-a", "uid": "u", "resourceVersion": "1", "labels": {"kai.scheduler/queue": "queue-a", **labels}}  # fmt: skip
    return json.dumps({"metadata": {**metadata, "annotations": annotations or {}}}).encode()


def _keys(pattern: str, size: int, value: str) -> dict[str, str]:
    return {pattern.format(number): value for number in range(size // (len(pattern) + len(value) + 10))}


NAMESPACES: Final[Mapping[str, Make]] = {
    "labels": lambda size: _namespace(_keys("example.invalid/l-{}", size, "x")),
    "labels of kaishare's prefix": lambda size: _namespace(_keys("kaishare.dev/gpu-fractiom-{}", size, "0.5")),
    "sizes": lambda size: _namespace(_keys("size.kaishare.dev/s-{}", size, "0.5")),
    "sizes with selectors": lambda size: _namespace(
        _keys("size.kaishare.dev/s-{}", size // 2, "0.5"), _keys("size.kaishare.dev/s-{}", size // 2, "a in (b,c)")
    ),
    "annotations of kaishare's prefix": lambda size: _namespace({}, _keys("size.kaishare.dev/a-{}", size, "a=b")),
    "a long selector": lambda size: _namespace(
        {"size.kaishare.dev/a": "0.5"}, {"size.kaishare.dev/a": "a in (" + "b," * (size // 2) + "b)"}
    ),
    "annotations": lambda size: _namespace({}, _keys("example.invalid/a-{}", size, "x")),
    "a long label key": lambda size: _namespace({"kaishare.dev/" + long_text(size): "x"}),
    "a long queue": lambda size: _namespace({"kai.scheduler/queue": "a-" * (size // 2)}),
    "a long mode": lambda size: _namespace({"kaishare.dev/mode": long_text(size)}),
    "a long scheduler": lambda size: _namespace({"kaishare.dev/scheduler": "a." * (size // 2)}),
    "a fraction of digits": lambda size: _namespace({"kaishare.dev/gpu-fraction": "0." + "1" * size}),
    "a memory of digits": lambda size: _namespace({"kaishare.dev/gpu-memory": "1" * size}),
    "a cap of digits": lambda size: _namespace({"kaishare.dev/max-gpu-memory": "1" * size}),
    "a grace of digits": lambda size: _namespace({"kaishare.dev/over-share-grace": "1" * size + "s"}),
    "a long priority": lambda size: _namespace({"kaishare.dev/priority": "a-" * (size // 2)}),
    "a size of digits": lambda size: _namespace({"size.kaishare.dev/a": "1" * size + "Mi"}),
    "a long share-for": lambda size: _namespace({"kaishare.dev/share-for": long_text(size)}),
}  # fmt: skip

_WHOLE: Final = (
    b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"CREATE"'
)

BROKEN: Final[Mapping[str, Make]] = {
    "blanks": lambda size: b" " * size,
    "an open brace": lambda size: b"{" * size,
    "open lists": lambda size: b'{"request":{"object":' + b"[" * size,
    "a long kind": lambda size: b'{"kind":"' + b"a" * size + b'"}',
    "a long apiVersion": lambda size: b'{"kind":"AdmissionReview","apiVersion":"' + b"a" * size + b'"}',
    "a long unknown key": lambda size: b'{"' + b"a" * size + b'":5}',
    "a long uid": lambda size: _WHOLE + b',"uid":"' + b"u" * size + b'"}}',
    "a long operation": lambda size: _WHOLE + b',"operation":"' + b"u" * size + b'"}}',
    "a long namespace": lambda size: _WHOLE + b',"kind":{"kind":"Pod"},"namespace":"' + b"n" * size + b'"}}',
    "a long user": lambda size: _WHOLE + b',"userInfo":{"username":"' + b"u" * size + b'"}}}',
    "a long name": lambda size: _WHOLE + b',"name":"' + b"u" * size + b'"}}',
    "a long subresource": lambda size: _WHOLE + b',"subResource":"' + b"u" * size + b'"}}',
    "requests again and again": lambda size: _WHOLE[:-50] + b'"request":{}' + b',"request":{"uid":"u"}' * (size // 22) + b"}",
    "a list of numbers": lambda size: b"[" + b"1," * (size // 2) + b"1]",
    "a number of digits": lambda size: b'{"kind":' + b"1" * size + b"}",
    "a number of digits in an object": lambda size: _WHOLE + b',"object":' + b"1" * size + b"}}",
    "bytes that are no text": lambda size: b"\xff" * size,
}  # fmt: skip
"""Bodies that are not reviews, or reviews with a long field outside of the object, by name."""


def pod_review(kind: Kind, size: int, namespace: str = "team-a") -> bytes:
    return review(kind.make(size), namespace=namespace)


def namespace_review(make: Make, size: int) -> bytes:
    return review(make(size), kind="Namespace", old=b'{"metadata":{"name":"team-a"}}')


def all_requests() -> dict[str, Callable[[int], Asked]]:
    """Return every kind of request by name, as functions of the body's size."""
    requests: dict[str, Callable[[int], Asked]] = {}
    for name, kind in PODS.items():
        requests[f"pod: {name}"] = partial(_pod_request, "/mutate", kind, "team-a")
        requests[f"enforced pod: {name}"] = partial(_pod_request, "/validate/pods", kind, "guarded")
        requests[f"workload: {name}"] = partial(_workload_request, kind)
    for name, make in NAMESPACES.items():
        requests[f"namespace: {name}"] = partial(_namespace_request, make)
    for name, make in BROKEN.items():
        requests[f"review: {name}"] = partial(_broken_request, make)
    return requests


def _pod_request(path: str, kind: Kind, namespace: str, size: int) -> Asked:
    return Asked(path, pod_review(kind, size, namespace))


def _workload_request(kind: Kind, size: int) -> Asked:
    """Return a review of a Deployment with the pod as its template; one of the largest that are read."""
    pod = kind.make(min(size, LARGEST - 2048))
    return Asked(
        "/warn/workloads",
        review(b'{"kind":"Deployment","spec":{"template":' + pod + b"}}", kind="Deployment"),
    )


def _namespace_request(make: Make, size: int) -> Asked:
    return Asked("/validate/namespaces", namespace_review(make, size))


def _broken_request(make: Make, size: int) -> Asked:
    return Asked("/mutate", make(size))
