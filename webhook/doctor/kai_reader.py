"""Reads the facts about KAI that its checks need beside the cluster's state."""

from collections.abc import AsyncIterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.check_results import CheckResult
from service.text import MALFORMED
from webhook.doctor.api_reader import ApiReader, ListSpec
from webhook.doctor.kai import runtime_class_finding

_RUNTIME_CLASSES: Final = ListSpec(
    resource="runtimeclasses",
    verb="get",
    group="node.k8s.io",
    path="/apis/node.k8s.io/v1/runtimeclasses",
    without="the RuntimeClass of pods with a share was not checked",
)


class _Version(Struct):
    version: str


class _Group(Struct):
    versions: list[_Version]


async def runtime_class_findings(reader: ApiReader, users: Mapping[str, str]) -> AsyncIterator[CheckResult]:
    """Yield a finding about each RuntimeClass.

    Args:
        reader: for the API server; records what could not be read.
        users: the names of RuntimeClasses, each with a description of its pods.
    """
    for name, pods in users.items():
        exists = await reader.get(_RUNTIME_CLASSES, name, lambda _document: True)
        yield runtime_class_finding(name, pods, exists or False)


async def served_queue_versions(client: KubeClient) -> str:
    """Return the served versions of KAI's API, separated by commas; empty for none."""
    try:
        group = msgspec.json.decode(await client.get("/apis/scheduling.run.ai"), type=_Group)
        return ", ".join(sorted(version.version for version in group.versions))
    except (ApiError, Unreachable, AccessError, *MALFORMED):
        return ""
