"""Asks an API server what it does to each pod, by creating it with `dryRun=All`.

The right to create pods in the pod's namespace is the only one that is needed. Nothing is read and nothing is
stored.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from console.explain.api_defaults import without_defaults
from console.explain.document_parts import as_json
from console.explain.explainer import ExplainedDocument, ExplainedPod, ServerAnswer
from console.explain.pod_defaults import SERVER_METADATA
from console.explain.server_answers import (
    is_unanswered_webhook,
    read_refusal,
    refusal_causes,
    refusal_differences,
    stored_causes,
    stored_differences,
)
from console.explain.text import diff
from kube.access import AccessError
from kube.answers import Unreachable, expect_kind, status_error
from kube.client import AnyResponse, KubeClient
from service.names import is_dns_label
from service.text import MALFORMED, one_line, printable, quoted

_AT_ONCE: Final = 8
_SECONDS: Final = 30.0
"""Longest time for one pod. A webhook may take 30 s, and the API server calls several."""

_FIELD_MANAGER: Final = "kaishare-explain"
_LONGEST_REFUSAL: Final = 16384  # characters
_MOST_LINES: Final = 2000
_LONGEST_CHANGE: Final = 1000
"""Longest line of a diff, in characters."""
_LARGEST_COMPARED: Final = 512 * 1024
"""Bytes of an answer. The time for a diff grows with the square of its lines."""


async def with_answers(client: KubeClient, documents: Sequence[ExplainedDocument]) -> list[ExplainedDocument]:
    """Return the documents, with the API server's answer about each pod."""
    pods = [pod for document in documents for pod in document.pods]
    answers = iter(await ask_server(client, pods))
    return [
        replace(
            document,
            items=[
                replace(item, server=next(answers)) if isinstance(item, ExplainedPod) else item
                for item in document.items
            ],
        )
        for document in documents
    ]


async def ask_server(client: KubeClient, pods: Sequence[ExplainedPod]) -> list[ServerAnswer]:
    """Create every pod by dry run; return the answers in the order of the pods.

    Args:
        client: for the API server; it has the caller's rights.
        pods: the pods with our own decisions.
    """
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(item: ExplainedPod) -> ServerAnswer:
        async with gate:
            return await _ask(client, item)

    return await asyncio.gather(*map(ask, pods))


async def _ask(client: KubeClient, item: ExplainedPod) -> ServerAnswer:
    if not is_dns_label(item.namespace):
        return _no_answer(f"{quoted(item.namespace)} is not a name of a namespace")
    path = f"/api/v1/namespaces/{item.namespace}/pods"
    sent = pod_to_create(item)
    try:
        response = await _create(client, path, sent)
        answer = _read(item, sent, path, response)
        if answer is not None:
            return answer
        name = one_line(str(sent["metadata"]["name"]))
        sent = _renamed(sent)
        note = f"a pod named {name} exists, so the answer is for a pod with a generated name"
        answer = _read(item, sent, path, await _create(client, path, sent), notes=[note])
        return answer or _no_answer("the API server says again and again that the pod exists")
    except (Unreachable, AccessError, *MALFORMED) as error:
        return _no_answer(one_line(str(error)))


def pod_to_create(item: ExplainedPod) -> dict[str, Any]:
    """Return the pod as its controller creates it, without what an API server writes.

    The manifest's `spec` stays as written, also `nodeName` and fields that an API server refuses.
    """
    pod: dict[str, Any] = msgspec.json.decode(as_json(item.created))
    pod["metadata"] = {key: value for key, value in pod["metadata"].items() if key not in SERVER_METADATA}
    return pod


def _renamed(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod under a name that the API server generates, for a name that is taken."""
    metadata = {key: value for key, value in pod["metadata"].items() if key != "name"}
    return {**pod, "metadata": {**metadata, "generateName": f"{pod['metadata']['name']}-"}}


async def _create(client: KubeClient, path: str, pod: Mapping[str, Any]) -> AnyResponse:
    body = msgspec.json.encode(pod)
    return await client.create_by_dry_run(path, body, field_manager=_FIELD_MANAGER, seconds=_SECONDS)


def _no_answer(problem: str) -> ServerAnswer:
    return ServerAnswer(is_admitted=None, problem=problem)


def _read(
    item: ExplainedPod,
    sent: Mapping[str, Any],
    path: str,
    response: AnyResponse,
    *,
    notes: Sequence[str] = (),
) -> ServerAnswer | None:
    """Return the answer; None if the pod's name is taken.

    Raises:
        Unreachable: the answer is not an API server's.
        msgspec.DecodeError, RecursionError: the answer is no pod.
    """
    if response.status >= 300:
        return _refused(item, sent, response, notes)
    expect_kind(response.body, "Pod", f"POST {path}")
    stored = msgspec.json.decode(response.body)
    if not isinstance(stored.get("metadata"), dict) or not isinstance(stored.get("spec"), dict):
        raise Unreachable(f"POST {path}: expected a pod with metadata and spec")
    # The resourceVersion is never sent, and never set by a dry run (seen on 1.30, 1.36).
    if stored["metadata"].get("resourceVersion"):
        return ServerAnswer(
            is_admitted=True,
            warnings=response.warnings,
            problem="the pod was created, because dryRun was removed on the way to the API server: delete pod"
            f" {one_line(str(stored['metadata'].get('name')))}",
        )
    differences = stored_differences(item, stored)
    return ServerAnswer(
        is_admitted=True,
        warnings=response.warnings,
        changes=_changes(sent, stored, len(response.body)),
        differences=differences,
        causes=list(stored_causes(item, sent, stored, differences)),
        notes=notes,
    )


def _refused(
    item: ExplainedPod, sent: Mapping[str, Any], response: AnyResponse, notes: Sequence[str]
) -> ServerAnswer | None:
    error = status_error(
        response.body, "", http_status=response.status, http_reason=response.reason, longest=_LONGEST_REFUSAL
    )
    read = read_refusal(error.status, error.reason, error.message, item.namespace)
    if read.is_name_taken and sent["metadata"].get("name"):
        return None
    if read.problem:
        return ServerAnswer(
            is_admitted=None,
            problem=one_line(read.problem),
            refused_by=read.refused_by,
            refusal=error.message,
            warnings=response.warnings,
        )
    unanswered = is_unanswered_webhook(error.message)
    return ServerAnswer(
        is_admitted=False,
        refused_by=one_line(read.refused_by),
        refusal=error.message or f"{error.status} {error.reason}",
        warnings=response.warnings,
        differences=[] if unanswered else refusal_differences(item, read.refused_by),
        causes=list(refusal_causes(item, read.refused_by, is_unanswered=unanswered)),
        notes=notes,
    )


def _changes(sent: Mapping[str, Any], stored: Mapping[str, Any], size: int) -> list[str]:
    """Return the lines of a diff, each printable."""
    if size > _LARGEST_COMPARED:
        return [f"   … not compared: the answer has {size} bytes"]
    lines = list(diff(*without_defaults(sent, stored), colour=False))
    printed = [printable(line, _LONGEST_CHANGE) for line in lines[:_MOST_LINES]]
    return [*printed, "   …"] if len(lines) > _MOST_LINES else printed
