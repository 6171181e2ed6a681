"""Checks by dry run: creates pods with `dryRun=All`, so that all webhooks run and nothing is stored."""

import re
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from console.cluster.facts import FactReader
from console.cluster.rules import refuser_of, unreachable_webhook
from console.doctor.check_results import CheckResult, State, ok, problem, unknown
from console.doctor.cluster_state import ClusterFacts
from kai import keys
from kai.installation import SharingMode
from kai.kaishare_keys import REASON, SIZE
from kube.access import AccessError
from kube.answers import ApiError, Unreachable
from kube.client import KubeClient
from kube.kinds import PODS, Pod
from service.text import MALFORMED, one_line
from webhook.policy.label_values import PolicyShare
from webhook.policy.labels import Mode, NamespacePolicy, ShareFor
from webhook.registration.configurations import MUTATE, VALIDATE_PODS

_NO_RIGHT: Final = re.compile(r'cannot (create|delete) resource "(pods|configmaps|podgroups)"')
_DRY: Final = {"dryRun": "All"}
_DELETION: Final = {"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]}
"""The API server ignores the parameters of a deletion that has a body (k8s.io/apiserver delete.go)."""


async def dry_run(client: KubeClient, path: str, body: Mapping[str, Any] | None = None) -> bytes:
    """Create an object by dry run, as `KubeClient.request`; without a body, delete the object of the path."""
    method = "DELETE" if body is None else "POST"
    return await client.request(method, path, params=_DRY, body=msgspec.json.encode(body or _DELETION))


def missing_right(error: ApiError) -> str:
    """Return the right that RBAC denied, such as `create pods`; empty if the request failed otherwise."""
    match = _NO_RIGHT.search(error.message) if error.is_forbidden else None
    return f"{match[1]} {match[2]}" if match else ""


def unlikely_name() -> str:
    return f"kaishare-doctor-{secrets.token_hex(4)}"


def minimal_pod(**metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return a pod that the strictest pod security level and most quotas admit."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": unlikely_name(), **metadata},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "registry.k8s.io/pause:3.10",
                    "resources": {
                        "requests": {"cpu": "1m", "memory": "1Mi"},
                        "limits": {"cpu": "10m", "memory": "16Mi"},
                    },
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "runAsNonRoot": True,
                        "runAsUser": 65535,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }


_MOST_TRIED: Final = 3
"""Maximum number of namespaces to try. A quota or a pod security level may refuse the pod in one of them."""

_SHARE: Final = "0.02"


async def pods_are_changed(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Create pods by dry run in namespaces whose policy would change them. No pod is stored."""
    client = reader.client
    if cluster.is_absent and cluster.admission.deciding is None:
        return
    policies = _tried(cluster)
    if not policies:
        none = "no namespace has a policy that would change a pod"
        yield unknown(none if cluster.namespaces.value is not None else "the policies are not known")
        return
    for policy in policies[:_MOST_TRIED]:
        finding = await _plain(client, cluster, policy)
        if finding.state is not State.UNKNOWN:
            break
    yield finding
    for_share = next((each for each in policies if each.mode is Mode.DEFAULT), None)
    is_seen_by_kai = cluster.kai_mutating or cluster.mutating.value is None
    if (
        finding.state is State.OK
        and is_seen_by_kai
        and for_share
        and SharingMode.DISABLED not in cluster.sharing_modes
    ):
        yield replace(await _with_share(client, cluster, for_share), check="dry run of a share")


def _tried(cluster: ClusterFacts) -> list[NamespacePolicy]:
    """Return the policies by which a plain pod must be changed.

    Those with mode default and a share come first, those with mode enforce last.
    """
    hook = cluster.hook(MUTATE)
    policies = [
        policy
        for name, policy in cluster.acting.items()
        if policy.queue and policy.scheduler != keys.DEFAULT_SCHEDULER
        if hook is None or hook.namespace_selector.matches(cluster.labels[name])
    ]
    policies.sort(key=lambda each: (each.mode is Mode.ENFORCE, _policy_share(each) is None, each.namespace))
    return policies


def _policy_share(policy: NamespacePolicy) -> tuple[PolicyShare, str] | None:
    """Return a share that a policy gives, with the name of its size; empty for the default share."""
    if policy.share is not None and policy.share_for is not ShareFor.MARKED:
        return policy.share, ""
    sizes = sorted(policy.sizes.by_name.items())
    return next(((size.share, name) for name, size in sizes if size.share is not None), None)


def _share_test(policy: NamespacePolicy, *, is_injecting: bool) -> tuple[PolicyShare, str, dict[str, Any]]:
    """Return a share, the pod that must get it in a namespace, and its title for a message."""
    given = _policy_share(policy) if is_injecting else None
    if given is None:
        own = PolicyShare(keys.GPU_FRACTION, _SHARE)
        why = "no policy in mode default has a share" if is_injecting else "the webhook gives no shares"
        title = f"a pod with a share of its own, {own}; {why}"
        return own, title, minimal_pod(annotations={own.annotation: own.value})
    share, size = given
    title = f"a pod with the {f'size {size}' if size else 'default share'}, {share}"
    pod = minimal_pod(labels={SIZE: size}) if size else minimal_pod()
    pod["spec"]["containers"][0]["resources"]["limits"][keys.GPU_RESOURCE] = "1"
    return share, title, pod


async def _plain(client: KubeClient, cluster: ClusterFacts, policy: NamespacePolicy) -> CheckResult:
    answer = await _try(client, cluster, policy.namespace, minimal_pod())
    if isinstance(answer, CheckResult):
        return answer
    where, queue = f"in {one_line(policy.namespace)}", answer.metadata.labels.get(keys.QUEUE_LABEL)
    if (answer.spec.scheduler_name, queue) == (policy.scheduler, policy.queue):
        return ok(f"{where} the pod gets queue {queue} and scheduler {policy.scheduler}")
    return problem(
        f"{where} the pod is not changed: scheduler {one_line(answer.spec.scheduler_name)},"
        f" queue {one_line(queue or 'none')}",
        "the webhook is not called, is unreachable, or does not know the namespace: see its log and the"
        " other findings",
    )


async def _with_share(client: KubeClient, cluster: ClusterFacts, policy: NamespacePolicy) -> CheckResult:
    """Check that the webhook gives a share, and that KAI's webhook sees the pod and names its ConfigMap."""
    share, title, pod = _share_test(policy, is_injecting=cluster.running.rules.inject_shares)
    answer = await _try(client, cluster, policy.namespace, pod)
    if isinstance(answer, CheckResult):
        return answer
    annotations, where = answer.metadata.annotations, f"in {one_line(policy.namespace)}"
    if annotations.get(share.annotation) != share.value:
        return problem(
            f"{where} {title}, gets no share; {REASON}: {one_line(annotations.get(REASON, 'none'))}",
            "correct the label of the namespace that the reason names; kaishare policies lists its problems",
        )
    if keys.SHARED_GPU_CONFIGMAP in annotations:
        return ok(f"{where} KAI's webhook saw {title}")
    if SharingMode.NV_FRACTIONS in cluster.sharing_modes:
        return unknown(f"{where} {title}, has it; in mode NvFractions KAI leaves no mark on the pod")
    return problem(
        f"{where} KAI's webhook did not see {title}: it would be scheduled and never start",
        "see the findings about the order of webhooks and about KAI's webhook",
    )


async def _try(
    client: KubeClient, cluster: ClusterFacts, namespace: str, pod: Mapping[str, Any]
) -> Pod | CheckResult:
    try:
        return PODS.decode(await dry_run(client, PODS.path(namespace), pod))
    except ApiError as error:
        if missing_right(error):
            return unknown(
                f"not tried in {namespace}: the caller may not create pods there",
                "run doctor with the right to create pods in a managed namespace; a dry run stores nothing",
            )
        fault = unreachable_webhook(error.message, cluster.kai_namespace)
        make = problem if fault or _is_ours(error, cluster) else unknown
        return make(f"refused in {namespace}: {error.message}", fault.remedy if fault else "")
    except (Unreachable, AccessError, *MALFORMED) as error:
        return unknown(one_line(str(error)))


def _is_ours(error: ApiError, cluster: ClusterFacts) -> bool:
    """Whether one of kaishare's or KAI's webhooks refuses the pod.

    The webhook of another component may refuse doctor's pod only, such as for a label that it lacks.
    """
    refuser = refuser_of(error.message)
    ours = (cluster.our_mutating, cluster.our_validating)
    configurations = (*filter(None, ours), *cluster.kai_mutating, *cluster.kai_validating)
    names = {hook.name for each in configurations for hook in each.hooks}
    usual = {MUTATE, VALIDATE_PODS, f"admission.{cluster.kai_namespace}.svc"}  # the caller may read no list
    return refuser is not None and refuser.name in names | usual
