"""Asks an API server what it does to each pod, by creating it with `dryRun=All`.

The right to create pods in the pod's namespace is the only one that is needed. Nothing is read and nothing is
stored. An answer tells what was admitted in the fields that kaishare writes, and every warning and refusal.
"""

import asyncio
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from console.explain.explainer import (
    RBAC,
    SERVER_METADATA,
    AnswerDifference,
    ExplainedPod,
    Item,
    ServerAnswer,
)
from kai import keys
from kai.frameworks import may_run_framework, settings_of
from kai.gpu_resources import names_gpu
from kai.kaishare_keys import PREFIX, REASON
from kai.numbers import parse_quantity
from kai.pod import MalformedPod, decode_pod
from kube.access import AccessError
from kube.answers import ApiError, Unreachable, expect_kind, status_error
from kube.client import AnyResponse, KubeClient
from service.names import is_dns_label
from service.text import MALFORMED, listed, one_line, quoted
from webhook.policy.patch import TOLERATION
from webhook.policy.pod_parts import annotations_of, as_json, as_list, as_map
from webhook.policy.reasons import Action, Reason
from webhook.registration.configurations import VALIDATE_PODS

_AT_ONCE: Final = 8
_SECONDS: Final = 30.0  # longest time for one pod: a webhook may take 30 s, and the API server calls several

Json = Mapping[str, Any]


async def ask_server(client: KubeClient, items: Sequence[Item]) -> list[Item]:
    """Create every pod by dry run with the client's rights; return the items with the answers."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def ask(item: Item) -> Item:
        if not isinstance(item, ExplainedPod):
            return item
        async with gate:
            return dataclasses.replace(item, server=await _ask(client, item))

    return await asyncio.gather(*map(ask, items))


async def _ask(client: KubeClient, item: ExplainedPod) -> ServerAnswer:
    if not is_dns_label(item.namespace):
        problem = f"{quoted(item.namespace)} is not a name of a namespace"
        return ServerAnswer(is_admitted=None, problem=problem)
    sent, notes = pod_to_create(item), []
    try:
        response = await _create(client, item.namespace, sent)
        name = sent["metadata"].get("name")
        if name and response.status == 409 and _error(response).message == f'pods "{name}" already exists':
            notes = [f"a pod named {one_line(name)} exists, so the answer is for a pod with a generated name"]
            del sent["metadata"]["name"]
            sent["metadata"]["generateName"] = f"{name}-"
            response = await _create(client, item.namespace, sent)
        answer = _refused(item, response) if response.status >= 300 else _admitted(item, sent, response)
        return replace(answer, warnings=response.warnings, notes=notes)
    except (Unreachable, AccessError, *MALFORMED) as error:
        return ServerAnswer(is_admitted=None, problem=one_line(str(error)))


def pod_to_create(item: ExplainedPod) -> dict[str, Any]:
    """Return the pod as its controller creates it, with its `spec` as written, also what would be refused."""
    pod: dict[str, Any] = msgspec.json.decode(as_json(item.created))
    pod["metadata"] = {key: value for key, value in pod["metadata"].items() if key not in SERVER_METADATA}
    return pod


async def _create(client: KubeClient, namespace: str, pod: Json) -> AnyResponse:
    path, body = f"/api/v1/namespaces/{namespace}/pods", msgspec.json.encode(pod)
    return await client.create_by_dry_run(path, body, field_manager="kaishare-explain", seconds=_SECONDS)


def _admitted(item: ExplainedPod, sent: Json, response: AnyResponse) -> ServerAnswer:
    """Return the answer with a pod; raises `Unreachable` or one of `MALFORMED` if it is none."""
    expect_kind(response.body, "Pod", f"POST pods in namespace {item.namespace}")
    stored = msgspec.json.decode(response.body)
    metadata = as_map(stored.get("metadata"))
    # The resourceVersion is never sent, and never set by a dry run (seen on 1.30, 1.36).
    if metadata.get("resourceVersion"):
        problem = "the pod was created, because dryRun was removed on the way to the API server: delete pod"
        return ServerAnswer(is_admitted=True, problem=f"{problem} {one_line(str(metadata.get('name')))}")
    fields = written_fields(stored)
    differences = list(_differences(item, fields))
    causes = list(_causes(item, sent, stored, differences))
    return ServerAnswer(is_admitted=True, fields=fields, differences=differences, causes=causes)


# --- the fields that kaishare writes -----------------------------------------------------------------------

_LABELS: Final = (keys.QUEUE_LABEL, keys.PRIORITY_LABEL)
_ANNOTATIONS: Final = (keys.GPU_FRACTION, keys.GPU_MEMORY, keys.NUM_DEVICES, keys.CONTAINER_NAME)
_VERDICT: Final = "verdict"
_ADMITTED: Final = "admitted"
_LIMIT_RANGER: Final = "kubernetes.io/limit-ranger"  # lists the amounts that a LimitRange filled in
_LONGEST_ANNOTATION: Final = 600  # characters


def written_fields(pod: Json) -> dict[str, str]:
    """Return the values of a pod that kaishare decides, by a name for people."""
    metadata, spec = as_map(pod.get("metadata")), as_map(pod.get("spec"))
    labels, annotations = as_map(metadata.get("labels")), as_map(metadata.get("annotations"))
    written: dict[str, Any] = {"spec.schedulerName": spec.get("schedulerName") or keys.DEFAULT_SCHEDULER}
    written |= {f"label {key}": labels[key] for key in _LABELS if key in labels}
    for key, value in annotations.items():
        if key in _ANNOTATIONS or key.startswith(PREFIX):
            written[f"annotation {one_line(key)}"] = value
    # The API server stores the null of a label or annotation as an empty text.
    fields = {field: "" if value is None else one_line(str(value)) for field, value in written.items()}
    for group, kind in (("initContainers", "init container"), ("containers", "container")):
        for number, each in enumerate(as_list(spec.get(group)), 1):
            container = as_map(each)
            name = f"{kind} {one_line(str(container.get('name') or f'number {number}'))}"
            for part in ("limits", "requests"):
                for resource, amount in as_map(as_map(container.get("resources")).get(part)).items():
                    if isinstance(resource, str) and "/" in resource and names_gpu(resource):
                        field = f"{name}: {part.removesuffix('s')} {one_line(resource)}"
                        fields[field] = one_line(str(amount))
    with suppress(MalformedPod):
        for running in filter(may_run_framework, decode_pod(as_json(pod)).containers):
            for setting in settings_of(running):
                field = f"container {one_line(running.name or '')}: {setting.framework.shown}"
                fields |= {field: one_line(setting.value)} if setting.value else {}
    if TOLERATION in as_list(spec.get("tolerations")):
        fields[f"toleration {keys.GPU_TAINT}"] = "Exists"
    return fields


def _differences(item: ExplainedPod, answered: Mapping[str, str]) -> Iterator[AnswerDifference]:
    if _predicted_verdict(item) != _ADMITTED:
        yield AnswerDifference(_VERDICT, _predicted_verdict(item), _ADMITTED)
    predicted = written_fields(item.final)
    for field in dict.fromkeys((*predicted, *answered)):
        ours, theirs = predicted.get(field), answered.get(field)
        with suppress(ValueError):
            if ours and theirs and parse_quantity(ours) == parse_quantity(theirs):
                continue
        if ours != theirs:
            yield AnswerDifference(field, ours, theirs)


def _predicted_verdict(item: ExplainedPod) -> str:
    if item.verdict is not None and item.is_denied:
        return f"denied: {item.verdict.message}"
    if item.verdict is None and item.mutation.decision.reason is Reason.MALFORMED_POD:
        return f"refused: {item.mutation.decision.finding.sentence}"
    return _ADMITTED


def _causes(
    item: ExplainedPod, sent: Json, stored: Json, differences: Sequence[AnswerDifference]
) -> Iterator[str]:
    fields = {difference.field for difference in differences} - {_VERDICT}
    if len(fields) < len(differences):
        yield (
            "kaishare's validating webhook did not deny the pod: it is not installed, or the policy of the"
            " namespace differs from the one that was used here"
        )
    if not fields:
        return
    filled = _limit_ranger_amounts(sent, stored)
    if filled:
        yield f"a LimitRange of the namespace fills in GPUs: {filled}"
    decided, expected = (annotations_of(pod).get(REASON) for pod in (stored, item.final))
    if decided != expected:
        is_observed = item.mutation.decision.action is Action.OBSERVED
        ours = "no change (mode observe)" if is_observed else quoted(expected) if expected else "no change"
        theirs = quoted(decided) if decided else "no change"
        yield (
            f"kaishare decided {theirs}, and the decision here is {ours}: it is not installed, did not"
            " answer, decides by other policies or settings, or another webhook changed the pod before"
        )
    elif not filled:
        yield (
            f"another webhook or admission policy changed {listed(fields)} after kaishare's decision; API"
            " servers do not tell its name"
        )


def _limit_ranger_amounts(sent: Json, stored: Json) -> str:
    message = annotations_of(stored).get(_LIMIT_RANGER)
    if not isinstance(message, str) or message == annotations_of(sent).get(_LIMIT_RANGER):
        return ""
    has_gpus = any("/" in word and names_gpu(word) for word in message.replace(",", " ").split())
    return one_line(message, _LONGEST_ANNOTATION) if has_gpus else ""


# --- refusals ----------------------------------------------------------------------------------------------

_INTERNAL: Final = "Internal error occurred: "
_FORBIDDEN: Final = re.compile(r'pods "(?:[^"\\]|\\.)*" is forbidden: ')
_NO_DRY_RUN: Final = re.compile(r'admission webhook "([^"]{1,300})" does not support dry run')
_VALIDATING: Final = f"webhook {VALIDATE_PODS}"  # the author of kaishare's own denials
_NOT_OF_THE_POD: Final = frozenset({401, 404, 405, 408, 409, 415, 429, 502, 503, 504})

_BY_POLICY: Final = "'([^']{1,300})' (?:with binding '[^']{1,300}' )?denied request: "
_AUTHORS: Final[Mapping[str, str]] = {
    # Kubernetes 1.36 apiserver/pkg/admission/plugin: webhook/errors, webhook/validating/dispatcher.go
    r'admission webhook "([^"]{1,300})" denied the request': "webhook {}",
    r'failed calling webhook "([^"]{1,300})": ': "webhook {}",
    # policy/validating/dispatcher.go, policy/mutating/dispatcher.go, resourcequota/controller.go
    rf"ValidatingAdmissionPolicy {_BY_POLICY}": "ValidatingAdmissionPolicy {}",
    rf"policy {_BY_POLICY}": "MutatingAdmissionPolicy {}",
    r"(?:exceeded|failed|status unknown for) quota: ([-.a-z0-9]{1,253})": "quota {}",
    r"insufficient quota to (?:consume|match these scopes)": "a quota",
    # pod-security-admission/admission/admission.go, plugin/pkg/admission/limitranger/admission.go
    r'violates PodSecurity "([a-z]{1,30}):': "Pod Security {}",
    r"\[?m(?:ax|in)imum [^ ]{1,320} usage per (?:Pod|Container) is ": "a LimitRange",
    r"[^ ]{1,320} max limit to request ratio per (?:Pod|Container) is ": "a LimitRange",
}
"""Beginnings of messages, each with the author; braces stand for the groups of the form.

The messages are those of Kubernetes 1.30.14 and 1.36.3. The text of a webhook or policy follows these words,
and a pod's name before them is quoted.
"""


def read_refusal(status: int, reason: str, message: str, namespace: str) -> tuple[str, str]:
    """Return the author of a refusal, empty if unknown, and why the answer is none about the pod, if so.

    A webhook chooses the status of its denials.
    """
    if message.startswith('pods is forbidden: User "'):
        return RBAC, f"you may not create pods in namespace {namespace}"
    if match := _NO_DRY_RUN.match(message):
        author = f"webhook {match[1]}"
        return author, f"{author} does not support dry runs, so no pod can be tried"
    text = message.removeprefix(_INTERNAL)
    prefix = _FORBIDDEN.match(text)
    text = text[prefix.end() :] if prefix else text
    for form, author in _AUTHORS.items():
        if match := re.match(form, text):
            return author.format(*match.groups()), ""
    if re.match(r'namespaces "[^"]{1,300}" not found$', message):
        return "", f"namespace {namespace} does not exist in this cluster"
    if status in _NOT_OF_THE_POD or status < 400:
        return "", f"the API server answered {status} {reason}: {message}"
    return "the API server" if status in (400, 422) or prefix else "", ""


def _error(response: AnyResponse) -> ApiError:
    status, reason = response.status, response.reason
    return status_error(response.body, "", http_status=status, http_reason=reason, longest=16384)


def _refused(item: ExplainedPod, response: AnyResponse) -> ServerAnswer:
    error = _error(response)
    author, problem = read_refusal(error.status, error.reason, error.message, item.namespace)
    refusal = error.message or f"{error.status} {error.reason}"
    answer = ServerAnswer(is_admitted=False, refused_by=one_line(author), refusal=refusal)
    if problem:
        return replace(answer, is_admitted=None, problem=one_line(problem), refusal=error.message)
    if error.message.removeprefix(_INTERNAL).startswith("failed calling webhook "):
        return replace(answer, causes=[f"{author} did not answer, and its failurePolicy is Fail"])
    if author != _VALIDATING or _predicted_verdict(item) != _ADMITTED:
        return answer
    cause = "the policy or the settings of the cluster's webhook differ from those that were used here"
    if item.pod.kind == "DaemonSet":
        cause = (
            "the dry run is yours, and enforced namespaces admit pods of DaemonSets from the DaemonSet"
            " controller only; the decision here is for that controller"
        )
    return replace(answer, differences=[AnswerDifference(_VERDICT, _ADMITTED, "denied")], causes=[cause])
