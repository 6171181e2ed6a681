"""Reports pods that wait for KAI, by the cause that their own conditions name.

The causes are those of `kaishare why`, which also reads KAI's objects and Events of a single pod.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from console.cluster.facts import NOT_READ, Fact, Why
from console.doctor.api_reader import ApiReader, ListOutcome, ListResult, ListSpec
from console.doctor.check_results import CheckResult, ok, unknown, warning
from console.doctor.cluster_state import Cluster
from console.why.causes.unscheduled import is_in_kai
from console.why.core import find_cause
from console.why.evidence import PodEvidence
from console.why.explanation import Code
from kai import keys
from kube.kinds import decode_pod_with_document
from service.text import counted, listed

_CHECK: Final = "pending pods"
_PODS: Final = ListSpec(
    resource="pods",
    params={"fieldSelector": "status.phase=Pending"},
    is_namespaced=True,
    without="the causes of pending pods were not checked",
)
_WAITED: Final = timedelta(minutes=1)
_FOR_ROOM: Final = frozenset(
    {Code.NO_GPU_FITS, Code.QUEUE_OVER_LIMIT, Code.QUEUE_OVER_QUOTA, Code.GANG_DOES_NOT_FIT}
)
"""Causes that end when other pods end."""

Waiting = tuple[Code, str]
"""The cause, and the pod as `NAMESPACE/NAME`."""


async def pending_findings(reader: ApiReader, cluster: Cluster) -> Iterator[CheckResult]:
    """Return findings about the pods that KAI has not bound for a minute or longer."""
    now = reader.client.server_time()
    if now is None:
        return iter([unknown(_CHECK, "not checked: the API server's time is not known")])
    return _findings(await reader.list(_PODS, partial(_waiting, now=now, cluster=cluster)))


def _waiting(document: bytes, *, now: datetime, cluster: Cluster) -> Waiting | None:
    """Return a pod that waits for KAI, with its cause; None for any other pod."""
    pod = decode_pod_with_document(document)
    created = pod.metadata.creation_timestamp
    if pod.is_bound or pod.metadata.deletion_timestamp or created is None:
        return None
    policy = cluster.managed.get(pod.metadata.namespace)
    is_served = cluster.queues.outcome is not ListOutcome.UNSERVED
    evidence = PodEvidence(
        now=now,
        namespace=pod.metadata.namespace,
        name=pod.name,
        pod=Fact(pod),
        bind_request=NOT_READ if is_served else Fact(why=Why.UNSERVED),
        scheduler=policy.scheduler if policy is not None else keys.SCHEDULER_NAME,
    )
    if now - created < _WAITED or not is_in_kai(pod, evidence.scheduler):
        return None
    return find_cause(evidence).code, f"{pod.metadata.namespace}/{pod.name}"


def _findings(pods: ListResult[Waiting]) -> Iterator[CheckResult]:
    if not pods.is_known:
        return
    by_cause: defaultdict[Code, list[str]] = defaultdict(list)
    for cause, name in pods.items:
        by_cause[cause].append(name)
    for cause, names in sorted(by_cause.items()):
        what = f"{counted(len(names), 'pod waits', 'pods wait')} for KAI ({cause.value}): {listed(names)}"
        if cause in _FOR_ROOM:
            yield ok(_CHECK, what)
        else:
            namespace, _, name = min(names).partition("/")
            yield warning(_CHECK, what, f"kaishare why -n {namespace} {name}")
    if by_cause:
        return
    if pods.outcome is ListOutcome.PART:
        yield unknown(_CHECK, "not all pending pods could be read; no other one has waited for a minute")
    else:
        yield ok(_CHECK, "no pod has waited for KAI for a minute")
