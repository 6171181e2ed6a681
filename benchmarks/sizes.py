"""Cost of sizes: `python -m benchmarks.sizes`.

Compares `mutate` and `decide` for a pod in a namespace with one default share and in one with 16 sizes, whose
selectors have four requirements each and of which the last one matches. Also reads a namespace with 2,000
sizes. Pairs are measured in turn; the report shows the median of their ratios. Exits with 1 above a bound.
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Final

from kai.pod import decode_pod
from webhook.policy.decide import decide_pod
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy, PolicyMetadata, label_problems
from webhook.policy.patch import mutate

MOST_RATIOS: Final = {"decide": 1.5, "mutate": 1.25}
"""Bounds for sizes, relative to a default share: of a decision, and of an answer to the API server."""

MOST_MS_PER_MIB: Final = 50.0
"""Bound for reading a namespace (docs/security.md, on a quiet machine)."""

_PAIRS: Final = 200
_CALLS: Final = 50
_QUEUE = {"kai.scheduler/queue": "vision"}
_SIZES = [f"size-{number:02}" for number in range(16)]

LABELS: Final = {
    "name": "inference",
    "part-of": "vision",
    "hash": "5d4f8c7b96",
    "tier": "size-15",
}


def pod() -> bytes:
    """Return a pod of a Deployment as the API server sends it."""
    gpu = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    container = {"name": "main", "image": "registry.invalid/inference:1", "resources": gpu}
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "inference-5d4f8c7b96",
        "controller": True,
    }
    metadata = {"name": "inference-5d4f8c7b96-x2x7k", "labels": LABELS, "ownerReferences": [owner]}
    spec = {"containers": [container], "schedulerName": "default-scheduler"}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).encode()


def with_sizes(selector: str) -> NamespacePolicy:
    """Return a policy with 16 sizes; `selector` contains the name of its size as {}."""
    labels = {f"size.kaishare.dev/{name}": "0.5" for name in _SIZES}
    annotations = {f"size.kaishare.dev/{name}": selector.format(name) for name in _SIZES}
    policy = NamespacePolicy.from_labels("vision", _QUEUE | labels, annotations)
    if policy is None or policy.problems:
        raise SystemExit(f"the benchmark's policy is invalid: {policy}")
    return policy


def ratio(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Return the median of second/first over pairs in alternating order, and the median of first in µs."""
    ratios, firsts = [], []
    for pair in range(_PAIRS):
        order = (first, second) if pair % 2 else (second, first)
        seconds = {function: _seconds(function) for function in order}
        ratios.append(seconds[second] / seconds[first])
        firsts.append(seconds[first] / _CALLS * 1e6)
    return statistics.median(ratios), statistics.median(firsts)


def _seconds(function: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(_CALLS):
        function()
    return time.thread_time() - began


def main() -> None:
    """Measure, print and judge."""
    document, rules = pod(), DecisionSettings()
    view = decode_pod(document)
    plain = NamespacePolicy.from_labels("vision", _QUEUE | {"kaishare.dev/gpu-fraction": "0.5"})
    if plain is None:
        raise SystemExit("the benchmark's policy is invalid")
    is_within = True
    selectors = {
        "four requirements, one per label": "part-of=vision,hash,!other,tier={}",
        "four requirements, the first decides": "tier={},part-of=vision,hash,!other",
        "four requirements, sets": "name in (a,inference),tier notin (x,y),!z,tier in (w,{})",
    }
    for title, selector in selectors.items():
        sized = with_sizes(selector)
        if decide_pod(sized, view, rules).size is None:
            raise SystemExit(f"{title}: no size was chosen")
        for name, first, second in (
            ("decide", lambda: decide_pod(plain, view, rules), lambda: decide_pod(sized, view, rules)),  # noqa: B023
            ("mutate", lambda: mutate(plain, document, rules), lambda: mutate(sized, document, rules)),  # noqa: B023
        ):
            value, microseconds = ratio(first, second)
            is_within = is_within and value <= MOST_RATIOS[name]
            print(f"{name}: {value:.2f} x of {microseconds:.1f} µs ({title})")

    keys = [f"size.kaishare.dev/size-{number:04}" for number in range(2000)]
    metadata = PolicyMetadata(
        _QUEUE | dict.fromkeys(keys, "0.5"), dict.fromkeys(keys, "app in (api,web),tier=x")
    )
    size = sum(
        len(key) + len(value)
        for part in (metadata.labels, metadata.annotations)
        for key, value in part.items()
    )
    for name, function in (
        ("read 2,000 sizes", lambda: metadata.policy("vision")),
        ("judge an edit of 2,000 sizes", lambda: label_problems(metadata)),
    ):
        seconds = min(_seconds(function) for _ in range(5)) / _CALLS
        per_mib = seconds * 1e3 / size * (1 << 20)
        is_within = is_within and per_mib <= MOST_MS_PER_MIB
        print(f"{name}: {seconds * 1e3:.1f} ms for {size} bytes, {per_mib:.0f} ms a MiB")
    if not is_within:
        ratios = ", ".join(f"{most} x for {name}" for name, most in MOST_RATIOS.items())
        raise SystemExit(f"above the bound: {ratios}, {MOST_MS_PER_MIB} ms a MiB")


if __name__ == "__main__":
    main()
