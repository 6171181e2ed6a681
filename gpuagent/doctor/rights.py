"""Checks of the agent's RBAC rights."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from gpuagent.pods import related
from gpuagent.pods.lookups import Kind
from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from kube.rights import review_right
from service.check_results import CheckResult, ok, problem, unknown
from service.text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource, in every namespace."""

    verb: str
    resource: str
    without: str
    """Consequence of a missing right."""
    group: str = ""
    subresource: str = ""
    is_needed: bool = False

    def __str__(self) -> str:
        """Return the right in RBAC's words: `get bindrequests.scheduling.run.ai`, `create pods/eviction`."""
        group = f".{self.group}" if self.group else ""
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{group}{part}"


def _right_to_get(kind: Kind, *, is_needed: bool = False) -> Right:
    resource, _, group = kind.resource.partition(".")
    return Right(verb="get", resource=resource, group=group, without=kind.without, is_needed=is_needed)


_PODS: Final = "no GPU memory can be attributed to pods"
_EVENTS: Final = "flags appear in metrics, log and page only"

RIGHTS: Final = (
    Right(verb="list", resource="pods", without=_PODS, is_needed=True),
    Right(verb="watch", resource="pods", without=_PODS, is_needed=True),
    _right_to_get(related.BIND_REQUESTS, is_needed=True),
    Right(verb="create", resource="events", without=_EVENTS, is_needed=True),
    Right(verb="patch", resource="events", without=_EVENTS, is_needed=True),
    _right_to_get(related.NODES),
    _right_to_get(related.NAMESPACES),
    Right(verb="create", resource="pods", subresource="eviction", without="no pod can be evicted"),
)
CONFIG_MAPS: Final = _right_to_get(related.CONFIG_MAPS)


async def right_findings(client: KubeClient, *, reads_config_maps: bool) -> AsyncIterator[CheckResult]:
    """Check each right with a SelfSubjectAccessReview.

    Args:
        client: connection to the API server with the agent's credentials.
        reads_config_maps: whether the agent is configured to read KAI's ConfigMaps.
    """
    rights = [*((right, right.is_needed) for right in RIGHTS), (CONFIG_MAPS, reads_config_maps)]
    for right, is_needed in rights:
        check = f"right to {right}"
        try:
            status = await review_right(
                client,
                verb=right.verb,
                resource=right.resource,
                group=right.group,
                subresource=right.subresource,
            )
        except (ApiError, Unreachable, AccessError) as error:
            yield unknown(check, str(error))
            continue
        if status.allowed:
            yield ok(check, "granted")
        elif status.error:
            yield unknown(check, one_line(status.error))
        elif is_needed:
            yield problem(check, f"not granted: {right.without}", _rule(right))
        else:
            yield ok(check, f"not granted, which is optional: {right.without}")


def _rule(right: Right) -> str:
    resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    return (
        "bind a ClusterRole to the agent's service account with"
        f' {{apiGroups: ["{right.group}"], resources: [{resource}], verbs: [{right.verb}]}}'
    )
