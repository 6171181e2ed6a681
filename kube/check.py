"""Checks whether an API server answers; the first check of both doctors."""

from typing import Final

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.check_results import CheckResult, ok, problem

API_SERVER: Final = "API server"
"""Name of the check in reports."""


async def reach(client: KubeClient, *, without: str) -> CheckResult:
    """Return whether the API server answers; a problem if it does not.

    Args:
        client: for the API server.
        without: advice for a server that does not answer, such as the checks that are then omitted.
    """
    try:
        await client.get("/version")
    except ApiError as error:  # other requests may still be allowed
        return ok(API_SERVER, f"{client.server} answers (no version: {error})")
    except (Unreachable, AccessError) as error:
        return problem(API_SERVER, f"{client.server}: {error}", without)
    return ok(API_SERVER, f"{client.server} answers")
