"""Every check over facts: a fault, its finding and the advice."""

import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
import yaml

import kai.refusals
import webhook.policy
from console.cluster.facts import Fact
from console.cluster.rules import DIFFERENCES
from console.cluster.webhook import UNKNOWN_SETTINGS, RunningSettings
from console.doctor import cluster_state, command, kai_checks, policy_checks, queues, registration, serving
from console.doctor.check_results import CheckResult, named
from console.doctor.cluster_state import ClusterFacts, ClusterNode, Namespace, NotablePod
from console.doctor.gpu_supply import gpus_are_plain, ranks_are_apart
from console.doctor.node_checks import nodes_are_labelled
from console.doctor.sharing_checks import resource_management, run_ai_keys
from console.render.policy_manifests import RELEASES
from kai.installation import Installation, SharingMode
from kai.releases import Version, _Since
from kube.device_kinds import DeviceClass
from kube.kinds import (
    DEVICE_CLASSES,
    LIMIT_RANGES,
    POD_GROUPS,
    PODS,
    LimitRange,
    Pod,
    PodGroup,
)
from tests.support.cluster_facts import (
    KAI_CONDITION,
    SERVICE,
    UNREAD,
    UNSERVED,
    WELL,
    admission,
    alone,
    but,
    by_policies,
    configuration,
    installed,
    mutating,
    namespace,
    of_kai,
    other,
    part,
    queue,
    running,
    validating,
    whole,
)
from tests.support.guard import rendered
from tests.support.helm_chart import CHART
from tests.support.kinds import made
from tests.support.pods import folder_from
from tests.support.registration import mutating_configuration
from tests.support.why_evidence import NOW, make_pod
from webhook.policy.labels import NO_METADATA, Mode
from webhook.registration.configuration_objects import WebhookConfiguration

ROOT = Path(__file__).parents[3]
Check = (
    Callable[[ClusterFacts], Iterator[CheckResult]]
    | tuple[Callable[[ClusterFacts], Iterator[CheckResult]], ...]
)
QUEUE = "kai.scheduler/queue"
NAMES: dict[Any, str] = {check.run: check.name for check in command.CHECKS}


def lines_of(check: Check, cluster: ClusterFacts) -> list[str]:
    """Return the findings as lines: `STATE: CHECK: OBSERVATION -> ADVICE`."""
    runs = check if isinstance(check, tuple) else (check,)
    results = [each for run in runs for each in named(NAMES[run], run(cluster))]
    return [f"{each.state}: {each.check}: {each.what} -> {each.advice}" for each in results]


def bad(check: Check, cluster: ClusterFacts) -> list[str]:
    return [line for line in lines_of(check, cluster) if line.startswith(("problem", "warning"))]


registered = (
    registration.policies_stand, registration.webhook_exists, registration.mutating_as_shipped,
    registration.validating_as_shipped, registration.order_is_right,
)  # fmt: skip
of_kai_itself = (
    kai_checks.release_fits, kai_checks.sharing_is_on, kai_checks.label_is_read, kai_checks.kai_sees_the_pods,
)  # fmt: skip
namespaces = (
    policy_checks.namespaces_are_managed, policy_checks.enforce_is_enforced, policy_checks.labels_are_valid,
)  # fmt: skip
of_queues = (queues.queues_are_usable, queues.priorities_exist)

HEALTHY = [
    "ok: mutating webhook: kai-00-kaishare is as expected",
    "ok: validating webhooks: kai-00-kaishare is as expected",
    "ok: order: kai-00-kaishare is called before mutating-kai-admission",
    "ok: settings: published by the webhook",
    "ok: managed namespaces: 1: vision",
    "ok: policies: all labels are valid",
    "ok: queues: 1 queue that policies name: team-a",
    "ok: PodGroups: all PodGroups of managed namespaces are in their namespace's queue",
    "ok: limit ranges: no default for nvidia.com/gpu in managed namespaces",
    "ok: KAI's version: v0.13.4, as kaishare's --kai-version",
    "ok: KAI's GPU sharing: on, without memory limits (NonMemoryEnforced)",
    "ok: KAI's webhook: mutating-kai-admission; validating-kai-admission",
]


def test_a_healthy_cluster_has_no_problem() -> None:
    pure = [
        each
        for each in command.CHECKS
        if not inspect.isasyncgenfunction(each.run) and WELL.options.scope in each.scope
    ]
    lines = [line.removesuffix(" -> ") for check in pure for line in lines_of(check.run, WELL)]
    assert [line for line in lines if not line.startswith("unknown")] == HEALTHY


SIZED = namespace(
    "sized",
    annotations={"size.kaishare.dev/a": "app=web", "size.kaishare.dev/b": "app==web"},
    **{"size.kaishare.dev/a": "0.5", "size.kaishare.dev/b": "0.25"},
)
SELECTS_NOTHING = {"matchExpressions": [{"key": "never", "operator": "Exists"}]}
DEPARTMENT = queue("department", "")
CONTROL_PLANE = {"key": "control-plane", "operator": "DoesNotExist"}
FROM_NAMESPACES = "from the namespaces, or remove the requirement from the webhook configuration; if a platform adds it again, see docs/doctor.md"
HIDDEN = "hidden from pods.mutate.kaishare.dev, whose namespaceSelector requires"
MUTATE, VALIDATE = "pods.mutate.kaishare.dev", "pods.validate.kaishare.dev"
DIFFERS = f"problem: mutating webhook: {MUTATE} differs from this release"
SELECTOR = mutating().hooks[0].namespace_selector.requirements
EXPRESSIONS = [
    {"key": each.key, "operator": each.operator, **({"values": sorted(each.values)} if each.values else {})}
    for each in sorted(SELECTOR, key=str)
]
OTHER_KINDS = [*validating().hooks[:2], msgspec.structs.replace(validating().hooks[2], rules=[])]
WITHOUT_NAMES = [each for each in EXPRESSIONS if each["key"] != "kubernetes.io/metadata.name"]
MINE = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["mine"]}


def hidden_by(label: str, **labels: str) -> Namespace:
    """Return a managed namespace with a label of a platform."""
    place = namespace("a", **labels)
    return replace(place, labels={**place.labels, label: "yes"})


def selecting(selector: str, *more: dict[str, Any]) -> WebhookConfiguration:
    """Return kaishare's mutating configuration with more requirements, as a platform adds them."""
    expressions = mutating_configuration(SERVICE)["webhooks"][0][selector]["matchExpressions"]
    return mutating(**{selector: {"matchExpressions": [*expressions, *more]}})


def ours(hook: Any) -> ClusterFacts:
    return but(mutating=whole(hook, of_kai()))


def limit_range(namespace: str = "vision", **limits: Any) -> LimitRange:
    spec = {"limits": [{"type": "Container"}, {"type": "Container", **limits}]}
    return LIMIT_RANGES.decode(json.dumps(made("LimitRange", "limits", namespace, spec=spec)))


def sharing(labels: dict[str, str] | None = None, **changes: Any) -> ClusterFacts:
    """Return a cluster with a namespace that has a default share."""
    vision = namespace("vision", gpu_fraction="0.5", **(labels or {}))
    return but(**{"namespaces": whole(vision), "nodes": whole(), **changes})


def mig_node(**labels: str) -> ClusterNode:
    return ClusterNode(name="n0", gpus=7.0, labels={"nvidia.com/mig.strategy": "single"} | labels)


def rank(name: str, *gpu_groups: str, job: str = "pg") -> NotablePod:
    return NotablePod(f"vision/{name}", "", "4 ranks", ("vision", job), gpu_groups)


def device_class(name: str, resource: str) -> DeviceClass:
    spec = {"extendedResourceName": resource}
    return DEVICE_CLASSES.decode(json.dumps({"metadata": {"name": name}, "spec": spec}))


def group(place: str, queue: str = "team-a", owner: str = "") -> PodGroup:
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": "u"}] if owner else []
    metadata = {"name": "pg-door", "namespace": place, "ownerReferences": owners}
    return POD_GROUPS.decode(json.dumps({"metadata": metadata, "spec": {"queue": queue}}))


def grouped(*groups: PodGroup) -> ClusterFacts:
    modes = (namespace("vision"), namespace("strict", mode="enforce"), namespace("quiet", mode="observe"))
    return but(namespaces=whole(*modes), pod_groups=whole(*groups))


def unbound(
    annotations: dict[str, str], scheduler: str = "kai-scheduler", labels: Any = None, **changes: Any
) -> ClusterFacts:
    of_pod = {"annotations": annotations, "labels": labels or {}, "spec": {"schedulerName": scheduler}}
    return but(waiting=whole(PODS.decode(json.dumps(made("Pod", "web", "vision", **of_pod)))), **changes)


def synced(labels: dict[str, dict[str, str]], *with_pods: str) -> ClusterFacts:
    """Return namespaces with their labels, and those with pods of a vCluster's syncer."""
    pods = [PODS.decode(json.dumps(made("Pod", "p", name))) for name in with_pods]
    places = whole(*(namespace(name, **values) for name, values in labels.items()))
    return but(namespaces=places, synced=whole(*pods))


def webhook_pod(name: str, *, ready: bool, deleted: bool = False) -> Pod:
    waiting = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no image"}}}
    conditions = [{"type": "Ready", "status": str(ready)}]
    status = {"conditions": conditions, "containerStatuses": [] if ready else [waiting]}
    deletion = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    return PODS.decode(json.dumps(made("Pod", name, "kaishare", metadata=deletion, status=status)))


def releases(tag: str, option: str | None) -> ClusterFacts:
    return but(installation=installed(tag=tag), running=running(option))


def observed(default_mode: Mode, **labels: str) -> ClusterFacts:
    """Return a cluster whose webhook has a --default-mode."""
    place = namespace("a", **labels)
    policy = place.metadata.policy("a", default_mode)
    return but(namespaces=whole(replace(place, policy=policy)), running=running(default_mode=default_mode))


def written(labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None) -> Namespace:
    """Return a namespace as doctor reads it; managed without labels."""
    own = {QUEUE: "team-a"} if labels is None else labels
    own = {NAME: "a", **own}
    metadata = {"name": "a", "labels": own, "annotations": annotations or {}}
    read = cluster_state.read_namespace(Mode.DEFAULT, json.dumps({"metadata": metadata}).encode())
    return read or Namespace("a", own, NO_METADATA, None)


def labelled(memory: str | None = None) -> ClusterNode:
    labels = {"nvidia.com/gpu.present": "true"} | (
        {} if memory is None else {"nvidia.com/gpu.memory": memory}
    )
    return ClusterNode(name="n0", labels=labels)


BATCH = KAI_CONDITION.replace("kai-scheduler", "batch-scheduler")


def matching(expression: str, name: str = "a-batch") -> WebhookConfiguration:
    """Return a configuration with a matchCondition, whose Service is not KAI's."""
    service = {"name": "batch", "namespace": "batch-system", "path": "/mutate"}
    conditions = [{"name": "own", "expression": expression}]
    return of_kai(name, clientConfig={"service": service}, matchConditions=conditions)


NAME = "kubernetes.io/metadata.name"
TEAMS = whole(namespace("a"), namespace("e", mode="enforce"), namespace("o", mode="observe"))
SETTING = whole(namespace("a", framework_memory="set"))
OTHERS = "KAI's GPU sharing: on, without memory limits (NonMemoryEnforced), but the webhook gives no shares"
FITS_NOT = "it gives shares to containers that are not the first of their pod, which v0.9.8 does not support: the first container gets the GPU; gives shares to pods with a dot in the name, which v0.9.8 refuses; warns of a share beside the GPUs of a sidecar or init container, which v0.9.8 admits; warns of fractions such as 0x1p-1, which v0.9.8 admits"
KEEPS = "it keeps shares from pods whose GPU container is not the first, which v0.17.0 supports; keeps shares from pods with a dot in the name, which v0.17.0 accepts"


def by_name(operator: str, *names: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": NAME, "operator": operator, "values": list(names)}]}


FAULTS: list[tuple[Check, ClusterFacts, str | list[str]]] = [
    # namespaces and their labels
    (namespaces, but(namespaces=whole()), "warning: managed namespaces: none"),
    (namespaces, but(namespaces=whole(), namespace="a"), "warning: managed namespaces: a lacks the label kai.scheduler/queue: kaishare leaves its pods alone -> kubectl label namespace a"),
    (namespaces, but(namespaces=whole(namespace("a", mode="off"))), "warning: managed namespaces: a: switched off"),
    (namespaces, but(namespaces=whole(namespace("gpu-operator"))), "warning: managed namespaces: gpu-operator: labelled, but excluded by the webhook configuration"),
    (namespaces, but(mutating=whole(mutating(namespaceSelector=SELECTS_NOTHING))), f"problem: managed namespaces: vision: {HIDDEN} never Exists -> set the label never on the namespaces, or remove"),
    (namespaces, but(namespaces=whole(namespace("a", mode="enforce")), validating=whole()), "problem: enforce: a: kaishare.dev/mode=enforce, but no validating"),
    (namespaces, but(namespaces=whole(namespace("a", mode="enforce")), validating=whole(validating(namespaceSelector=SELECTS_NOTHING))), "problem: enforce: a"),
    (namespaces, but(namespaces=whole(namespace("a", mode="enforce")), validating=UNREAD), ""),
    (namespaces, but(namespaces=whole(namespace("a", mode="enforce"))), ""),
    (namespaces, but(namespaces=whole(namespace("a", gpu_fraction="2"))), 'problem: policies: a: kaishare.dev/gpu-fraction: "2" is not allowed'),
    (namespaces, but(namespaces=whole(namespace("vision"), namespace("a", **{QUEUE: "-"}, mode="observe"))), "warning: policies: a: kaishare labels have no effect without"),
    (namespaces, but(namespaces=whole(namespace("vision"), namespace("a", **{QUEUE: "-"}, over_share="evict"))), ""),
    (namespaces, but(namespaces=whole(*(namespace(f"n{number}", gpu_fraction="2") for number in range(30)))), "problem: policies: n0:"),
    (namespaces, but(namespaces=whole(written(annotations={"kaishare.dev/mode": "off", "kaishare.io/mode": "off"}))), [
        "warning: policies: a: the annotation kaishare.dev/mode has no effect here: it must be a label",
        "warning: policies: a: the annotation kaishare.io/mode has no effect; the nearest prefix is kaishare.dev/",
    ]),
    (namespaces, but(namespaces=whole(written({"kai-scheduler/queue": "a"}), namespace("vision"))), ["warning: policies: a: the label kai-scheduler/queue has no effect; the nearest prefix is kai.scheduler/"]),
    (namespaces, but(namespaces=whole(written({"team": "a"}, {"team/mode": "off", "kaishare.dev/queues": "a"}), namespace("vision"))), "ok: policies: all labels are valid"),
    (namespaces, but(namespaces=whole(SIZED)), "warning: policies: sized (a and b: the same selector): a pod that both sizes select gets no share"),
    (namespaces, but(namespaces=UNREAD), ""),
    (namespaces, but(mutating=whole(selecting("namespaceSelector", CONTROL_PLANE)), namespaces=whole(hidden_by("control-plane"), namespace("b"))), f"problem: managed namespaces: a: {HIDDEN} control-plane DoesNotExist -> remove the label control-plane {FROM_NAMESPACES}"),
    (namespaces, but(mutating=whole(selecting("namespaceSelector", {"key": "team/x", "operator": "NotIn", "values": ["b", "a"]})), namespaces=whole(namespace("a", **{"team/x": "b"}))), f"problem: managed namespaces: a: {HIDDEN} team/x NotIn [a, b] -> remove the label team/x {FROM_NAMESPACES}"),
    (namespaces, but(mutating=whole(selecting("objectSelector", {"key": "team/x", "operator": "Exists"}))), "problem: managed namespaces: pods are hidden from pods.mutate.kaishare.dev: its objectSelector requires team/x Exists -> remove the requirement from the configuration, or label the pods; if a platform"),
    (namespaces, but(validating=whole(validating(namespaceSelector={"matchExpressions": [CONTROL_PLANE]})), namespaces=whole(hidden_by("control-plane", mode="enforce"))), f"problem: enforce: a: hidden from {VALIDATE}, whose namespaceSelector requires control-plane DoesNotExist -> remove the label control-plane {FROM_NAMESPACES}"),
    (namespaces, observed(Mode.OBSERVE), "ok: managed namespaces: a: mode observe, by --default-mode of the webhook"),
    (namespaces, observed(Mode.OFF), ["warning: managed namespaces: a: mode off, by --default-mode of the webhook"]),
    (namespaces, observed(Mode.OBSERVE, mode="off"), ["warning: managed namespaces: a: switched off by kaishare.dev/mode=off"]),
    # policies that decide instead of the webhook
    (registered, alone(by_policies(), namespaces=TEAMS), "ok: admission policies: as expected; the API server decides"),
    (namespaces, alone(by_policies(), namespaces=TEAMS), "ok: enforce: 1 namespace: e"),
    (registered, alone(by_policies(mutate=by_name("NotIn", "mine"), validate_pods=by_name("NotIn", "mine")), namespaces=TEAMS), ""),
    (registered, alone(replace(by_policies(), mutating_bindings=whole())), ["problem: admission policies: not as this release makes them: MutatingAdmissionPolicyBinding kaishare (missing)"]),
    (registered, alone(by_policies(variables={"isRank": "true"})), ["problem: admission policies: not as this release makes them: MutatingAdmissionPolicy kaishare -> upgrade the chart with webhook.kind=policy"]),
    *(
        (check, alone(by_policies(**{policy: added}), namespaces=TEAMS), [expected])  # type: ignore[arg-type]
        for added in ({"matchLabels": {"team/x": "yes"}}, by_name("In", "only-this"), {"matchExpressions": [{"key": NAME, "operator": "DoesNotExist"}]})
        for check, policy, expected in (
            (registered, "mutate", "problem: admission policies: not as this release makes them: MutatingAdmissionPolicy kaishare -> "),
            (registered, "validate_pods", "problem: admission policies: not as this release makes them: ValidatingAdmissionPolicy kaishare-pods -> "),
            (namespaces, "mutate", "problem: managed namespaces: a, e: hidden from MutatingAdmissionPolicy kaishare, whose namespaceSelector requires "),
            (namespaces, "validate_pods", "problem: enforce: e: hidden from ValidatingAdmissionPolicy kaishare-pods, whose namespaceSelector requires "),
        )
    ),
    (namespaces, alone(by_policies(mutate=by_name("NotIn", "a")), namespaces=TEAMS), ["warning: managed namespaces: a: labelled, but excluded by the admission policy"]),
    (namespaces, alone(by_policies(validate_pods=by_name("NotIn", "e")), namespaces=TEAMS), ["problem: enforce: e: hidden from ValidatingAdmissionPolicy kaishare-pods, "]),
    (registered, but(admission=by_policies()), ["warning: admission policies: the webhook and admission policies both stand"]),
    # before the installation
    *(
        (policy_checks.namespaces_would_be_managed, but(namespaces=whole(*places), running=running(default_mode=mode)), expected)
        for places, mode, expected in (
            ((namespace("a", **{QUEUE: "-"}, mode="observe"), namespace("kube-system"), namespace("b", mode="observe")), Mode.DEFAULT, "ok: managed namespaces: no namespace has the label kai.scheduler/queue without a label of kaishare"),
            ((namespace("b", **{"size.kaishare.dev/a": "0.5"}),), Mode.DEFAULT, "ok: managed namespaces: no namespace has"),
            ((namespace("b"), namespace("a")), Mode.DEFAULT, ["warning: managed namespaces: 2 namespaces with kai.scheduler/queue and no label of kaishare: a, b; the webhook would"]),
            ((namespace("a"),), Mode.OBSERVE, "ok: managed namespaces: 1 namespace with kai.scheduler/queue and no label of kaishare: a; their mode would be observe"),
        )
    ),
    (policy_checks.namespaces_would_be_managed, but(namespaces=UNREAD), ""),
    *(
        (registration.kubernetes_is_supported, but(release=release), expected)
        for release, expected in (((1, 30), "ok: API server: Kubernetes 1.30"), ((2, 0), "ok: "), ((1, 9), "problem: API server: Kubernetes 1.9: kaishare needs 1.30 or later"), (None, "unknown: API server: its release"))
    ),
    # queues
    (of_queues, but(queues=whole(DEPARTMENT)), "problem: queues: the queue team-a does not exist (for vision) -> create the queue, or name an existing one"),
    (of_queues, but(queues=part(DEPARTMENT)), "unknown: queues: not all queues could be read: 1 queue not checked (team-a)"),
    (of_queues, but(queues=part(queue("team-a"), queue("below", "team-a"))), "problem: queues: the queue team-a has child queues (below), and"),
    (of_queues, but(queues=part(DEPARTMENT, queue("team-a"))), ""),
    (of_queues, but(queues=whole(DEPARTMENT), namespaces=whole(namespace("a", mode="off"))), ""),
    (of_queues, but(queues=whole(), namespaces=whole(namespace("a", **{QUEUE: "Not A Queue"}))), ""),
    (of_queues, but(queues=UNREAD), ""),
    (of_queues, but(queues=whole(queue("team-a", "")), installation=installed(tag="v0.16.4")), "problem: queues: the queue team-a has no parent queue: before v0.16.5 KAI's scheduler crashes"),
    (of_queues, but(queues=whole(queue("team-a", "")), installation=installed(tag="v0.16.5")), ""),
    (of_queues, but(queues=UNSERVED), "unknown: queues: not checked: the API server serves no queues -> install KAI; inside a vCluster"),
    (of_queues, but(namespaces=whole(namespace("vision", priority="nowhere"))), 'warning: priorities: PriorityClass "nowhere" (for vision) does not exist'),
    (of_queues, but(namespaces=whole(namespace("vision", priority="train"))), ""),
    (of_queues, but(namespaces=whole(namespace("vision", priority="nowhere")), priorities=UNREAD), ""),
    (queues.waiting_pods_have_queues, unbound({}, labels={QUEUE: "gone"}), ["problem: queues: the queue gone does not exist; pods wait: vision/web -> create the queue"]),
    (queues.queues_can_be_named, but(queues=whole(queue("root", ""), queue("mid", "root"), queue("b", "mid"), queue("a", "root"), queue("lost", "gone"))), "ok: queues: 2 queues that namespaces can name: a, b"),
    (queues.queues_can_be_named, but(queues=whole(queue("root", ""))), "warning: queues: namespaces can name no queue"),
    (queues.queues_can_be_named, but(queues=UNSERVED), ""),
    (queues.queues_can_be_named, but(queues=part(queue("a", "b"))), ""),
    # PodGroups
    *(
        (queues.groups_are_in_their_queue, grouped(*groups), "ok: PodGroups: all PodGroups of managed namespaces are in")
        for groups in ((), (group("vision"),), (group("strict"),), (group("quiet", "queue-b"),), (group("elsewhere", "b"),))
    ),
    (queues.groups_are_in_their_queue, grouped(group("vision", "queue-b", "door")), ["warning: PodGroups: 1 PodGroup in another queue than the namespace's: vision/pg-door in \"queue-b\" of ConfigMap door -> delete these PodGroups, or their owners, before kaishare.dev/mode=enforce"]),
    *(
        (queues.groups_are_in_their_queue, grouped(group("strict", name), group("vision")), [f'problem: PodGroups: 1 PodGroup in another queue than the namespace\'s, under mode enforce: strict/pg-door in "{name}" -> delete the objects that own them, with their pods'])
        for name in ("queue-b", "")
    ),
    (queues.groups_are_in_their_queue, but(pod_groups=part()), ""),
    # LimitRanges
    (policy_checks.no_gpu_by_default, but(limit_ranges=whole(limit_range(default={"nvidia.com/gpu": "1"}))), "warning: limit ranges: 1 LimitRange with a default for nvidia.com/gpu: vision/limits."),
    (policy_checks.no_gpu_by_default, but(limit_ranges=whole(limit_range(defaultRequest={"nvidia.com/gpu": 0}))), "warning: limit ranges: 1 LimitRange"),
    (policy_checks.no_gpu_by_default, but(limit_ranges=whole(limit_range(default={"cpu": "1"}, max={"nvidia.com/gpu": "1"}))), "ok: limit ranges"),
    (policy_checks.no_gpu_by_default, but(limit_ranges=whole(limit_range("unmanaged", default={"nvidia.com/gpu": "1"}))), "ok: limit ranges"),
    (policy_checks.no_gpu_by_default, but(limit_ranges=UNREAD), ""),
    # vClusters
    (policy_checks.hosts_are_labelled, synced({"host": {"vcluster": "true"}}, "host"), ""),
    (policy_checks.hosts_are_labelled, synced({"host": {"vcluster": "true"}}, "host", "team-b", "team-a"), ["warning: vClusters: pods of team-a, team-b have vCluster's keys, which count as a tenant's own words without the label kaishare.dev/vcluster -> if a vCluster runs there: kubectl label namespace team-a team-b kaishare.dev/vcluster=true"]),
    (policy_checks.hosts_are_labelled, synced({"host": {"mode": "enforce"}}, "host"), ["problem: vClusters: pods of host have vCluster's keys, which count as a tenant's own words without the label kaishare.dev/vcluster; mode enforce denies such pods in host"]),
    # webhook configurations
    (registered, but(mutating=whole(of_kai())), ['problem: mutating webhook: MutatingWebhookConfiguration "kai-00-kaishare" does not exist: kaishare is called for no pod']),
    (registered, but(validating=whole(), name="other"), ['problem: validating webhooks: ValidatingWebhookConfiguration "other" does not exist']),
    *(
        (registered, cluster, [f"{expected} -> upgrade the chart"] if expected else [])
        for cluster, expected in (
            (ours(mutating(reinvocationPolicy="Never")), f"{DIFFERS}: reinvocationPolicy"),
            (ours(mutating(matchConditions=[{"name": "no-mirror-pod", "expression": "true"}])), f"{DIFFERS}: matchConditions"),
            (ours(mutating(objectSelector={})), f"{DIFFERS}: objectSelector"),
            (ours(mutating(namespaceSelector={})), f"{DIFFERS}: namespaceSelector"),
            (ours(mutating(rules=[])), f"{DIFFERS}: rules"),
            (ours(mutating(clientConfig={"url": "https://a/"}, failurePolicy="Fail")), f"{DIFFERS}: failurePolicy, path"),
            (ours(mutating(failurePolicy="Fail", timeoutSeconds=10)), f"warning: mutating webhook: {MUTATE} differs from this release: failurePolicy, timeoutSeconds"),
            (ours(mutating(name="x.y.z")), f"problem: mutating webhook: {MUTATE} is missing from kai-00-kaishare"),
            (but(validating=whole(validating(failurePolicy="Ignore"))), f"warning: validating webhooks: {VALIDATE} differs from this release: failurePolicy"),
            (but(validating=whole(validating(matchConditions=[]))), f"problem: validating webhooks: {VALIDATE} differs from this release: matchConditions"),
            # the administrator's kinds of workloads, or none
            *((but(validating=whole(msgspec.structs.replace(validating(), webhooks=hooks))), "") for hooks in (OTHER_KINDS, OTHER_KINDS[:2])),
            # another order, requirements of a platform, and other excluded namespaces
            *(
                (ours(mutating(namespaceSelector={"matchExpressions": expressions})), "")
                for expressions in (EXPRESSIONS, [*EXPRESSIONS, {"key": "a", "operator": "Exists"}], [*WITHOUT_NAMES, MINE], WITHOUT_NAMES)
            ),
        )
    ),
    (registered, but(mutating=whole(of_kai()), validating=whole()), ["problem: installation: kaishare's webhook is not installed here: no configuration kai-00-kaishare exists"]),
    (registered, but(mutating=whole(of_kai()), validating=UNREAD), ['problem: mutating webhook: MutatingWebhookConfiguration "kai-00-kaishare" does not exist']),
    (registered, but(mutating=UNREAD, validating=UNREAD), []),
    (registered, ours(mutating("zz-kaishare")), ["problem: order: mutating-kai-admission is called before zz-kaishare"]),
    # their order
    (registration.order_is_right, but(mutating=whole(mutating("zz"), of_kai()), name="zz"), "problem: order: mutating-kai-admission is called before zz and matches on schedulerName"),
    (registration.order_is_right, but(mutating=whole(mutating(), of_kai("a-kai"))), "problem: order: a-kai is called before kai-00-kaishare"),
    (registration.order_is_right, but(mutating=whole(mutating(), of_kai("a-kai", "", reinvocationPolicy="Never"))), "problem: order: a-kai is called before kai-00-kaishare and only once"),
    (registration.order_is_right, but(mutating=whole(mutating(), of_kai("kai-binder", "", reinvocationPolicy="Never"))), ""),
    (registration.order_is_right, but(mutating=whole(mutating(), of_kai("a-kai", ""))), ""),  # up to v0.12 it is called again
    (registration.order_is_right, but(mutating=whole(mutating("zz"), of_kai("m"), other("kai-pod-mutation", reinvocationPolicy="Never")), name="zz"), "problem: order: m is called before zz"),
    (registration.order_is_right, but(mutating=whole(mutating(), other("sidecar-injector"))), ""),
    (registration.order_is_right, but(mutating=whole(mutating(), other("sidecar-injector")), installation=installed(tag="v0.9.8")), "warning: order: sidecar-injector changes pods after kaishare"),
    (registration.order_is_right, but(mutating=whole(mutating(), other("sidecar-injector")), installation=None), "warning: order: sidecar-injector changes pods after kaishare"),
    (registration.order_is_right, but(mutating=whole(mutating(), matching(BATCH)), namespaces=whole(namespace("a", scheduler="batch-scheduler"))), "problem: order: a-batch is called before kai-00-kaishare"),
    # the webhook's pods and settings
    (serving.webhook_pods_are_ready, but(webhook_pods=whole(webhook_pod("a", ready=True), webhook_pod("b", ready=False))), ["warning: webhook pods: b is not ready: ImagePullBackOff: no image; 1 pod ready -> kubectl -n kaishare describe pod b"]),
    (serving.webhook_pods_are_ready, but(webhook_pods=whole(webhook_pod("b", ready=False), webhook_pod("c", ready=True, deleted=True))), ["problem: webhook pods: b is not ready"]),
    (serving.webhook_pods_are_ready, but(webhook_pods=whole(webhook_pod("a", ready=True))), "ok: webhook pods: 1 pod ready"),
    (policy_checks.settings_are_published, alone(by_policies(), running=running()), "ok: settings: published by the chart"),
    (policy_checks.settings_are_published, but(running=RunningSettings(unpublished="ConfigMap x: it does not exist")), "unknown: settings: the webhook's settings are not known: ConfigMap x: it does not exist -> give --default-mode"),
    # KAI
    (kai_checks.release_fits, releases("v0.17.0", "0.17.0"), "ok: KAI's version: v0.17.0, as kaishare's --kai-version"),
    (kai_checks.release_fits, releases("v0.9.8", "0.17.0"), f"problem: KAI's version: KAI is v0.9.8, and kaishare runs with --kai-version v0.17.0; {FITS_NOT} -> install kaishare with kaiVersion=v0.9.8 (--kai-version)"),
    (kai_checks.release_fits, releases("v0.13.4", "0.9.8"), "problem: KAI's version: KAI is v0.13.4, and kaishare runs with --kai-version v0.9.8; it keeps shares from pods whose GPU container is not the first, which v0.13.4 supports; does not warn of a share beside the GPUs of a sidecar or init container, which v0.13.4 refuses"),
    (kai_checks.release_fits, releases("v0.13.4", "0.13.0"), "warning: KAI's version: KAI is v0.13.4, and kaishare runs with --kai-version v0.13.0; its answers are the same"),
    (kai_checks.release_fits, releases("v0.17.0", None), f"warning: KAI's version: KAI is v0.17.0, and kaishare's --kai-version is unset; {KEEPS}"),
    (kai_checks.release_fits, releases("v0.9.8", None), "warning: KAI's version: KAI is v0.9.8, and kaishare's --kai-version is unset; its answers are the same -> install kaishare with kaiVersion=v0.9.8"),
    (kai_checks.release_fits, releases("latest", None), "unknown: KAI's version: version not found in image tags: example.invalid/admission:latest; kaishare's --kai-version is unset"),
    (kai_checks.release_fits, but(running=UNKNOWN_SETTINGS), "unknown: KAI's version: v0.13.4; kaishare's --kai-version is not known"),
    (kai_checks.release_fits, but(mutating=whole(), validating=whole(), running=UNKNOWN_SETTINGS), "ok: KAI's version: v0.13.4; install kaishare with kaiVersion=v0.13.4 (--kai-version)"),
    (kai_checks.release_fits, but(installation=Installation.seen_in(())), "unknown: KAI's version: no KAI pods found in namespace kai-scheduler -> install KAI"),
    (kai_checks.release_fits, but(installation=Installation({**installed().programs, **installed(program="binder", tag="v0.17.0").programs})), "problem: KAI's version: v0.13.4 and v0.17.0 are installed together"),
    (kai_checks.release_fits, alone(by_policies(), installation=installed(tag="v0.17.0"), running=running("0.17.0")), "ok: KAI's version: v0.17.0, as kaishare's --kai-version"),
    (kai_checks.release_fits, alone(by_policies(), installation=installed(tag="v0.9.8"), running=running("0.17.0")), "problem: KAI's version: KAI is v0.9.8, and kaishare runs with --kai-version v0.17.0; it gives shares to containers that are not the first of their pod, which v0.9.8 does not support: the first container gets the GPU; gives shares to pods with a dot in the name, which v0.9.8 refuses -> install"),
    (kai_checks.release_fits, alone(by_policies()), "unknown: KAI's version: v0.13.4; kaishare's --kai-version is not known"),
    (of_kai_itself, but(installation=installed()), "warning: KAI's GPU sharing: GPU sharing is off in KAI, which refuses every pod with a share -> install KAI with global.gpuSharing=true"),
    (of_kai_itself, but(installation=installed(), namespaces=whole(namespace("a", gpu_fraction="0.5"))), "problem: KAI's GPU sharing: GPU sharing is off in KAI, which refuses every pod with a share; policies give shares to pods of a -> install KAI with global.gpuSharing=true, or kaishare with webhook.injectShares=false"),
    (of_kai_itself, but(installation=installed(), running=running(inject_shares=False), namespaces=whole(namespace("a", gpu_fraction="0.5"))), ""),
    (of_kai_itself, but(running=running(inject_shares=False)), f"warning: {OTHERS}"),
    # KAI's Config counts, else the flags of its pods; both by the function that the webhook uses
    *(
        (of_kai_itself, but(configured_modes=config, installation=installation), expected)
        for config, installation, expected in (
            (Fact(frozenset({SharingMode.HAMI_CORE})), WELL.installation, "ok: KAI's GPU sharing: on, with limits enforced by HAMi-core"),
            (Fact(frozenset({SharingMode.HAMI_CORE})), None, "ok: KAI's GPU sharing: on, with limits enforced by HAMi-core"),
            (Fact(frozenset({SharingMode.HAMI_CORE, SharingMode.NON_MEMORY_ENFORCED})), WELL.installation, "unknown: KAI's GPU sharing: KAI's kai-config, or the pods of its admission, name several modes: HamiCore and NonMemoryEnforced"),
            (Fact(frozenset()), WELL.installation, "ok: KAI's GPU sharing: on, without memory limits"),
            (UNREAD, WELL.installation, "ok: KAI's GPU sharing: on, without memory limits"),
        )
    ),
    (of_kai_itself, but(running=running(gpu_sharing_mode=SharingMode.HAMI_CORE)), "problem: KAI's GPU sharing: KAI's mode is NonMemoryEnforced, and the webhook's HamiCore -> install kaishare with webhook.gpuSharingMode=NonMemoryEnforced"),
    (of_kai_itself, but(namespaces=SETTING), "warning: KAI's GPU sharing: the webhook does not know KAI's mode, NonMemoryEnforced: kaishare.dev/framework-memory=set of a has no effect -> install kaishare with webhook.gpuSharingMode=NonMemoryEnforced"),
    (of_kai_itself, but(namespaces=SETTING, running=running(gpu_sharing_mode=SharingMode.NON_MEMORY_ENFORCED)), ""),
    (of_kai_itself, but(namespaces=SETTING, running=running(gpu_sharing_mode=SharingMode.HAMI_CORE), installation=installed("--gpu-sharing-enabled", "--hami-core-enabled")), "warning: KAI's GPU sharing: kaishare.dev/framework-memory=set of a has no effect in mode HamiCore"),
    (of_kai_itself, but(installation=installed(program="scheduler")), "unknown: KAI's GPU sharing: no pod of KAI's admission found in kai-scheduler"),
    (of_kai_itself, but(mutating=whole(mutating(), of_kai(namespaceSelector=SELECTS_NOTHING))), "problem: KAI's webhook: mutating-kai-admission does not select vision"),
    (of_kai_itself, but(mutating=whole(mutating(), of_kai(condition=KAI_CONDITION.replace("kai-", "my-")))), 'problem: KAI\'s webhook: matches only pods of my-scheduler, but the policies of vision set the scheduler "kai-scheduler"'),
    (of_kai_itself, but(namespaces=whole(namespace("a", scheduler="mine"))), "problem: KAI's webhook: matches only pods of kai-scheduler, but the policies of a"),
    (of_kai_itself, but(mutating=whole(mutating(), of_kai(condition="")), namespaces=whole(namespace("a", scheduler="mine"))), ""),
    (of_kai_itself, but(mutating=whole(mutating())), "unknown: KAI's webhook: not registered here; inside a vCluster it is registered on the host"),
    (of_kai_itself, but(installation=None, mutating=UNREAD), ""),
    (of_kai_itself, but(mutating=whole(matching(BATCH), mutating(), of_kai())), ""),
    (of_kai_itself, but(installation=installed("--queue-label-key", "a/b", program="podgrouper")), "problem: KAI's queue label: KAI reads a pod's queue from the label a/b and ignores"),
    # pods that KAI's webhook missed
    (kai_checks.kai_saw_the_pods, unbound({"gpu-fraction": "0.5"}), "problem: pods without KAI's webhook: 1 pod was created without KAI's webhook, which prepares pods for a share: KAI can never bind such a pod: vision/web -> delete and create again"),
    (kai_checks.kai_saw_the_pods, unbound({"gpu-fraction": "0.5", "runai/shared-gpu-configmap": "web-abc-shared-gpu"}), ""),
    (kai_checks.kai_saw_the_pods, unbound({}), ""),
    (kai_checks.kai_saw_the_pods, unbound({"gpu-fraction": "0.5"}, "default-scheduler"), ""),
    (kai_checks.kai_saw_the_pods, unbound({"gpu-fraction": "0.5"}, installation=installed("--nv-fractions-enabled=true")), ""),
    # GPUs that are not plain
    (gpus_are_plain, sharing(), "ok: plain GPUs: nothing makes nvidia.com/gpu anything but a whole GPU"),
    (gpus_are_plain, but(nodes=whole(mig_node()), namespaces=whole(namespace("vision"))), []),
    (gpus_are_plain, sharing(nodes=whole(mig_node())), "warning: plain GPUs: 1 node offers MIG devices as nvidia.com/gpu (nvidia.com/mig.strategy=single): n0; KAI gives no shares there"),
    (gpus_are_plain, sharing(nodes=whole(mig_node(**{"nvidia.com/mig.strategy": "none", "nvidia.com/gpu.product": "A100-MIG-1g.5gb"}))), "warning: plain GPUs: 1 node offers MIG"),
    (gpus_are_plain, sharing(nodes=whole(ClusterNode(name="dra", gpus=0.0, labels={"nvidia.com/gpu.present": "true"}))), "warning: plain GPUs: GPUs that DRA allocates: node dra without nvidia.com/gpu; KAI places no share"),
    (gpus_are_plain, sharing(nodes=whole(ClusterNode(name="mixed", gpus=0.0, labels={"nvidia.com/mig-1g.5gb.count": "7"}))), "ok: plain GPUs"),
    (gpus_are_plain, sharing(device_classes=whole(device_class("gpu", "nvidia.com/gpu"), device_class("other", "example.com/x"))), "warning: plain GPUs: GPUs that DRA allocates: DeviceClass gpu; KAI"),
    (gpus_are_plain, sharing(limit_ranges=whole(limit_range(max={"nvidia.com/gpu": "1"}), limit_range("other", min={"nvidia.com/gpu": "1"}))), ["warning: plain GPUs: 1 LimitRange with a minimum or maximum for nvidia.com/gpu: vision/limits; pods keep their whole GPU"]),
    (gpus_are_plain, sharing({"vcluster": "true"}), "warning: plain GPUs: vision: pods that a vCluster's syncer made keep their whole GPU"),
    (gpus_are_plain, sharing({"vcluster": "true"}, release=(1, 34)), "ok: plain GPUs"),
    (gpus_are_plain, sharing(notable=whole(NotablePod("vision/a", "runtime-class"), NotablePod("vision/b", "runtime-class"))), ["warning: plain GPUs: 2 pods with a share that a new pod would not get (runtime-class): vision/a, vision/b"]),
    (gpus_are_plain, sharing(nodes=UNREAD), ""),
    # ranks of distributed jobs
    (ranks_are_apart, but(notable=whole(rank("a", "g"), rank("b", "g"), rank("c", "h"))), ["warning: distributed jobs: 2 ranks on a GPU with another rank of the job: vision/a (4 ranks), vision/b (4 ranks)"]),
    (ranks_are_apart, but(notable=whole(rank("a", "g"), rank("b"), rank("c", "g", job="other"), rank("d", "h", job=""), rank("e", "h", job=""))), "ok: distributed jobs: no GPU has two ranks of a job; 1 rank with whole GPUs"),
    (ranks_are_apart, but(notable=part(rank("a", "g"))), []),
    (run_ai_keys, but(waiting=UNREAD), []),
    # kai-resource-management
    (resource_management, WELL, []),
    (resource_management, but(mutating=whole(mutating(), other("kai-pod-group-mutation"))), ["warning: kai-resource-management: kai-resource-management assigns queues here (webhook kai-pod-group-mutation)"]),
    (resource_management, but(mutating=whole(mutating(), other("kai-pod-mutation")), admission=admission(rendered())), ["problem: kai-resource-management: kai-resource-management assigns queues here (webhook kai-pod-mutation), which the guard refuses"]),
    # nodes
    (nodes_are_labelled, but(nodes=UNREAD), ""),
    (nodes_are_labelled, but(nodes=whole()), "unknown: node labels: no node has GPUs"),
    (nodes_are_labelled, but(nodes=whole(labelled("23028"))), "ok: node labels: 1 node with GPUs has both labels"),
    *(
        (nodes_are_labelled, but(nodes=whole(node, labelled("23028"))), [f"warning: node labels: 1 node with GPUs lacks a valid label: n0 ({faults}); the agent's DaemonSet selects nodes by nvidia.com/gpu.present, and without nvidia.com/gpu.memory KAI assumes 100 MiB"])
        for node, faults in (
            (labelled(), "no nvidia.com/gpu.memory"),
            (ClusterNode(name="n0"), "no nvidia.com/gpu.present=true; no nvidia.com/gpu.memory"),
            (labelled("0"), "nvidia.com/gpu.memory: 0 MiB is less than the 100 MiB KAI counts in"),
            (labelled("abc"), 'nvidia.com/gpu.memory: "abc" is not a number of MiB'),
            (labelled(""), 'nvidia.com/gpu.memory: "" is not a number of MiB'),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "cluster", "expected"), FAULTS)
def test_a_fault_is_found(check: Check, cluster: ClusterFacts, expected: str | list[str]) -> None:
    """`expected` begins the first finding that is no `ok`, or any `ok` or unknown one; a list has them all."""
    lines = bad(check, cluster)
    if isinstance(expected, list):
        assert len(lines) == len(expected), lines
        assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines
    elif expected.startswith(("ok", "unknown")):
        assert any(line.startswith(expected) for line in lines_of(check, cluster)), lines_of(check, cluster)
    else:
        assert bool(lines) is bool(expected), lines
        assert "".join(lines[:1]).startswith(expected), lines


def test_thousands_of_bad_labels_make_a_short_report() -> None:
    many = [namespace(f"namespace-{number:05}", gpu_fraction="2", mode="x") for number in range(3000)]
    lines = bad(namespaces, but(namespaces=whole(*many)))
    assert len(lines) == 11
    assert lines[-1].startswith("problem: policies: and 5990 more invalid labels or selectors")
    assert max(map(len, lines)) < 300


def test_a_queue_that_was_not_read_is_not_reported_as_ok() -> None:
    managed = whole(*(namespace(f"of-{name}", None, **{QUEUE: name}) for name in "abc"))
    read = part(DEPARTMENT, queue("a-1", "a"), queue("b"), queue("c", "not-read"))
    assert lines_of(queues.queues_are_usable, but(queues=read, namespaces=managed)) == [
        "unknown: queues: not all queues could be read: 2 queues not checked (a, c) -> ",
        "ok: queues: 1 queue that policies name: b -> ",
    ]


@pytest.mark.parametrize(
    "kind",
    ["MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"],
)
def test_a_kind_that_could_not_be_read_is_neither_missing_nor_as_expected(kind: str) -> None:
    cluster = alone(by_policies(unread=[kind]), namespaces=TEAMS)
    assert bad(registered, cluster) + bad(namespaces, cluster) == []
    assert not any(": admission policies: " in line for line in lines_of(registered, cluster))


def test_what_excludes_a_namespace() -> None:
    cluster = ours(mutating(namespaceSelector={"matchExpressions": [*WITHOUT_NAMES, MINE]}))
    assert replace(cluster, running=UNKNOWN_SETTINGS).excluded == {"mine"}
    assert cluster.excluded > {"mine", "kube-system"}, "the webhook excludes its own names as well"


@pytest.mark.parametrize("suffix", ["", "-queue-label-selector"])
def test_the_operators_configuration_is_read(suffix: str) -> None:
    folder = folder_from("KAISHARE_FIXTURES", "the objects that KAI's operator wrote")
    file = folder / "kai-live-v0.13.4" / f"operator-mutating-kai-admission{suffix}.json"
    recorded = configuration(json.loads(file.read_text()))
    assert recorded.is_served_by_kai
    assert recorded.scheduler_names == {"kai-scheduler"}
    assert recorded.matches_on_scheduler_name
    selector = recorded.hooks[0].namespace_selector
    assert selector.matches({NAME: "vision"}) is (suffix == "")
    assert selector.matches({NAME: "vision", QUEUE: "a"})
    assert not selector.matches({NAME: "kube-system", QUEUE: "a"})


@pytest.mark.parametrize(
    ("resource", "amount", "has_gpus"),
    [
        ("nvidia.com/gpu", "4", True),
        ("nvidia.com/gpu", "0", False),
        ("nvidia.com/mig-1g.10gb", "7", True),
        ("nvidia.com/gpu.shared", "16", True),
        ("nvidia.com/a100", "8", True),
        ("nvidia.com/hostdev", "2", False),
        ("amd.com/gpu", "4", False),
    ],
)
def test_a_node_has_gpus_by_any_resource_of_nvidia(resource: str, amount: str, has_gpus: bool) -> None:
    """Time slicing and `renameByDefault` of the device plugin give a GPU another name."""
    node = {"metadata": {"name": "n1"}, "status": {"capacity": {"cpu": "8", resource: amount}}}
    assert (cluster_state.read_gpu_node(json.dumps(node).encode()) is not None) is has_gpus


_FULL = "no nodes with enough resources were found: 2 node(s) didn't have enough resources: GPUs."


def waiting(*pods: Any, make: Any = whole, now: Any = NOW) -> ClusterFacts:
    kept = [msgspec.structs.replace(PODS.decode(each.document), document=each.document) for each in pods]
    return but(waiting=make(*kept), now=now)


LOST = make_pod(name="lost", unschedulable="QueueDoesNotExist: Queue 'vision' does not exist.")
WAITS = "warning: pending pods: 1 pod waits for KAI (queue-missing): team/lost -> kaishare why -n team lost"
NONE = "ok: pending pods: no pod has waited for KAI for a minute -> "


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        # Pods are counted by cause, and only those that need a person are warnings.
        (waiting(*(make_pod(name=f"full-{n}", unschedulable=_FULL) for n in range(7)), LOST), ["ok: pending pods: 7 pods wait for KAI (no-gpu-fits): team/full-0", WAITS]),
        (waiting(make_pod(unschedulable=_FULL, age=30)), [NONE]),
        (waiting(make_pod(scheduler="default-scheduler", grouped=False, unschedulable=_FULL)), [NONE]),
        # Without the server's time or the whole list no pod is ok.
        (waiting(LOST, now=None), ["unknown: pending pods: not checked: the API server's time is not known -> "]),
        (waiting(make=part), []),
        (waiting(LOST, make=part), [WAITS]),
    ],
)  # fmt: skip
def test_pods_that_wait_for_kai(cluster: ClusterFacts, expected: list[str]) -> None:
    lines = lines_of(queues.pods_get_nodes, cluster)
    assert len(lines) == len(expected), lines
    assert all(line.startswith(start) for line, start in zip(lines, expected, strict=True)), lines
    assert len(expected) < 2 or lines[0].endswith("and 2 more -> ")


def source_of(package: ModuleType) -> str:
    files = Path(inspect.getfile(package)).parent.glob("*.py")
    return "\n".join(file.read_text() for file in files)


def test_every_property_that_the_webhook_or_a_policy_reads_is_compared() -> None:
    text = source_of(webhook.policy) + inspect.getsource(kai.refusals)
    properties = {name for name, value in vars(Version).items() if isinstance(value, property | _Since)}
    read = {name for name in properties if re.search(rf"\b{name}\b", text)}
    assert {difference.name for difference in DIFFERENCES} == read
    assert {name for name, _ in RELEASES.values()} <= read


def test_the_oldest_release_is_that_of_the_chart() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"].startswith(">={}.{}.0".format(*registration.OLDEST_KUBERNETES))


HEADINGS = re.findall(r"^### (.*)$", (ROOT / "docs" / "doctor.md").read_text(), flags=re.MULTILINE)


def test_the_page_has_a_section_for_each_name_of_a_check_in_the_code_and_no_other() -> None:
    names = {check.name for check in command.CHECKS}
    for file in (ROOT / "console" / "doctor").glob("*.py"):
        text = file.read_text()
        names.update(re.findall(r'(?:named\(|check=)"([^"]+)"', text))
        names.update(re.findall(r'^ {8}\("([a-z ]+)", \w+_findings', text, re.MULTILINE))
    assert names == set(HEADINGS)
