"""Checks whether an API server answers, and reads its release; the first check of both doctors."""

from typing import Final

import msgspec
from msgspec import Struct

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.check_results import CheckResult, ok, problem
from service.text import MALFORMED

API_SERVER: Final = "API server"
"""Name of the check in reports."""


class _Version(Struct):
    major: str
    minor: str


async def reach(client: KubeClient, *, without: str) -> tuple[CheckResult, tuple[int, int] | None]:
    """Return whether the API server answers, a problem if it does not, and its release, such as (1, 30).

    The release is None if it is not known.

    Args:
        client: for the API server.
        without: advice for a server that does not answer, such as the checks that are then omitted.
    """
    try:
        answer = await client.get("/version")
    except ApiError as error:  # other requests may still be allowed
        return ok(API_SERVER, f"{client.server} answers (no version: {error})"), None
    except (Unreachable, AccessError) as error:
        return problem(API_SERVER, f"{client.server}: {error}", without), None
    reached = ok(API_SERVER, f"{client.server} answers")
    try:
        version = msgspec.json.decode(answer, type=_Version)
        return reached, (int(version.major), int(version.minor.rstrip("+")))  # some clouds write 30+
    except (*MALFORMED, ValueError):
        return reached, None
