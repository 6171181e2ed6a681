"""Checks that webhook, agents and this command are of one release."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from console.agents import AgentPod
from service.check_results import CheckResult, ok, warning
from service.text import joined, listed, one_line
from webhook.doctor.webhook_pods import WebhookPod

RELEASES: Final = "releases"


def release_findings(
    agents: Sequence[AgentPod], webhooks: Iterable[WebhookPod], published: str, own: str
) -> Iterator[CheckResult]:
    """Yield a warning if releases differ. Pure.

    Args:
        agents: the agents' pods.
        webhooks: the webhook's pods.
        published: the version in the webhook's published settings; empty if unknown.
        own: the version of this command.
    """
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for webhook in webhooks:
        if webhook.version:
            parts[webhook.version].add("webhook")
    if published:
        parts[published].add("published settings")
    for pod in agents:
        if pod.version:
            parts[pod.version].add("agent")
    if not parts:
        return
    parts[own].add("this command")
    if len(parts) == 1:
        yield ok(RELEASES, f"{_parts(parts)}")
        return
    yield warning(
        RELEASES, f"different: {_parts(parts)}", "finish the upgrade, or install the same release everywhere"
    )


def _parts(parts: Mapping[str, set[str]]) -> str:
    return joined(f"{one_line(version)} ({listed(names)})" for version, names in sorted(parts.items()))
