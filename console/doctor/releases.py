"""Checks that webhook, agents and this command are of one release."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from console.agents import VERSION_LABEL, AgentPod
from kube.objects import ObjectMeta
from kube.watch import METADATA_ONLY
from service.check_results import CheckResult, ok, warning
from service.text import joined, listed, one_line
from webhook.doctor.api_reader import ApiReader, ListSpec
from webhook.registration.objects import WebhookConfiguration, read_configuration

RELEASES: Final = "releases"
_WITHOUT: Final = "the webhook's release is not known"
_CONFIGURATION: Final = ListSpec(
    resource="mutatingwebhookconfigurations",
    group="admissionregistration.k8s.io",
    path="/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    verb="get",
    without=_WITHOUT,
)
_SELECTOR: Final = {"labelSelector": "app.kubernetes.io/name=kaishare,app.kubernetes.io/component=webhook"}


class _Metadata(ObjectMeta, frozen=True):
    labels: dict[str, str] | None = None


class _Pod(Struct, frozen=True):
    metadata: _Metadata


_pod = msgspec.json.Decoder(_Pod)


async def read_webhook_versions(reader: ApiReader, configuration: str) -> list[str]:
    """Return the version label of each webhook pod, in the namespace that the API server calls.

    Args:
        reader: for the API server; records what could not be read.
        configuration: name of kaishare's mutating webhook configuration.
    """
    webhooks = await reader.get(_CONFIGURATION, configuration, read_configuration)
    if not isinstance(webhooks, WebhookConfiguration):
        return []
    namespaces = {
        hook.client_config.service.namespace for hook in webhooks.hooks if hook.client_config.service
    }
    versions: list[str] = []
    for namespace in sorted(namespaces):
        spec = ListSpec(
            resource="pods",
            path=f"/api/v1/namespaces/{namespace}/pods",
            params=_SELECTOR,
            accept=METADATA_ONLY,
            without=_WITHOUT,
        )
        versions += (await reader.list(spec, _version)).items
    return versions


def _version(item: bytes) -> str | None:
    return (_pod.decode(item).metadata.labels or {}).get(VERSION_LABEL)


def release_findings(agents: Sequence[AgentPod], webhooks: Sequence[str], own: str) -> Iterator[CheckResult]:
    """Yield a warning if releases differ. Pure.

    Args:
        agents: the agents' pods.
        webhooks: the version of each webhook pod.
        own: the version of this command.
    """
    parts: defaultdict[str, set[str]] = defaultdict(set)
    for version in webhooks:
        parts[version].add("webhook")
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
