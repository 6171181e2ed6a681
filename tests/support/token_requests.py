"""Answers of a simulated API server to TokenRequests."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from aiohttp import web

SERVER_NOW = datetime(2031, 5, 1, 12, tzinfo=UTC)
"""Time of the simulated API server; years from the clock of this machine."""


class TokenIssuer:
    """Issues the tokens `issued-1`, `issued-2`, …; each lives for ten minutes by the server's clock."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        expires = SERVER_NOW + timedelta(minutes=10)
        status = {
            "token": f"issued-{len(self.requests)}",
            "expirationTimestamp": expires.isoformat().replace("+00:00", "Z"),
        }
        answer = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "status": status}
        return web.Response(
            status=201, text=json.dumps(answer), content_type="application/json",
            headers={"Date": format_datetime(SERVER_NOW, usegmt=True)},
        )  # fmt: skip
