"""Asks an API server what it does to each pod, by creating it with `dryRun=All`.

The right to create pods in the pod's namespace is the only one that is needed. Nothing is read and nothing is
stored.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from kube.access import AccessError
from kube.client import AnyResponse, KubeClient
from kube.errors import Unreachable, expect_kind, status_error
from service.text import MALFORMED, one_line, printable, quoted
from webhook.explain.diff import diff
from webhook.explain.explain import ExplainedDocument, ExplainedPod
from webhook.explain.server.api_defaults import without_defaults
from webhook.explain.server.comparison import (
    refusal_causes,
    refusal_differences,
    stored_causes,
    stored_differences,
)
from webhook.explain.server.creations import pod_to_create, renamed
from webhook.explain.server.refusals import AnswerKind, is_unanswered_webhook, read_refusal
from webhook.explain.server_answer import ServerAnswer

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
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


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
    if not _NAMESPACE.fullmatch(item.namespace):
        return _no_answer(f"{quoted(item.namespace)} is not a name of a namespace")
    path = f"/api/v1/namespaces/{item.namespace}/pods"
    sent = pod_to_create(item)
    try:
        response = await _create(client, path, sent)
        answer = _read(item, sent, path, response)
        if answer is not None:
            return answer
        name = one_line(str(sent["metadata"]["name"]))
        sent = renamed(sent)
        note = f"a pod named {name} exists, so the answer is for a pod with a generated name"
        answer = _read(item, sent, path, await _create(client, path, sent), notes=[note])
        return answer or _no_answer("the API server says again and again that the pod exists")
    except (Unreachable, AccessError, *MALFORMED) as error:
        return _no_answer(one_line(str(error)))


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
    if stored["metadata"].get(
        "resourceVersion"
    ):  # never sent, and never set by a dry run (seen on 1.30, 1.36)
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
        response.body,
        "",
        http_status=response.status,
        http_reason=response.reason,
        longest=_LONGEST_REFUSAL,
    )
    read = read_refusal(error.status, error.reason, error.message, item.namespace)
    if read.kind is AnswerKind.NAME_TAKEN and sent["metadata"].get("name"):
        return None
    if read.kind is not AnswerKind.REFUSAL:
        problem = read.problem or f"the API server answered {error.status} {error.reason}"
        return ServerAnswer(
            is_admitted=None,
            problem=one_line(problem),
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
    return [*_printable(lines[:_MOST_LINES]), *(["   …"] if len(lines) > _MOST_LINES else [])]


def _printable(lines: Iterable[str]) -> Iterable[str]:
    return (printable(line, _LONGEST_CHANGE) for line in lines)
