"""The first question to an API server: whether it answers at all."""

from typing import Final

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from service.check_results import CheckResult, ok, problem

API_SERVER: Final = "API server"
"""What reports call this check."""


async def reach(client: KubeClient, *, without: str) -> CheckResult:
    """Say whether it answers; a problem if it does not, and then nothing else is worth asking.

    Args:
        client: to the API server.
        without: what is not known if it does not.
    """
    try:
        await client.get("/version")
    except ApiError as error:  # who may not ask for the version may ask for other things
        return ok(API_SERVER, f"{client.server} answers (no version: {error})")
    except (Unreachable, AccessError) as error:
        return problem(API_SERVER, f"{client.server}: {error}", without)
    return ok(API_SERVER, f"{client.server} answers")
