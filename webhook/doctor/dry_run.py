"""Checks by dry run: creates pods with `dryRun=All`, so that all webhooks run and nothing is stored."""

import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import Struct

from kai import keys
from kai.installation import SharingMode
from kai.own_labels import REASON, SIZE
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.objects import ObjectMeta
from service.check_results import CheckResult, State, ok, problem, unknown
from service.text import MALFORMED, one_line
from webhook.doctor.cluster import Cluster, Namespace
from webhook.doctor.dry_run_requests import dry_run, minimal_pod, missing_right, with_gpu
from webhook.policy.labels import Mode, ShareFor
from webhook.policy.values import PolicyShare

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShareTest:
    """A pod that must get a share."""

    place: Namespace
    share: PolicyShare
    title: str
    """The share and its source, for a message."""
    pod: Mapping[str, Any]


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
    modes = cluster.installation.sharing_modes if cluster.installation else frozenset[SharingMode]()
    test = _share_test(places, is_injecting=cluster.running.rules.inject_shares)
    if (
        finding.state is State.OK
        and (cluster.kai_mutating or not cluster.mutating.is_known)
        and test is not None
        and SharingMode.DISABLED not in modes
    ):
        yield await _with_share(client, test, modes)


def _places(cluster: Cluster) -> list[Namespace]:
    """Return the namespaces in which a plain pod must be changed.

    Those with mode default and a share come first, those with mode enforce last.
    """
    hook = cluster.mutate
    namespaces = [
        namespace
        for namespace in cluster.acting.values()
        if namespace.policy
        and namespace.policy.queue
        and namespace.policy.scheduler != keys.DEFAULT_SCHEDULER
        and (hook is None or hook.namespace_selector.matches(namespace.labels))
    ]
    return sorted(namespaces, key=lambda place: (_enforces(place), _policy_share(place) is None, place.name))


def _enforces(namespace: Namespace) -> bool:
    return namespace.policy is not None and namespace.policy.mode is Mode.ENFORCE


def _policy_share(place: Namespace) -> tuple[PolicyShare, str] | None:
    """Return a share that a policy gives, with the name of its size; empty for the default share."""
    policy = place.policy
    if policy is None:
        return None
    if policy.share is not None and policy.share_for is not ShareFor.MARKED:
        return policy.share, ""
    sizes = sorted(policy.sizes.by_name.items())
    return next(((size.share, name) for name, size in sizes if size.share is not None), None)


def _share_test(places: Sequence[Namespace], *, is_injecting: bool) -> _ShareTest | None:
    """Return the pod to try, in the first of the namespaces that has the mode default."""
    place = next((place for place in places if place.policy and place.policy.mode is Mode.DEFAULT), None)
    if place is None:
        return None
    given = _policy_share(place) if is_injecting else None
    if given is None:
        own = PolicyShare(keys.GPU_FRACTION, _SHARE)
        why = "no policy in mode default has a share" if is_injecting else "the webhook gives no shares"
        title = f"a pod with a share of its own, {own}; {why}"
        pod = minimal_pod(annotations={own.annotation: own.value})
        return _ShareTest(place=place, share=own, title=title, pod=pod)
    share, size = given
    title = f"a pod with the {f'size {size}' if size else 'default share'}, {share}"
    pod = with_gpu(minimal_pod(labels={SIZE: size}) if size else minimal_pod())
    return _ShareTest(place=place, share=share, title=title, pod=pod)


async def _plain(client: KubeClient, check: str, place: Namespace) -> CheckResult:
    answer = await _try(client, check, place, minimal_pod())
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


async def _with_share(client: KubeClient, test: _ShareTest, modes: Collection[SharingMode]) -> CheckResult:
    """Check that the webhook gives a share, and that KAI's webhook sees the pod and names its ConfigMap."""
    check = "dry run of a share"
    answer = await _try(client, check, test.place, test.pod)
    if isinstance(answer, CheckResult):
        return answer
    annotations = answer.metadata.annotations or {}
    where = f"in {one_line(test.place.name)}"
    if annotations.get(test.share.annotation) != test.share.value:
        reason = annotations.get(REASON, "none")
        return problem(
            check,
            f"{where} {test.title}, gets no share; {REASON}: {one_line(reason)}",
            "docs/policy.md lists the reasons; the log of the webhook has the pod",
        )
    if keys.SHARED_GPU_CONFIGMAP in annotations:
        return ok(check, f"{where} KAI's webhook saw {test.title}")
    if SharingMode.NV_FRACTIONS in modes:
        return unknown(
            check,
            f"{where} {test.title}, has it; in mode NvFractions KAI leaves no mark on the pod",
        )
    return problem(
        check,
        f"{where} KAI's webhook did not see {test.title}: it would be scheduled and never start",
        "see the findings about the order of webhooks and about KAI's webhook",
    )


async def _try(
    client: KubeClient, check: str, place: Namespace, pod: Mapping[str, Any]
) -> _Pod | CheckResult:
    path = f"/api/v1/namespaces/{place.name}/pods"
    namespace = one_line(place.name)
    try:
        return _pod.decode(await dry_run(client, "POST", path, pod))
    except ApiError as error:
        if missing_right(error):
            return unknown(
                check,
                f"not tried in {namespace}: the caller may not create pods there",
                "run doctor with the right to create pods in a managed namespace; a dry run stores nothing",
            )
        if _BY_A_WEBHOOK.search(error.message):
            return problem(check, f"refused in {namespace}: {error.message}")
        return unknown(check, f"refused in {namespace}: {error.message}")
    except (Unreachable, AccessError, *MALFORMED) as error:
        return unknown(check, one_line(str(error)))
