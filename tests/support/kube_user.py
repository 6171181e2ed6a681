"""Sends requests as any user and returns the API server's answers with warnings and refusals."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp

from tests.support.control_plane import ADMIN_TOKEN, ControlPlane

ADMINISTRATOR = "the-host's-administrator"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"
_PATHS = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "CronJob": "/apis/batch/v1/namespaces/{}/cronjobs",
    "Event": "/api/v1/namespaces/{}/events",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
    "ResourceClaim": "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
    "Service": "/api/v1/namespaces/{}/services",
    "LimitRange": "/api/v1/namespaces/{}/limitranges",
    "Node": "/api/v1/nodes",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Namespace": "/api/v1/namespaces",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PodGroup": "/apis/scheduling.run.ai/v2alpha2/namespaces/{}/podgroups",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": (
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The API server's answer."""

    status: int
    body: dict[str, Any]
    warnings: Sequence[str] = field(default=())

    @property
    def message(self) -> str:
        """The reason of a refusal; empty after success."""
        return "" if self.status < 300 else str(self.body.get("message", ""))


def account(namespace: str, name: str) -> str:
    """Return the user name of a service account."""
    return f"system:serviceaccount:{namespace}:{name}"


def where(item: Mapping[str, Any]) -> str:
    """Return the path of an object."""
    metadata = item["metadata"]
    return f"{_PATHS[item['kind']].format(metadata.get('namespace', ''))}/{metadata['name']}"


class Asker:
    """Sends requests as any user. A user has all rights, unless a request sets another group."""

    def __init__(self, plane: ControlPlane) -> None:
        self._server = f"https://127.0.0.1:{plane.port}"
        self._trust = plane.trust
        self._session = aiohttp.ClientSession()

    async def __aenter__(self) -> "Asker":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        user: str = ADMINISTRATOR,
        group: str = "system:masters",
        content_type: str = "application/json",
        dry_run: bool = False,
        extra: Mapping[str, str] | None = None,
        **params: str,
    ) -> Answer:
        """Send a request; `extra` is the user's extra information, which a webhook sees in `userInfo`."""
        headers = {
            "Authorization": f"Bearer {ADMIN_TOKEN}",
            "Impersonate-User": user,
            "Impersonate-Group": group,
            "Content-Type": content_type,
            **{f"Impersonate-Extra-{key}": value for key, value in (extra or {}).items()},
        }
        async with self._session.request(
            method,
            self._server + path,
            data=None if body is None else io.BytesIO(json.dumps(body).encode()),
            headers=headers,
            params={**params, **({"dryRun": "All"} if dry_run else {})},
            ssl=self._trust,
        ) as response:
            content = await response.read()
            is_json = "json" in response.headers.get("Content-Type", "")
            return Answer(
                status=response.status,
                body=json.loads(content) if is_json else {"text": content.decode()},
                warnings=[
                    text.split('"', 1)[1].removesuffix('"') for text in response.headers.getall("Warning", [])
                ],
            )

    async def create(self, item: Mapping[str, Any], **options: Any) -> Answer:
        return await self.send("POST", where(item).rpartition("/")[0], item, **options)

    async def merge(self, path: str, patch: Mapping[str, Any], **options: Any) -> Answer:
        return await self.send("PATCH", path, patch, content_type=MERGE, **options)

    async def apply(self, item: Mapping[str, Any]) -> None:
        answer = await self.send(
            "PATCH", where(item), item, content_type=APPLY, fieldManager="test", force="true"
        )
        assert answer.status < 300, answer.message

    async def remove(self, path: str) -> None:
        answer = await self.send("DELETE", path, gracePeriodSeconds="0", propagationPolicy="Background")
        assert answer.status < 300 or answer.status == 404, answer.message
