"""Sends requests as any user and returns the API server's answers with warnings and refusals."""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import aiohttp

from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.kinds import object_path

ADMINISTRATOR = "the-host's-administrator"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: dict[str, Any]
    warnings: Sequence[str] = field(default=())

    @property
    def message(self) -> str:
        """The reason of a refusal; empty after success."""
        return "" if self.status < 300 else str(self.body.get("message", ""))


def account(namespace: str, name: str) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


where = object_path


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
