"""The JSON Patch (RFC 6902) for a pod: the operations of a decision, applied once to check them.

The API server refuses a pod whose patch does not apply, even under failurePolicy Ignore (verified on
Kubernetes 1.36.3). The module therefore writes only these kinds of operation: `add` of a map key or of a
field, `remove` of an `nvidia.com/gpu` that the received pod has, `add` at the end of spec.tolerations and of
the `args` and `env` of the container with the share, and `replace` of the script of its shell.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypedDict, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from kai import keys
from kai.command_lines import first_words
from kai.pod import Container, MalformedPod, Metadata, PodDocument, PodView, Spec, decode_document
from webhook.policy.decide import (
    SKIPPED_NOT_MANAGED,
    Changes,
    Decision,
    decide_pod,
    skip_malformed,
    skip_namespace,
)
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.framework_memory import FrameworkOptions
from webhook.policy.labels import NamespacePolicy
from webhook.policy.reasons import Action, Finding, Reason

TOLERATION: Final = {"key": keys.GPU_TAINT, "operator": "Exists", "effect": "NoSchedule"}
"""The toleration that Kubernetes' ExtendedResourceToleration adds to pods that request the resource."""

_Struct = TypeVar("_Struct")


class Operation(TypedDict, total=False):
    """One JSON Patch operation."""

    op: str
    path: str
    value: Any


class PatchError(ValueError):
    """An operation does not apply; the message names the operation."""


def escape(key: str) -> str:
    """Escape a map key for a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


_GPU: Final = escape(keys.GPU_RESOURCE)


def operations(changes: Changes, pod: PodView) -> list[Operation]:
    """Convert changes into operations for this pod; maps and lists that the pod lacks are added whole."""
    patch: list[Operation] = []
    metadata = pod.document.metadata
    if metadata is None:
        both = {"labels": dict(changes.labels), "annotations": dict(changes.annotations)}
        patch.append(
            {"op": "add", "path": "/metadata", "value": {key: value for key, value in both.items() if value}}
        )
    else:
        if changes.labels:
            patch += _entries("/metadata/labels", changes.labels, exists=metadata.labels is not None)
        if changes.annotations:
            patch += _entries(
                "/metadata/annotations", changes.annotations, exists=metadata.annotations is not None
            )
    if changes.scheduler is not None:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": changes.scheduler})
    for key in changes.removed_gpu_keys:
        path = f"/spec/{key.containers}/{key.index}/resources/{key.kind}/{_GPU}"
        patch.append({"op": "remove", "path": path})
    if changes.toleration:
        if pod.spec.tolerations is None:
            patch.append({"op": "add", "path": "/spec/tolerations", "value": [TOLERATION]})
        else:
            patch.append({"op": "add", "path": "/spec/tolerations/-", "value": TOLERATION})
    if changes.options is not None:
        patch += _option_operations(changes.options, pod.containers[changes.options.container])
    return patch


def _option_operations(options: FrameworkOptions, container: Container) -> Iterator[Operation]:
    path = f"/spec/containers/{options.container}"
    if options.script_at is not None:
        in_command = len(first_words(bytes(container.command)))
        script_at = options.script_at - in_command
        place = f"command/{options.script_at}" if script_at < 0 else f"args/{script_at}"
        script = f"{container.command_line[options.script_at]} {options.argument}"
        yield {"op": "replace", "path": f"{path}/{place}", "value": script}
    elif options.argument:
        yield from _appended(f"{path}/args", container.args, [options.argument])
    variables = [{"name": name, "value": value} for name, value in options.variables]
    yield from _appended(f"{path}/env", container.env, variables)


def _appended(path: str, field: Raw, values: Sequence[Any]) -> list[Operation]:
    """Return the operations that append values to a list that may be missing."""
    if bytes(field) in (b"", b"null"):
        return [{"op": "add", "path": path, "value": values}] if values else []
    return [{"op": "add", "path": f"{path}/-", "value": value} for value in values]


def _entries(path: str, entries: Mapping[str, str], *, exists: bool) -> list[Operation]:
    if not exists:
        return [{"op": "add", "path": path, "value": dict(entries)}]
    return [{"op": "add", "path": f"{path}/{escape(key)}", "value": value} for key, value in entries.items()]


def apply_to_pod(patch: Sequence[Operation], pod: PodView) -> PodView:
    """Apply operations to the decoded pod, as strictly as the API server does.

    Raises:
        PatchError: an operation does not apply, or is not of a kind that `operations` writes.
    """
    metadata, spec = pod.document.metadata, _copy(pod.spec)
    spec.containers = spec.containers and list(spec.containers)
    spec.initContainers = spec.initContainers and list(spec.initContainers)
    if metadata is not None:
        metadata = _copy(metadata)
    for operation in patch:
        parts = operation["path"].split("/")
        match operation["op"], *parts[1:]:
            case "remove", "spec", ("containers" | "initContainers") as group, index, "resources", kind, key:
                _remove(spec, group, index, kind, _unescape(key))
            case "add", "metadata", ("labels" | "annotations") as field, key if metadata is not None:
                entries = getattr(metadata, field)
                if entries is None:
                    raise PatchError(f"add {operation['path']}: there is no {field}")
                setattr(metadata, field, {**entries, _unescape(key): operation["value"]})
            case "add", "metadata", ("labels" | "annotations") as field if metadata is not None:
                setattr(metadata, field, operation["value"])
            case _, "spec", "containers", index, ("command" | "args" | "env") as field, *rest:
                _change(spec, index, field, rest, operation)
            case "add", "spec", ("schedulerName" | "tolerations") as field:
                setattr(spec, field, operation["value"])
            case "add", "spec", "tolerations", "-" if spec.tolerations is not None:
                spec.tolerations = [*spec.tolerations, operation["value"]]
            case "add", "metadata":
                metadata = Metadata(**operation["value"])
            case _:
                raise PatchError(f"{operation['op']} {operation['path']} does not apply")
    changes_gpus = any(operation["op"] == "remove" for operation in patch)
    return PodView(PodDocument(spec, metadata), None if changes_gpus else pod.container_facts)


def _remove(spec: Spec, group: str, index: str, kind: str, key: str) -> None:
    """Remove one resource of one container.

    The container is copied; the lists of `spec` are changed in place.
    """
    containers = getattr(spec, group) or []
    try:
        container = containers[int(index)] = _copy(containers[int(index)])
        resources = container.resources = _copy(container.resources)
        amounts = dict(getattr(resources, kind))
        del amounts[key]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise PatchError(f"there is no {key} in {kind} of {group}[{index}]") from None
    setattr(resources, kind, amounts)


def _change(spec: Spec, index: str, field: str, rest: Sequence[str], operation: Operation) -> None:
    """Append to a list of one container, replace one of its texts, or add the list.

    The container is copied; the list of `spec` is changed in place.
    """
    containers, value = spec.containers or [], operation["value"]
    try:
        container = containers[int(index)] = _copy(containers[int(index)])
        old = bytes(getattr(container, field))
        match operation["op"], *rest:
            case "add", "-":
                new = [*msgspec.json.decode(old, type=list[Raw]), value]
            case ("add",):
                new = value
            case "replace", at:
                new = msgspec.json.decode(old, type=list[Any])
                if value[: len(new[int(at)])] != new[int(at)]:
                    raise PatchError(f"{operation['path']} would lose a part of the script")
                new[int(at)] = value
            case _:
                raise PatchError(f"{operation['op']} {operation['path']} does not apply")
    except (IndexError, TypeError, ValueError, msgspec.DecodeError):
        raise PatchError(f"{operation['op']} {operation['path']} does not apply") from None
    setattr(container, field, Raw(msgspec.json.encode(new)))


def _copy(struct: _Struct) -> _Struct:
    return struct.__copy__()  # type: ignore[attr-defined, no-any-return]  # missing in msgspec's stubs


def _unescape(part: str) -> str:
    """Return the map key of a part of a JSON Pointer (RFC 6901)."""
    return part.replace("~1", "/").replace("~0", "~") if "~" in part else part


def apply_to_document(patch: Sequence[Operation], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Apply operations to a copy of a whole pod manifest, for display; without any, return it as it is.

    Raises:
        PatchError: an operation does not apply.
    """
    if not patch:
        return document
    result: dict[str, Any] = msgspec.to_builtins(document)
    for operation in patch:
        *parents, last = [_unescape(part) for part in operation["path"].split("/")[1:]]
        place: Any = result
        try:
            for part in parents:
                place = place[int(part) if isinstance(place, list) else part]
            if operation["op"] == "remove":
                del place[last]
            elif operation["op"] == "replace":
                place[int(last)] = operation["value"]
            elif isinstance(place, list):
                place.append(operation["value"])
            else:
                place[last] = operation["value"]
        except (IndexError, KeyError, TypeError, ValueError):
            raise PatchError(f"{operation['op']} {operation['path']} does not apply") from None
    return result


class Mutation(Struct, frozen=True, kw_only=True):
    """A decision and its patch."""

    decision: Decision
    pod: PodView | None = None
    """The pod as received; None if the decision did not need it, or if it could not be read."""
    planned: tuple[Operation, ...] = ()
    """The patch, which mode observe does not send."""

    @property
    def sent(self) -> tuple[Operation, ...]:
        """The patch to send: empty in mode observe."""
        return self.planned if self.decision.action is Action.INJECTED else ()


def mutate(
    policy: NamespacePolicy | None,
    document: bytes | Raw,
    settings: DecisionSettings,
    *,
    last: Mutation | None = None,
) -> Mutation:
    """Decide about a pod (JSON) and compute the patch; `policy` is None if its namespace is not managed.

    The patch is applied to a copy, and a second decision about the copy must require no change. A patch that
    fails this check is dropped: the pod is admitted unchanged, with the reason `patch-unsafe`.

    `last` is the mutation of another pod under the same policy and settings, which is returned again if this
    pod has the same fields.
    """
    if policy is None:
        return Mutation(decision=SKIPPED_NOT_MANAGED)
    decision = skip_namespace(policy, settings)
    if decision is not None:
        return Mutation(decision=decision)
    try:
        decoded = decode_document(document)
    except MalformedPod as error:
        return Mutation(decision=skip_malformed(error))
    if last is not None and last.pod is not None and _are_alike(last.pod.document, decoded):
        return last
    pod = PodView(decoded)
    decision = decide_pod(policy, pod, settings)
    if not decision.changes:
        return Mutation(decision=decision, pod=pod)
    planned = operations(decision.changes, pod)
    problem = _problem(policy, pod, planned, settings)
    if problem is not None:
        finding = Finding(Reason.PATCH_UNSAFE, {"problem": problem})
        return Mutation(
            decision=replace(decision, action=Action.ERROR, finding=finding, warnings=()), pod=pod
        )
    return Mutation(decision=decision, pod=pod, planned=tuple(planned))


def _are_alike(pod: PodDocument, other: PodDocument) -> bool:
    """Whether two pods have the same fields, of those that a decision reads."""
    try:
        return pod == other
    except RecursionError:  # a toleration with deep values, which the decoder just accepted
        return False


def _problem(
    policy: NamespacePolicy, pod: PodView, planned: list[Operation], settings: DecisionSettings
) -> str | None:
    """Describe what is wrong with a patch; None if the patched pod needs no further change."""
    try:
        second = decide_pod(policy, apply_to_pod(planned, pod), settings, warn=False)
    except PatchError as error:
        return str(error)
    if second.changes:
        return f"the patched pod still needs {second.changes}"
    if second.action is not Action.UNCHANGED:
        return f"the patched pod is {second.action.value}: {second.finding.sentence}"
    return None
