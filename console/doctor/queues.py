"""Checks of queues and PriorityClasses, of PodGroups in another queue, and of pods that wait for KAI. Pure.

A pod in a queue that KAI cannot use stays Pending. KAI up to v0.9 never reports the reason, and v0.13.4 does
not report it for a queue with children.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from console.cluster.facts import NOT_READ, Fact, Why, items
from console.doctor.check_results import CheckResult, grouped, limited, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts
from console.why.causes.unscheduled import is_in_kai
from console.why.core import find_cause
from console.why.evidence import PodEvidence
from console.why.explanation import Code
from kai import keys
from kube.kinds import Pod, PodGroup
from service.text import counted, listed, one_line, quoted
from webhook.policy.labels import Mode


def queues_are_usable(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.queues.why is Why.UNSERVED:
        yield unknown(
            "not checked: the API server serves no queues",
            "install KAI; inside a vCluster, run doctor on the host, which has the queues",
        )
    if cluster.queues.value is None:
        return
    named = grouped((policy.queue, name) for name, policy in cluster.managed.items() if policy.queue)
    tree = cluster.queue_tree
    seen = sorted(queue for queue in named if tree.is_known(queue))
    problems = [
        problem(f"{fault.sentence} (for {listed(named[queue])})", fault.remedy)
        for queue in seen
        if (fault := tree.fault(queue, cluster.versions))
    ]
    yield from limited(problems, "more queue that KAI cannot use", "more queues that KAI cannot use")
    unseen = named.keys() - set(seen)
    if unseen:
        count = counted(len(unseen), "queue")
        yield unknown(f"not all queues could be read: {count} not checked ({listed(unseen)})")
    if seen and not problems:
        yield ok(f"{counted(len(seen), 'queue')} that policies name: {listed(seen)}")


def waiting_pods_have_queues(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield a problem for each queue that does not exist while pods wait in it."""
    waiting = grouped(
        (pod.queue_label, "/".join(pod.metadata.key))
        for pod in items(cluster.waiting)
        if pod.queue_label and pod.spec.scheduler_name in cluster.kai_schedulers
    )
    problems = [
        problem(f"{fault.sentence}; pods wait: {listed(waiting[queue])}", fault.remedy)
        for queue in sorted(filter(cluster.queue_tree.is_missing, waiting))
        if (fault := cluster.queue_tree.fault(queue))
    ]
    yield from limited(problems, "more missing queue")


def queues_can_be_named(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield a finding about the queues that namespaces can name (`--pre`)."""
    if not cluster.queues.is_known:
        return
    usable = cluster.queue_tree.usable
    if usable:
        yield ok(f"{counted(len(usable), 'queue')} that namespaces can name: {listed(usable)}")
    else:
        yield warning(
            "namespaces can name no queue: none has a parent and no children",
            "create queues, such as those of deploy/kai/queues.yaml",
        )


def priorities_exist(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if not cluster.priorities.is_known or cluster.queues.why is Why.UNSERVED:
        return
    existing = {priority_class.metadata.name for priority_class in items(cluster.priorities)}
    named = grouped((policy.priority, name) for name, policy in cluster.managed.items() if policy.priority)
    missing = [
        warning(
            f'PriorityClass "{one_line(priority)}" (for {listed(names)}) does not exist:'
            " KAI uses its default priority",
            "create the PriorityClass, or correct the label",
        )
        for priority, names in sorted(named.items())
        if priority not in existing
    ]
    yield from limited(missing, "more PriorityClass", "more PriorityClasses")


def groups_are_in_their_queue(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield findings about PodGroups in another queue than the policy of their namespace names.

    KAI never moves a PodGroup, and the guard lets it keep its queue. One from before mode enforce therefore
    stays a way to that queue, also for new pods.
    """
    if not cluster.acting:
        return
    misplaced = grouped(
        (policy.mode is Mode.ENFORCE, _described(group))
        for group in items(cluster.pod_groups)
        if (policy := cluster.acting.get(group.metadata.namespace)) is not None
        if policy.queue and group.spec.queue != policy.queue
    )
    keeps = "a PodGroup keeps its queue, also for new pods"
    for is_enforced, groups in sorted(misplaced.items(), reverse=True):
        title = f"{counted(len(groups), 'PodGroup')} in another queue than the namespace's"
        if is_enforced:
            advice = "delete the objects that own them, with their pods"
            yield problem(f"{title}, under mode enforce: {listed(groups)}", f"{advice}: {keeps}")
        else:
            advice = "delete these PodGroups, or their owners, before kaishare.dev/mode=enforce is set"
            yield warning(f"{title}: {listed(groups)}", f"{advice}: {keeps}")
    if not misplaced and cluster.pod_groups.is_known:
        yield ok("all PodGroups of managed namespaces are in their namespace's queue")


def _described(group: PodGroup) -> str:
    metadata = group.metadata
    owner = next(iter(metadata.owner_references), None)
    of = f" of {owner.kind} {owner.name}" if owner else ""
    return f"{metadata.namespace}/{metadata.name} in {quoted(group.spec.queue)}{of}"


_WAITED: Final = timedelta(minutes=1)
_FOR_ROOM: Final = frozenset({"no-gpu-fits", "queue-over-limit", "queue-over-quota", "gang-does-not-fit"})
"""Causes that end when other pods end."""


def pods_get_nodes(cluster: ClusterFacts) -> Iterator[CheckResult]:
    """Yield findings about the pods that KAI has not bound for a minute or longer, by cause.

    The causes are those of `kaishare why`, which also reads KAI's objects and Events of a single pod.
    """
    if cluster.now is None:
        yield unknown("not checked: the API server's time is not known")
        return
    by_cause = grouped(
        (cause, "/".join(pod.metadata.key))
        for pod in items(cluster.waiting)
        if (cause := _cause(pod, cluster)) is not None
    )
    for cause, names in sorted(by_cause.items()):
        what = f"{counted(len(names), 'pod waits', 'pods wait')} for KAI ({cause}): {listed(names)}"
        if cause in _FOR_ROOM:
            yield ok(what)
        else:
            namespace, _, name = min(names).partition("/")
            yield warning(what, f"kaishare why -n {namespace} {name}")
    if not by_cause and cluster.waiting.is_known:
        yield ok("no pod has waited for KAI for a minute")


def _cause(pod: Pod, cluster: ClusterFacts) -> Code | None:
    """Return why a pod waits for KAI; None for a pod of another scheduler, and for a young one."""
    created, now = pod.metadata.creation_timestamp, cluster.now
    if created is None or now is None or now - created < _WAITED:
        return None
    policy = cluster.managed.get(pod.metadata.namespace)
    evidence = PodEvidence(
        now=now,
        namespace=pod.metadata.namespace,
        name=pod.name,
        pod=Fact(pod),
        bind_request=Fact(why=Why.UNSERVED) if cluster.queues.why is Why.UNSERVED else NOT_READ,
        scheduler=policy.scheduler if policy is not None else keys.SCHEDULER_NAME,
    )
    return find_cause(evidence).code if is_in_kai(pod, evidence.scheduler) else None
