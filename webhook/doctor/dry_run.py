"""Checks by dry run: creates pods with `dryRun=All`, so that all webhooks run and nothing is stored."""

import re
from collections.abc import AsyncIterator
from typing import Final

import msgspec
from msgspec import Struct

from kai import keys
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.objects import ObjectMeta
from service.check_results import CheckResult, State, ok, problem, unknown
from service.text import MALFORMED, one_line
from webhook.doctor.cluster import Cluster, Namespace
from webhook.doctor.dry_run_requests import dry_run, minimal_pod, missing_right
from webhook.policy.labels import Mode

_MOST_TRIED: Final = 3
"""Maximum number of namespaces to try. A quota or a pod security level may refuse the pod in one of them."""

_SHARE: Final = "0.02"
_BY_A_WEBHOOK = re.compile(r"admission webhook|calling webhook")


class _Metadata(ObjectMeta, frozen=True):
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Spec(Struct):
    scheduler: str = msgspec.field(name="schedulerName", default="")


class _Pod(Struct):
    metadata: _Metadata
    spec: _Spec


_pod = msgspec.json.Decoder(_Pod)


async def dry_run_findings(client: KubeClient, cluster: Cluster) -> AsyncIterator[CheckResult]:
    """Create pods by dry run in namespaces whose policy would change them. No pod is stored."""
    check = "dry run of a pod"
    places = _places(cluster)
    if not places:
        known = cluster.namespaces.is_known
        why = "no namespace has a policy that would change a pod" if known else "the policies are not known"
        yield unknown(check, why)
        return
    for place in places[:_MOST_TRIED]:
        finding = await _plain(client, check, place)
        if finding.state is not State.UNKNOWN:
            break
    yield finding
    installed = cluster.installation
    plain = [place for place in places if place.policy and place.policy.mode is Mode.DEFAULT]
    if (
        finding.state is State.OK
        and cluster.kai_mutating
        and plain
        and (not installed or installed.shares_gpus is not False)
    ):
        yield await _with_share(client, plain[0])


def _places(cluster: Cluster) -> list[Namespace]:
    """Return the namespaces in which a plain pod must be changed; those with mode enforce come last."""
    hook = cluster.mutate
    namespaces = [
        namespace
        for namespace in cluster.acting.values()
        if namespace.policy
        and namespace.policy.queue
        and namespace.policy.scheduler != keys.DEFAULT_SCHEDULER
        and (hook is None or hook.namespace_selector.matches(namespace.labels))
    ]
    return sorted(namespaces, key=lambda place: (_enforces(place), place.name))


def _enforces(namespace: Namespace) -> bool:
    return namespace.policy is not None and namespace.policy.mode is Mode.ENFORCE


async def _plain(client: KubeClient, check: str, place: Namespace) -> CheckResult:
    answer = await _try(client, check, place)
    if isinstance(answer, CheckResult):
        return answer
    policy = place.policy
    queue = (answer.metadata.labels or {}).get(keys.QUEUE_LABEL)
    if policy and (answer.spec.scheduler, queue) == (policy.scheduler, policy.queue):
        return ok(
            check, f"in {one_line(place.name)} the pod gets queue {queue} and scheduler {policy.scheduler}"
        )
    return problem(
        check,
        f"in {one_line(place.name)} the pod is not changed: scheduler {one_line(answer.spec.scheduler)},"
        f" queue {one_line(queue or 'none')}",
        "the webhook is not called, is unreachable, or does not know the namespace: see its log and the"
        " other findings",
    )


async def _with_share(client: KubeClient, place: Namespace) -> CheckResult:
    """Check that KAI's webhook sees a pod with a share, by the annotation for its ConfigMap."""
    check = "dry run of a share"
    answer = await _try(client, check, place, {keys.GPU_FRACTION: _SHARE})
    if isinstance(answer, CheckResult):
        return answer
    if keys.SHARED_GPU_CONFIGMAP in (answer.metadata.annotations or {}):
        return ok(check, f"in {one_line(place.name)} KAI's webhook saw the pod")
    return problem(
        check,
        f"in {one_line(place.name)} KAI's webhook did not see the pod: it would be scheduled and never start",
        "see the findings about the order of webhooks and about KAI's webhook",
    )


async def _try(
    client: KubeClient, check: str, place: Namespace, annotations: dict[str, str] | None = None
) -> _Pod | CheckResult:
    path = f"/api/v1/namespaces/{place.name}/pods"
    namespace = one_line(place.name)
    try:
        return _pod.decode(await dry_run(client, "POST", path, minimal_pod(annotations=annotations or {})))
    except ApiError as error:
        if missing_right(error):
            return unknown(
                check,
                f"not tried in {namespace}: the caller may not create pods there",
                "grant the right to create pods in one managed namespace; the dry run stores nothing",
            )
        if _BY_A_WEBHOOK.search(error.message):
            return problem(check, f"refused in {namespace}: {error.message}")
        return unknown(check, f"refused in {namespace}: {error.message}")
    except (Unreachable, AccessError, *MALFORMED) as error:
        return unknown(check, one_line(str(error)))
