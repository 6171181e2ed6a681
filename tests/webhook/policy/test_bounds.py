"""The cost of a review: CPU time that grows linearly with its body, for any pod of a tenant."""

import asyncio
import gc
import io
import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from kai.installation import SharingMode
from kai.pod import Container, Metadata, Owner, PodDocument, Resources, Spec
from service.log import JsonLog
from tests.support.hostile_pods import PODS
from tests.support.hostile_reviews import Asked, all_requests, review
from tests.support.markers import scaled
from tests.support.webhook_process import HeldPolicies
from webhook.admission.handler import AdmissionWebhook, ReviewHandler
from webhook.admission.mutating import MutatingWebhook
from webhook.admission.review import BadReview
from webhook.admission.validating import NamespaceValidator, PodValidator
from webhook.admission.workloads import WorkloadAdvisor
from webhook.metrics import Metrics
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy

KIB, MIB = 1 << 10, 1 << 20
SIZE = 256 * KIB
"""Of the smaller body. It holds more open brackets than Python 3.14 decodes on a stack of 8 MiB, as the larger does."""

LARGER = 4
"""Times the size of the larger body."""

MAX_GROWTH = 11
"""Of the cost; quadratic work has 16."""

MAX_PARSES = 80
"""The cost of a review's MiB, in units of what the standard library needs to parse as much: a busy machine slows both. The
contract says 50 ms, about 10 of these; this finds what is far above."""

ONE_MIB = json.dumps([{"name": f"v-{index:06}", "value": "x" * 28} for index in range(MIB // 62)])
TRIES = 16
REQUESTS = all_requests()
SHARE = {
    "kai.scheduler/queue": "queue-a",
    "kaishare.dev/gpu-fraction": "0.5",
    "kaishare.dev/share-for": "all",
}
LABELS = {
    "team-a": {**SHARE, "kaishare.dev/priority": "train", "kaishare.dev/framework-memory": "set"},
    "guarded": {**SHARE, "kaishare.dev/mode": "enforce", "kaishare.dev/max-gpu-fraction": "0.9"},
    "observed": {**SHARE, "kaishare.dev/mode": "observe", "kaishare.dev/max-gpu-memory": "2000"},
}
SETTINGS = DecisionSettings(gpu_sharing_mode=SharingMode.NON_MEMORY_ENFORCED)
MAX_ANSWER = 96 * KIB
"""Bytes of an answer: a patch of about 520 operations in base64, and eight warnings."""
MAX_LINE = 16 * KIB
"""Bytes of a line of the log."""


class FixedPolicies(HeldPolicies):
    """Policies that never change."""

    def __init__(self) -> None:
        super().__init__()
        self._policies = {name: NamespacePolicy.from_labels(name, labels) for name, labels in LABELS.items()}

    async def find(self, namespace: str, **_options: Any) -> NamespacePolicy | None:
        return self._policies.get(namespace)


Answer = Callable[[Asked], bytes | None]


@pytest.fixture(scope="module")
def log_stream() -> io.BytesIO:
    """The log of this module's webhook."""
    return io.BytesIO()


@pytest.fixture(scope="module")
def answer(log_stream: io.BytesIO) -> Iterator[Answer]:
    """Return the webhook's answer without sockets; None if it answers with an HTTP error."""
    policies, metrics = FixedPolicies(), Metrics()
    log = JsonLog(log_stream)
    judges: dict[str, AdmissionWebhook] = {
        "/mutate": MutatingWebhook(policies=policies, rules=lambda: SETTINGS, metrics=metrics),
        "/validate/pods": PodValidator(policies=policies, rules=DecisionSettings),
        "/validate/namespaces": NamespaceValidator(rules=DecisionSettings),
        "/warn/workloads": WorkloadAdvisor(policies=policies, rules=DecisionSettings),
    }
    endpoints = {path: ReviewHandler(judge, metrics=metrics, log=log) for path, judge in judges.items()}
    with asyncio.Runner() as runner:

        def answered(request: Asked) -> bytes | None:
            try:
                return runner.run(endpoints[request.path].answer(request.body, "r-1"))
            except BadReview:
                return None

        yield answered


def seconds_for(work: Callable[[], object]) -> float:
    """Return the CPU time of some work, in seconds."""
    gc.disable()
    try:
        began = time.thread_time()
        work()
        return time.thread_time() - began
    finally:
        gc.enable()


@pytest.mark.parametrize("name", REQUESTS)
def test_a_review_costs_time_in_proportion_to_its_size(answer: Answer, name: str) -> None:
    small, large = REQUESTS[name](SIZE), REQUESTS[name](LARGER * SIZE)
    before = after = parse = math.inf
    gc.collect()
    for _ in range(TRIES):
        before = min(before, seconds_for(lambda: answer(small)))
        after = min(after, seconds_for(lambda: answer(large)))
        parse = min(parse, seconds_for(lambda: json.loads(ONE_MIB)))
        growth = after / max(before, 0.0005)  # below that a few microseconds would decide
        parses = after / (len(large.body) / MIB) / parse
        if growth < MAX_GROWTH and parses < MAX_PARSES:
            return
    pytest.fail(f"{parses:.0f} times a parse, and {growth:.1f} times as much for {LARGER} times the size")


def merged(documents: list[dict[str, Any]]) -> bytes:
    """Put pods together: later maps add to earlier ones, lists follow each other."""
    whole: dict[str, Any] = {}
    for document in documents:
        for part, values in document.items():
            target = whole.setdefault(part, {})
            for key, value in values.items():
                before = target.get(key)
                if isinstance(before, dict) and isinstance(value, dict):
                    target[key] = {**before, **value}
                elif isinstance(before, list) and isinstance(value, list):
                    target[key] = before + value
                else:
                    target[key] = value
    return json.dumps(whole).encode()


def readable_kinds() -> Iterator[str]:
    """The kinds of pod that are JSON, and of the shape of a pod."""
    for name, kind in PODS.items():
        try:
            document = json.loads(kind.make(8 * KIB))
        except (ValueError, RecursionError):
            continue
        if isinstance(document.get("spec"), dict):
            yield name


@settings(deadline=None, max_examples=scaled(30))
@given(
    st.lists(st.sampled_from(list(readable_kinds())), min_size=2, max_size=4, unique=True),
    st.sampled_from(["team-a", "guarded", "observed"]),
    st.sampled_from([2 * KIB, 32 * KIB, 128 * KIB]),
)
def test_hostile_kinds_together_get_a_short_answer_and_a_short_line(
    answer: Answer, log_stream: io.BytesIO, names: list[str], namespace: str, size: int
) -> None:
    document = merged([json.loads(PODS[name].make(size // len(names))) for name in names])
    request = Asked(
        "/validate/pods" if namespace == "guarded" else "/mutate", review(document, namespace=namespace)
    )
    began = log_stream.seek(0, io.SEEK_END)
    body = answer(request)
    log_stream.seek(began)
    assert max(map(len, log_stream.read().splitlines()), default=0) < MAX_LINE
    if body is not None:
        assert len(body) < MAX_ANSWER
        assert b'"allowed":true' in body or namespace == "guarded"


@pytest.mark.parametrize("name", REQUESTS)
def test_an_answer_does_not_grow_with_its_review_and_denies_no_hostile_pod(answer: Answer, name: str) -> None:
    for size in (4 * KIB, MIB // 4):
        body = answer(REQUESTS[name](size))
        assert body is None or len(body) < MAX_ANSWER
        assert body is None or not name.startswith(("pod: ", "workload: ")) or b'"allowed":true' in body


def test_every_pod_field_that_is_read_has_a_hostile_value() -> None:
    read = {
        f"{struct.__name__}.{field.name}"
        for struct in (PodDocument, Metadata, Owner, Spec, Container, Resources)
        for field in fields(struct)
    }
    assert read == {field for kind in PODS.values() for field in kind.reads}
