"""Evicts a pod by the eviction API (policy/v1), which respects PodDisruptionBudgets."""

import asyncio
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from kube.access import AccessError
from kube.answers import ApiError, Unreachable, expect_kind
from kube.client import KubeClient


class EvictionAnswer(StrEnum):
    """The result of an eviction request."""

    EVICTED = "evicted"  # accepted; in a trial, it would be accepted
    DISRUPTION_BUDGET = "disruption-budget"  # which does not allow it now, or is not evaluated yet
    GONE = "gone"  # no pod has this name and UID
    FORBIDDEN = "forbidden"  # the caller may not create pods/eviction
    FAILED = "failed"  # unreachable, or another error


@dataclass(frozen=True, slots=True)
class Evicted:
    """The result of an eviction request, with the server's error."""

    answer: EvictionAnswer
    line: str = ""  # empty after success
    retry_after: float = 0.0  # seconds to wait before the next request


async def evict(
    client: KubeClient,
    *,
    namespace: str,
    name: str,
    uid: str,
    is_trial: bool = False,
    within: float | None = None,
) -> Evicted:
    """Request the eviction of a pod, or a dry run, which checks disruption budgets, too. Never raises.

    The only precondition is the UID. A resourceVersion would let the pod's owner prevent the eviction by
    patching the pod in a loop. The request ends `within` so many seconds, the wait for a connection and
    credentials included: nothing is sent later, and the API server drops a request that is queued.
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
        async with asyncio.timeout(within):
            answer = await client.request("POST", path, body=msgspec.json.encode(body))
        expect_kind(answer, "Status", f"POST {path}")
    except TimeoutError:
        return Evicted(EvictionAnswer.FAILED, f"POST {path}: no answer within {within:.1f} s")
    except ApiError as error:
        return Evicted(_answer(error), str(error), error.retry_after or 0.0)
    except (Unreachable, AccessError) as error:
        return Evicted(EvictionAnswer.FAILED, str(error))
    return Evicted(EvictionAnswer.EVICTED)


def _answer(error: ApiError) -> EvictionAnswer:
    """Classify an error (Kubernetes 1.36.3 `registry/core/pod/storage/eviction.go`).

    A disruption budget causes 429, and two budgets for one pod cause 500. A busy or broken server returns the
    same statuses, so that only the message tells them apart.
    """
    message = error.message.replace(" ", "").lower()
    if error.status in (429, 500) and "disruptionbudget" in message:
        return EvictionAnswer.DISRUPTION_BUDGET
    if error.status in (404, 409):
        return EvictionAnswer.GONE
    return EvictionAnswer.FORBIDDEN if error.status == 403 else EvictionAnswer.FAILED
