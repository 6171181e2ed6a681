"""Evicting a pod (policy/v1): asked of the API server, which holds every disruption budget against it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from kube.access import AccessError
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable, expect_kind

_SAID: Final = "disruptionbudget"


class EvictionAnswer(StrEnum):
    """What became of it."""

    EVICTED = "evicted"
    """The pod is on its way out; in a trial: it would be."""
    DISRUPTION_BUDGET = "disruption-budget"
    """A PodDisruptionBudget forbids it now, or cannot be told yet."""
    GONE = "gone"
    """There is no pod of that name with that UID."""
    FORBIDDEN = "forbidden"
    """The right to create pods/eviction is missing."""
    FAILED = "failed"
    """The API server is away, or says something else."""


@dataclass(frozen=True, slots=True)
class Evicted:
    """The answer, and what the server said where it is no yes."""

    answer: EvictionAnswer
    line: str = ""
    retry_after: float = 0.0
    """Seconds the server wants to be left alone."""


async def evict(
    client: KubeClient, *, namespace: str, name: str, uid: str, is_trial: bool = False
) -> Evicted:
    """Ask for the eviction of a pod, and of no other that has its name by now; never raises.

    Args:
        client: to the API server.
        namespace: of the pod.
        name: of the pod.
        uid: of the pod; what has another one is left alone.
        is_trial: only find out what the answer would be (`dryRun: All`, which asks disruption budgets too).
    """
    options = {"preconditions": {"uid": uid}, **({"dryRun": ["All"]} if is_trial else {})}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": options,
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    try:
        answer = await client.request("POST", path, body=msgspec.json.encode(body))
        expect_kind(answer, "Status", f"POST {path}")
    except ApiError as error:
        return Evicted(_answer(error), str(error), error.retry_after or 0.0)
    except (Unreachable, AccessError) as error:
        return Evicted(EvictionAnswer.FAILED, str(error))
    return Evicted(EvictionAnswer.EVICTED)


def _answer(error: ApiError) -> EvictionAnswer:
    """Sort an error (Kubernetes 1.36.3 `registry/core/pod/storage/eviction.go`).

    A budget says 429, and 500 where two of them are about the pod; so does a server that is busy or broken.
    """
    said = error.message.replace(" ", "").lower()
    if error.status in (429, 500) and _SAID in said:
        return EvictionAnswer.DISRUPTION_BUDGET
    if error.status in (404, 409):
        return EvictionAnswer.GONE
    return EvictionAnswer.FORBIDDEN if error.status == 403 else EvictionAnswer.FAILED
