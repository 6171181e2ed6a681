"""Checks of the agent's RBAC rights."""

from dataclasses import dataclass
from typing import Final

from gpuagent.pods import bind_request_watch, related
from gpuagent.pods.lookups import Kind
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.rights import review_right
from service.check_results import CheckResult, ok, problem, unknown
from service.text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource, in every namespace or in the agent's own."""

    verb: str
    resource: str
    without: str
    """Consequence of a missing right."""
    group: str = ""
    subresource: str = ""
    is_needed: bool = False
    is_in_own_namespace: bool = False

    def __str__(self) -> str:
        """Return the right in RBAC's words: `list bindrequests.scheduling.run.ai`, `create pods/eviction`."""
        group = f".{self.group}" if self.group else ""
        part = f"/{self.subresource}" if self.subresource else ""
        place = " in its own namespace" if self.is_in_own_namespace else ""
        return f"{self.verb} {self.resource}{group}{part}{place}"


def _right_to_get(kind: Kind) -> Right:
    return Right(verb="get", resource=kind.resource, without=kind.without)


def _right_to_bind_requests(verb: str) -> Right:
    resource, _, group = bind_request_watch.RESOURCE.partition(".")
    return Right(
        verb=verb, resource=resource, group=group, without=bind_request_watch.WITHOUT, is_needed=True
    )


_PODS: Final = "no GPU memory can be attributed to pods"
_NO_EVICTION: Final = "no pod can be evicted"
_EVENTS: Final = "flags appear in metrics, log and page only"

EVICTION_RIGHTS: Final = (
    Right(verb="create", resource="pods", subresource="eviction", without=_NO_EVICTION),
    Right(verb="get", resource="pods", without=_NO_EVICTION),
    Right(verb="create", resource="events", without=_NO_EVICTION, is_in_own_namespace=True),
    Right(
        verb="list",
        resource="events",
        without="after a restart, the eviction budget starts with one eviction",
        is_in_own_namespace=True,
    ),
)
RIGHTS: Final = (
    Right(verb="list", resource="pods", without=_PODS, is_needed=True),
    Right(verb="watch", resource="pods", without=_PODS, is_needed=True),
    _right_to_bind_requests("list"),
    _right_to_bind_requests("watch"),
    Right(verb="create", resource="events", without=_EVENTS, is_needed=True),
    Right(verb="patch", resource="events", without=_EVENTS, is_needed=True),
    _right_to_get(related.NODES),
    _right_to_get(related.NAMESPACES),
    *EVICTION_RIGHTS,
)
CONFIG_MAPS: Final = _right_to_get(related.CONFIG_MAPS)


async def right_findings(client: KubeClient, *, reads_config_maps: bool) -> list[CheckResult]:
    """Check each right with a SelfSubjectAccessReview.

    Args:
        client: connection to the API server with the agent's credentials.
        reads_config_maps: whether the agent is configured to read KAI's ConfigMaps.
    """
    rights = [*((right, right.is_needed) for right in RIGHTS), (CONFIG_MAPS, reads_config_maps)]
    return [await _finding(client, right, is_needed=is_needed) for right, is_needed in rights]


async def _finding(client: KubeClient, right: Right, *, is_needed: bool) -> CheckResult:
    check = f"right to {right}"
    try:
        status = await review_right(
            client,
            verb=right.verb,
            resource=right.resource,
            group=right.group,
            subresource=right.subresource,
            namespace=client.namespace if right.is_in_own_namespace else "",
        )
    except (ApiError, Unreachable, AccessError) as error:
        return unknown(check, str(error))
    if status.allowed:
        return ok(check, "granted")
    if status.error:
        return unknown(check, one_line(status.error))
    if is_needed:
        return problem(check, f"not granted: {right.without}", _rule(right))
    return ok(check, f"not granted, which is optional: {right.without}")


def _rule(right: Right) -> str:
    resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    return (
        "bind a ClusterRole to the agent's service account with"
        f' {{apiGroups: ["{right.group}"], resources: [{resource}], verbs: [{right.verb}]}}'
    )
