"""Invariants that hold for every pod under every policy, unusual ones included.

The oracles are independent of kaishare where possible: patches are applied by the `jsonpatch` package, and what was
added is judged by KAI's own rules, which the verdicts of running releases hold in place.
"""

import asyncio
import base64
import copy
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import jsonpatch
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from kai import keys
from kai.admission import share_container
from kai.own_labels import EXCLUDED_NAMESPACES, GPU_MARK, INJECT, REASON, SIZE, WHOLE_GPU
from kai.pod import PodView
from service.log import JsonLog
from tests.support.kai_oracle import refusal
from tests.support.markers import scaled
from tests.support.pod_strategies import (
    ABSENT,
    VERSIONS,
    Case,
    cases,
    corrupted,
    is_rank,
    json_values,
    misshapen_pods,
    namespace_labels,
    pods,
    put,
    reviews,
    unknown_fields,
)
from tests.support.pods import GPU, view
from tests.support.size_oracle import size_of
from webhook.admission.handler import ReviewHandler
from webhook.admission.mutating import MutatingWebhook
from webhook.admission.review import BadReview, Review, decode
from webhook.metrics import Metrics
from webhook.policy.decide import MOST_WARNINGS, Rules
from webhook.policy.labels import MODE, NamespacePolicy
from webhook.policy.mutate import Mutation, mutate
from webhook.policy.patch import TOLERATION, apply_to_document
from webhook.policy.reasons import LONGEST_WARNING, Action, Finding, Reason

settings.register_profile(
    "properties",
    deadline=None,
    max_examples=scaled(400),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
MANY = settings.get_profile("properties")
FEWER = settings(MANY, max_examples=scaled(100))

SHARES = (keys.GPU_FRACTION, keys.GPU_MEMORY)
OUR_LABELS = (keys.QUEUE_LABEL, keys.PRIORITY_LABEL)
RECORD = (REASON, SIZE)
OUR_ANNOTATIONS = (*SHARES, keys.CONTAINER_NAME, *RECORD)
OUR_OPERATIONS = re.compile(
    r"add /metadata(/labels|/annotations)?"
    r"|add /metadata/labels/(kai\.scheduler~1queue|priorityClassName)"
    r"|add /metadata/annotations/(gpu-fraction|gpu-memory|gpu-fraction-container-name|kaishare\.dev~1(reason|size))"
    r"|add /spec/(schedulerName|tolerations|tolerations/-)"
    r"|remove /spec/(containers|initContainers)/\d+/resources/(limits|requests)/nvidia\.com~1gpu"
)
LABELS = {keys.QUEUE_LABEL: "queue-a", "kaishare.dev/gpu-fraction": "0.5"}


class Outcome:
    """A case, the decision, and the resulting pod as an independent library patches it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.mutation: Mutation = mutate(case.policy, case.body, case.rules)
        self.sent: list[dict[str, Any]] = json.loads(json.dumps(self.mutation.sent))
        self.received: Any = json.loads(case.body)
        self.result: Any = jsonpatch.apply_patch(self.received, self.sent)

    def added(self, part: str) -> dict[str, Any]:
        """Labels or annotations that are new, or have a new value."""
        before, after = entries(self.received, part), entries(self.result, part)
        return {key: value for key, value in after.items() if key not in before or before[key] != value}

    @property
    def shared(self) -> dict[str, Any]:
        """New annotations, but for those that record the decision."""
        return {key: value for key, value in self.added("annotations").items() if key not in RECORD}

    @property
    def policy(self) -> NamespacePolicy:
        """The policy, where there is one."""
        assert self.case.policy is not None
        return self.case.policy

    @property
    def share(self) -> dict[str, Any]:
        """The share that was injected, if any."""
        return {key: value for key, value in self.added("annotations").items() if key in SHARES}


def entries(document: Any, part: str) -> dict[str, Any]:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return (metadata or {}).get(part) or {}


def groups(document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every container with the list it stands in."""
    for group in ("containers", "initContainers"):
        for container in document["spec"].get(group) or ():
            yield group, container


def containers_of(document: Any) -> list[dict[str, Any]]:
    return [container for _, container in groups(document)]


def named_gpus(container: dict[str, Any]) -> dict[str, Any]:
    """nvidia.com/gpu in the requests and limits of a container."""
    resources = container.get("resources") or {}
    amounts_by_kind = {kind: resources.get(kind) or {} for kind in ("requests", "limits")}
    return {kind: amounts[GPU] for kind, amounts in amounts_by_kind.items() if GPU in amounts}


def exact(document: Any) -> str:
    """A document as text: 1 is not 1.0, and the order of keys counts."""
    return json.dumps(document)


# What holds for every pod.


def it_is_no_error(outcome: Outcome) -> None:
    decision = outcome.mutation.decision
    assert decision.action is not Action.ERROR
    assert bool(outcome.sent) is (decision.action is Action.INJECTED)
    assert bool(outcome.sent) is (exact(outcome.result) != exact(outcome.received))


def the_patch_applies_alike_everywhere(outcome: Outcome) -> None:
    assert exact(apply_to_document(outcome.mutation.sent, outcome.received)) == exact(outcome.result)
    for operation in outcome.sent:
        assert OUR_OPERATIONS.fullmatch(f"{operation['op']} {operation['path']}"), operation
        assert set(operation) == ({"op", "path"} if operation["op"] == "remove" else {"op", "path", "value"})


def only_ours_changed(outcome: Outcome) -> None:
    assert_only_ours_changed(outcome.received, outcome.result)


def assert_only_ours_changed(received: Any, result: Any) -> None:
    """Assert that without the permitted changes the document equals the received one."""
    if exact(result) == exact(received):
        return
    back, original = copy.deepcopy(result), copy.deepcopy(received)
    if original.get("metadata") is None:
        assert set(back["metadata"]) <= {"labels", "annotations"}
        assert set(entries(back, "labels")) <= set(OUR_LABELS)
        assert set(entries(back, "annotations")) <= set(OUR_ANNOTATIONS)
        put_back(back, original, "metadata")
    else:
        for part, ours in (("labels", OUR_LABELS), ("annotations", OUR_ANNOTATIONS)):
            if original["metadata"].get(part) is None:
                assert set(entries(back, part)) <= set(ours)
                put_back(back["metadata"], original["metadata"], part)
            else:
                for key in ours:
                    put_back(back["metadata"][part], original["metadata"][part], key)
    put_back(back["spec"], original["spec"], "schedulerName")
    tolerations = back["spec"].get("tolerations")
    if original["spec"].get("tolerations") is None:
        assert tolerations in (None, [TOLERATION])
        put_back(back["spec"], original["spec"], "tolerations")
    elif tolerations and len(tolerations) > len(original["spec"]["tolerations"]):
        assert tolerations.pop() == TOLERATION
    for (_, left), (_, had) in zip(groups(back), groups(original), strict=True):
        for kind in set(named_gpus(had)) - set(named_gpus(left)):
            del had["resources"][kind][GPU]
    assert exact(back) == exact(original)


def put_back(target: dict[str, Any], source: Mapping[str, Any], key: str) -> None:
    if key not in source:
        target.pop(key, None)
    else:
        assert key in target
        target[key] = source[key]


def values_are_strings_where_there_was_nothing(outcome: Outcome) -> None:
    for part in ("labels", "annotations"):
        before = entries(outcome.received, part)
        for key, value in outcome.added(part).items():
            assert isinstance(value, str)
            assert value
            assert key not in before or (key in OUR_LABELS and before[key] in ("", None))


def who_is_left_alone_gets_no_patch(outcome: Outcome) -> None:
    """The lines of policy.md's table that leave a pod alone, and the modes that do."""
    case, document = outcome.case, outcome.received
    policy, spec = case.policy, document["spec"]
    owners = (document.get("metadata") or {}).get("ownerReferences") or []
    if (
        policy is None
        or policy.mode in ("off", "observe")
        or policy.queue is None
        or case.namespace in case.rules.excluded_namespaces
        or keys.MIRROR_POD in entries(document, "annotations")
        or spec.get("nodeName")
        or any((owner.get("apiVersion"), owner.get("kind")) == ("apps/v1", "DaemonSet") for owner in owners)
        or entries(document, "labels").get(INJECT) == "false"
        or (spec.get("schedulerName") or "default-scheduler") not in ("default-scheduler", policy.scheduler)
    ):
        assert not outcome.sent


def who_is_not_ends_with_scheduler_queue_and_priority(outcome: Outcome) -> None:
    if outcome.mutation.decision.action in (Action.INJECTED, Action.UNCHANGED):
        policy, labels = outcome.policy, entries(outcome.result, "labels")
        assert outcome.result["spec"]["schedulerName"] == policy.scheduler
        assert labels[keys.QUEUE_LABEL]
        default = outcome.case.rules.default_priority_class
        own_class = outcome.received["spec"].get("priorityClassName") or ""
        if policy.priority and own_class in ("", default):
            assert labels[keys.PRIORITY_LABEL]
        else:
            assert keys.PRIORITY_LABEL not in outcome.added("labels")


def deciding_twice_adds_nothing(outcome: Outcome) -> None:
    if outcome.sent:
        case = outcome.case
        again = mutate(case.policy, exact(outcome.result).encode(), case.rules)
        assert again.planned == ()
        assert again.decision.action is Action.UNCHANGED


def a_share_is_the_policys_and_goes_where_it_says(outcome: Outcome) -> None:
    received, annotations = outcome.received, entries(outcome.received, "annotations")
    reason = outcome.mutation.decision.reason
    is_given = outcome.sent and reason in (Reason.WHOLE_GPU_CONVERTED, Reason.SHARE_INJECTED)
    assert bool(outcome.share) is bool(is_given)
    if reason is Reason.GPU_REMOVED_AGAIN:
        assert not outcome.shared
        assert policy_share(outcome).items() <= annotations.items()
        assert not any(map(named_gpus, containers_of(outcome.result))) or not outcome.sent
        return
    if not outcome.share:
        assert not outcome.shared
        before, after = (list(map(named_gpus, containers_of(d))) for d in (received, outcome.result))
        assert exact(before) == exact(after)
        return

    policy = outcome.policy
    assert outcome.share == policy_share(outcome)
    assert outcome.case.rules.inject_shares
    assert not any(key in annotations for key in (*SHARES, keys.NUM_DEVICES))
    assert keys.MIG_PREFIX not in exact([c.get("resources") for c in containers_of(received)])
    assert not received["spec"].get("resourceClaims")
    assert not any((c.get("resources") or {}).get("claims") for c in containers_of(received))

    asking = [(group, c) for group, c in groups(received) if counted(c) != 0]
    if reason is Reason.WHOLE_GPU_CONVERTED:
        assert [(group, counted(c)) for group, c in asking] == [("containers", 1)]
        assert annotations.get(WHOLE_GPU) != "true"
        receiver = asking[0][1]
    else:
        assert not asking
        pod_labels = entries(received, "labels")
        is_marked = policy.share_for == "marked" and pod_labels.get(GPU_MARK) == "shared"
        assert policy.share_for == "all" or is_marked or SIZE in pod_labels
        receiver = received["spec"]["containers"][0]
    assert entries(outcome.result, "annotations")[keys.CONTAINER_NAME] == receiver["name"]


def a_rank_of_a_distributed_job_keeps_its_gpu(outcome: Outcome) -> None:
    decision, policy = outcome.mutation.decision, outcome.policy
    asking = [c for group, c in groups(outcome.received) if counted(c) != 0]
    is_capped = policy.max_fraction is None and policy.max_memory_mib is not None
    is_capped = is_capped or (policy.max_fraction is not None and policy.max_fraction < 1)
    names_size = SIZE in entries(outcome.received, "labels")
    is_kept = policy.distributed == "keep" and not is_capped and not names_size
    hinted = Reason.RANKS_MAY_MEET in [warning.reason for warning in decision.warnings]
    if decision.reason is Reason.DISTRIBUTED:
        assert is_kept
        assert is_rank(outcome.received, asking[0])
        assert not hinted
    elif decision.reason is Reason.WHOLE_GPU_CONVERTED:
        rank = is_rank(outcome.received, asking[0])
        assert not (rank and is_kept)
        if len(decision.warnings) < MOST_WARNINGS:
            assert hinted is (rank and policy.distributed == "keep")


def policy_share(outcome: Outcome) -> dict[str, str]:
    """The share of the pod's size, by the oracle, else the default share."""
    kind, detail = size_in(outcome)
    if kind == "share":
        return dict([detail])
    assert kind == "none"
    share = outcome.policy.share
    assert share is not None
    return {share.annotation: share.value}


def size_in(outcome: Outcome) -> tuple[str, Any]:
    return size_of(
        outcome.case.labels,
        outcome.case.annotations,
        entries(outcome.received, "labels"),
        max_fraction=outcome.policy.max_fraction,
        max_memory_mib=outcome.policy.max_memory_mib,
    )


def the_size_is_the_one_that_the_oracle_finds(outcome: Outcome) -> None:
    decision = outcome.mutation.decision
    if decision.action is Action.SKIPPED:
        return
    kind, detail = size_in(outcome)
    if decision.reason in (Reason.SIZE_UNKNOWN, Reason.SIZE_AMBIGUOUS):
        assert (kind, detail) == ("doubt", decision.reason.code)
    if decision.reason is Reason.SIZE_WHOLE_GPU:
        assert (kind, detail) == ("whole", decision.finding.details["size"])
    if decision.reason is Reason.NO_DEFAULT_SHARE:
        assert (kind, outcome.policy.share) == ("none", None)
    if SIZE in entries(outcome.received, "labels") and kind == "doubt" and decision.source is None:
        assert detail in [warning.reason.code for warning in decision.warnings]


def the_decision_is_recorded_on_the_pod(outcome: Outcome) -> None:
    """The reason comes with every patch, the size where one decided, and neither replaces what the pod has."""
    had, has = (entries(d, "annotations") for d in (outcome.received, outcome.result))
    decision = outcome.mutation.decision
    size = decision.size.name if decision.size else None
    for key, value in ((REASON, decision.reason.code), (SIZE, size)):
        assert has.get(key) == (had.get(key) if key in had or not outcome.sent else value)


def counted(container: dict[str, Any]) -> float:
    """Whole GPUs a container asks for, by its limit, else its request; -1 for any other value."""
    gpus = named_gpus(container)
    text = str(gpus.get("limits", gpus.get("requests", 0)))
    try:
        number = float(text.removesuffix("m")) / (1000 if text.endswith("m") else 1)
    except ValueError:
        return -1
    return number if number >= 0 and number.is_integer() else -1


def a_share_stands_alone(outcome: Outcome) -> None:
    before, after = (entries(d, "annotations") for d in (outcome.received, outcome.result))
    assert not all(key in after for key in SHARES) or all(key in before for key in SHARES)
    assert not outcome.share or not any(map(named_gpus, containers_of(outcome.result)))


def a_share_is_one_that_kai_accepts(outcome: Outcome) -> None:
    if not outcome.share:
        return
    configured = outcome.case.rules.kai_version
    before, after = as_kais(outcome.received), as_kais(outcome.result)
    for version in VERSIONS if configured is None else (configured,):
        reason = refusal(after, version)
        assert reason is None or refusal(before, version) is not None, (reason, str(version))
        named = entries(outcome.result, "annotations")[keys.CONTAINER_NAME]
        assert share_container(after, version).name == named, str(version)


def as_kais(document: Any) -> PodView:
    """The pod as KAI sees it once it is KAI's."""
    return view(document | {"spec": document["spec"] | {"schedulerName": keys.SCHEDULER_NAME}})


def the_toleration_comes_with_a_share_and_once(outcome: Outcome) -> None:
    had, has = ((d["spec"].get("tolerations") or []) for d in (outcome.received, outcome.result))
    if has != had:
        assert outcome.policy.inject_toleration
        assert has == [*had, TOLERATION]
        assert TOLERATION not in had
        annotations = entries(outcome.result, "annotations")
        assert any(key in SHARES or key.startswith("nvidia.com/container.") for key in annotations)


def warnings_are_short_lines(outcome: Outcome) -> None:
    decision = outcome.mutation.decision
    assert_sentence(decision.finding)
    assert len(decision.warnings) <= 8
    for finding in decision.warnings:
        assert_sentence(finding)
        assert finding.warning.startswith("kaishare: ")
        assert len(finding.warning) <= LONGEST_WARNING == 120
        assert finding.warning.isprintable()
        assert len(finding.warning.splitlines()) == 1


def assert_sentence(finding: Finding) -> None:
    assert set(re.findall(r"\{(\w+)\}", finding.reason.text)) <= set(finding.details)
    assert finding.sentence.strip()
    assert finding.sentence.isprintable()


@MANY
@given(cases())
def test_every_invariant_holds_for_every_pod(case: Case) -> None:
    """One test, so that every property meets every pod: the name of the one that fails is in the traceback."""
    outcome = Outcome(case)
    it_is_no_error(outcome)
    the_patch_applies_alike_everywhere(outcome)
    only_ours_changed(outcome)
    values_are_strings_where_there_was_nothing(outcome)
    who_is_left_alone_gets_no_patch(outcome)
    who_is_not_ends_with_scheduler_queue_and_priority(outcome)
    deciding_twice_adds_nothing(outcome)
    a_share_is_the_policys_and_goes_where_it_says(outcome)
    a_rank_of_a_distributed_job_keeps_its_gpu(outcome)
    the_size_is_the_one_that_the_oracle_finds(outcome)
    the_decision_is_recorded_on_the_pod(outcome)
    a_share_stands_alone(outcome)
    a_share_is_one_that_kai_accepts(outcome)
    the_toleration_comes_with_a_share_and_once(outcome)
    warnings_are_short_lines(outcome)


@FEWER
@given(cases(), unknown_fields, st.booleans())
def test_fields_that_are_not_read_do_not_change_the_decision(
    case: Case, unknown: dict[str, Any], reverse: bool
) -> None:
    document = case.document | unknown
    document["spec"] = document["spec"] | unknown
    if reverse:
        document = {key: document[key] for key in reversed(document)}
    plain, other = (mutate(case.policy, exact(d).encode(), case.rules) for d in (case.document, document))
    assert (other.decision, other.planned) == (plain.decision, plain.planned)


LEFT_ALONE = {
    "not managed": {keys.QUEUE_LABEL: ABSENT},
    "mode off": {MODE: "off"},
    "mode observe": {MODE: "observe"},
    "no queue name": {keys.QUEUE_LABEL: "Not A Queue"},
    **{f"namespace {name}": {} for name in sorted(EXCLUDED_NAMESPACES)},
}


@settings(MANY, max_examples=scaled(20))
@given(pods(), namespace_labels())
@pytest.mark.parametrize("title", LEFT_ALONE)
def test_namespaces_that_never_get_a_patch(
    title: str, document: dict[str, Any], labels: dict[str, str]
) -> None:
    labels = {key: value for key, value in (labels | LEFT_ALONE[title]).items() if value != ABSENT}
    namespace = title.removeprefix("namespace ") if title.startswith("namespace ") else "team-a"
    case = Case(labels=labels, document=document, namespace=namespace)
    assert (case.policy is None) is (title == "not managed")
    mutation = mutate(case.policy, case.body, case.rules)
    assert mutation.sent == ()
    expected = (
        {Action.OBSERVED, Action.UNCHANGED, Action.SKIPPED} if title == "mode observe" else {Action.SKIPPED}
    )
    assert mutation.decision.action in expected


# Input of any shape.


@FEWER
@given(cases(documents=misshapen_pods | json_values))
def test_a_document_of_any_shape_goes_through(case: Case) -> None:
    outcome = Outcome(case)
    assert outcome.mutation.decision.action is not Action.ERROR
    assert_only_ours_changed(outcome.received, outcome.result)
    assert_sentence(outcome.mutation.decision.finding)


@FEWER
@given(corrupted(cases().map(lambda case: case.body)) | st.binary(max_size=60))
def test_bytes_of_any_kind_go_through(body: bytes) -> None:
    policy = NamespacePolicy.from_labels("team-a", LABELS)
    mutation = mutate(policy, body, Rules())
    assert mutation.decision.action is not Action.ERROR
    assert_sentence(mutation.decision.finding)


STRANGE = {
    "not UTF-8 in a field that is not read": b'{"x": "\xff", "spec": {"containers": [{"name": "a"}]}}',
    "not UTF-8 in a label": b'{"metadata": {"labels": {"\xff": ""}}, "spec": {"containers": [{"name": "a"}]}}',
    "not UTF-8 in a name of a variable's field": b'{"metadata": {"annotations": {"gpu-fraction": "0.5"}}, "spec":'
    b' {"containers": [{"name": "a", "env": [{"name": "X", "\xffvalue": "4"}]}]}}',
    "half a surrogate pair": b'{"metadata": {"name": "\\ud800"}, "spec": {"containers": [{"name": "a"}]}}',
    "a byte order mark": b'\xef\xbb\xbf{"spec": {"containers": [{"name": "a"}]}}',
    "a key twice": b'{"spec": {}, "spec": {"containers": [{"name": "a"}], "containers": []}}',
    "NaN": b'{"spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": NaN}}}]}}',
    "a number out of range": b'{"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1e999}}}]}}',
    "a number without end": b'{"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1%s}}}]}}'
    % (b"0" * 5000),
    "nothing": b"",
    "null": b"null",
}  # fmt: skip


@pytest.mark.parametrize("title", STRANGE)
def test_strange_bytes_go_through(title: str) -> None:
    mutation = mutate(NamespacePolicy.from_labels("team-a", LABELS), STRANGE[title], Rules())
    assert mutation.decision.action is not Action.ERROR
    assert_sentence(mutation.decision.finding)


DEEP_PLACES = ("futureField", "spec.env", "spec.tolerations", "spec.claims", "metadata.labels")


@pytest.mark.parametrize("place", DEEP_PLACES)
def test_nesting_of_any_depth_is_no_error(place: str) -> None:
    # What one decoder still reads, another that runs deeper in the stack may not: so every depth is tried.
    policy = NamespacePolicy.from_labels("team-a", LABELS)
    annotations: dict[str, Any] = {keys.SHARED_GPU_CONFIGMAP: "taken"}
    container: dict[str, Any] = {"name": "a", "env": "HERE" if place == "spec.env" else None}
    document = {
        "futureField": "HERE" if place == "futureField" else None,
        "metadata": {"name": "case", "labels": "HERE" if place == "metadata.labels" else None}
        | {"annotations": annotations},
        "spec": {
            "containers": [container],
            "tolerations": [{"x": "HERE"}] if place == "spec.tolerations" else None,
            "resourceClaims": "HERE" if place == "spec.claims" else None,
        },
    }
    before, after = json.dumps(document).encode().split(b'"HERE"')
    for depth in range(600, 1100, 5):
        mutation = mutate(policy, before + b"[" * depth + b"]" * depth + after, Rules())
        assert mutation.decision.action is not Action.ERROR


# Reviews.


near_reviews = st.builds(
    put,
    reviews(),
    st.sampled_from([(), ("kind",), ("apiVersion",), ("request",), *(("request", part) for part in ("uid", "operation", "kind", "namespace", "object", "userInfo", "dryRun"))]),
    st.sampled_from(("", "text", None, [], {}, 5, True)),
)  # fmt: skip


@FEWER
@example(b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}')
@example(b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": null}')
@given((json_values | near_reviews).map(lambda value: json.dumps(value).encode()))
def test_any_json_is_a_review_or_a_bad_one(body: bytes) -> None:
    assert_decoded(body)


@FEWER
@given(st.binary(max_size=80) | corrupted(reviews().map(lambda value: json.dumps(value).encode())))
def test_any_bytes_are_a_review_or_a_bad_one(body: bytes) -> None:
    assert_decoded(body)


def assert_decoded(body: bytes) -> None:
    try:
        review = decode(body)
    except BadReview as error:
        message = str(error)
        assert message.strip()
    else:
        assert isinstance(review, Review)
        assert review.uid
        assert isinstance(review.username, str)
        assert isinstance(review.is_about("Pod", "CREATE"), bool)


class Policies:
    """Three managed namespaces, and one whose policy cannot be read."""

    ready = True

    def __init__(self) -> None:
        self._policies = {
            name: NamespacePolicy.from_labels(name, LABELS | labels)
            for name, labels in (
                ("team-a", {"kaishare.dev/share-for": "all"}),
                ("team-b", {"kaishare.dev/max-gpu-fraction": "0.6", "kaishare.dev/gpu-toleration": "inject"}),
                ("watched", {MODE: "observe"}),
            )
        }

    async def find(self, namespace: str, **_: Any) -> NamespacePolicy | None:
        if namespace == "failing":
            raise ConnectionError("the API server is away")
        return self._policies.get(namespace)

    def all(self) -> Mapping[str, NamespacePolicy]:
        return {name: policy for name, policy in self._policies.items() if policy}


def asks_for_a_pod(request: dict[str, Any]) -> bool:
    kind = request["kind"] or {}
    is_pod = kind.get("kind") == "Pod" and not kind.get("group")
    return is_pod and request["operation"] == "CREATE" and not request.get("subResource")


def test_every_review_is_answered_and_allowed() -> None:
    policies, stream, seen = Policies(), io.BytesIO(), Counter[str]()
    metrics, log = Metrics(), JsonLog(stream)
    mutating = MutatingWebhook(policies=policies, rules=Rules, metrics=metrics)
    webhook = ReviewHandler(mutating, metrics=metrics, log=log)

    with asyncio.Runner() as runner:

        @FEWER
        @given(reviews())
        def answered(review: dict[str, Any]) -> None:
            answer = json.loads(runner.run(webhook.answer(json.dumps(review).encode(), "r")))
            assert (answer["kind"], answer["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
            response, request = answer["response"], review["request"]
            assert response["allowed"] is True
            assert response["uid"] == request["uid"]
            assert ("patch" in response) is ("patchType" in response) is ("auditAnnotations" in response)
            sent: Any = ()
            if request["namespace"] != "failing" and asks_for_a_pod(request):
                policy = policies.all().get(request["namespace"])
                sent = mutate(policy, json.dumps(request["object"]).encode(), Rules()).sent
            patch = json.loads(base64.b64decode(response.get("patch", "W10=")))
            assert patch == json.loads(json.dumps(sent))
            if not patch:
                assert set(response) == {"uid", "allowed"}
            assert all(warning.isprintable() for warning in response.get("warnings", ()))
            assert all(isinstance(value, str) for value in response.get("auditAnnotations", {}).values())
            seen["patched" if patch else "unpatched"] += 1

        answered()

    assert min(seen["patched"], seen["unpatched"]) > FEWER.max_examples / 10
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert sum(line["message"] == "decision" for line in lines) == seen.total()


# The cases themselves.

REACHED = {
    Reason.WHOLE_GPU_CONVERTED, Reason.SHARE_INJECTED, Reason.OWN_SHARE, Reason.NO_GPU, Reason.SEVERAL_GPUS,
    Reason.UNCLEAR_QUANTITY, Reason.INIT_CONTAINER_GPU, Reason.NAME_UNSUPPORTED, Reason.CONTAINER_NOT_FIRST,
    Reason.WHOLE_GPU_KEPT, Reason.MIG, Reason.RESOURCE_CLAIMS, Reason.SHARES_OFF, Reason.NO_DEFAULT_SHARE,
    Reason.POLICY_INVALID, Reason.MODE_OFF, Reason.NAMESPACE_EXCLUDED, Reason.OTHER_SCHEDULER, Reason.OPTED_OUT,
    Reason.DAEMONSET, Reason.MIRROR_POD, Reason.NODE_NAME_SET, Reason.SIZE_UNKNOWN, Reason.SIZE_AMBIGUOUS,
    Reason.SIZE_WHOLE_GPU, Reason.DISTRIBUTED,
}  # fmt: skip


@pytest.mark.nightly
def test_the_generated_cases_reach_every_outcome() -> None:
    """Properties of pods that are all left alone would say nothing.

    Always the same pods here: this is about the strategies, and chance is not to fail it.
    """
    seen, actions = Counter[Reason](), Counter[Action]()

    @settings(MANY, max_examples=2000, phases=[Phase.generate], derandomize=True)
    @given(cases())
    def look(case: Case) -> None:
        decision = mutate(case.policy, case.body, case.rules).decision
        seen[decision.reason] += 1
        actions[decision.action] += 1

    look()
    assert set(seen) >= REACHED, REACHED - set(seen)
    assert actions[Action.INJECTED] > seen.total() / 2
    assert seen[Reason.WHOLE_GPU_CONVERTED] > seen.total() / 20
    assert seen[Reason.SHARE_INJECTED] > seen.total() / 100
