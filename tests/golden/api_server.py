"""The simulated API server in a thread of its own, so that a command can run in this one."""

import json
import re
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.golden import product
from tests.support.api_server import ObjectServer, object_server, says
from tests.support.tls_connections import in_a_thread


def hold(
    server: ObjectServer,
    date: datetime,
    items: list[Any],
    *,
    forbidden: Any = lambda _path: False,
    unserved: tuple[str, ...] = (),
    answers: dict[str, tuple[int, Any]] | None = None,
    create: Any = lambda _path, sent: (201, sent),
) -> None:
    """Let a server have the objects of one moment; `answers` are status and body by path."""
    server.objects = {}
    server.add(*items)
    server.date, server.forbidden, server.create = date, forbidden, create
    server.unserved = tuple(f"/apis/{group}/" for group in unserved)
    server.refusals = {
        rf"^{re.escape(path)}(\?|$)": says(body if isinstance(body, str) else json.dumps(body), status=status)
        for path, (status, body) in (answers or {}).items()
    }


def api_server(folder: Path) -> AbstractContextManager[ObjectServer]:
    """Run a server; its credentials are in the folder."""
    return in_a_thread(object_server(folder, *product.certificates(folder)))
