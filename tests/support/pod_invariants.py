"""What holds for every decision about a pod.
The oracles are independent of kaishare where possible: patches are applied by the `jsonpatch` package, and what was
added is judged by KAI's own rules, which the verdicts of running releases hold in place."""

import copy
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import jsonpatch

from kai import keys
from kai.kaishare_keys import GPU_MARK, INJECT, REASON, SIZE, WHOLE_GPU
from kai.refusals import share_container
from tests.support.kai_oracle import refusal
from tests.support.pod_documents import (
    SHARES,
    as_kais,
    containers_of,
    counted,
    entries,
    exact,
    groups,
    named_gpus,
)
from tests.support.pod_strategies import VERSIONS, Case, is_rank
from tests.support.pods import GPU
from tests.support.size_oracle import size_of
from webhook.policy.decide import MOST_WARNINGS
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import TOLERATION, Mutation, apply_to_document, mutate
from webhook.policy.reasons import LONGEST_WARNING, Action, Finding, Reason

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
        assert self.case.policy is not None
        return self.case.policy

    @property
    def share(self) -> dict[str, Any]:
        return {key: value for key, value in self.added("annotations").items() if key in SHARES}


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
        outcome.case.labels, outcome.case.annotations, entries(outcome.received, "labels"),
        max_fraction=outcome.policy.max_fraction, max_memory_mib=outcome.policy.max_memory_mib,
    )  # fmt: skip


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


INVARIANTS: Final[tuple[Callable[[Outcome], None], ...]] = (
    it_is_no_error, the_patch_applies_alike_everywhere, only_ours_changed, values_are_strings_where_there_was_nothing,
    who_is_left_alone_gets_no_patch, who_is_not_ends_with_scheduler_queue_and_priority, deciding_twice_adds_nothing,
    a_share_is_the_policys_and_goes_where_it_says, a_rank_of_a_distributed_job_keeps_its_gpu,
    the_size_is_the_one_that_the_oracle_finds, the_decision_is_recorded_on_the_pod, a_share_stands_alone,
    a_share_is_one_that_kai_accepts, the_toleration_comes_with_a_share_and_once, warnings_are_short_lines,
)  # fmt: skip
