"""What the admission policy does with a pod, computed from `decide` and the closed list of differences."""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from console.render import expressions
from docs.form_differences import DifferenceName
from kai import keys
from kai.command_lines import LONGEST_COMMAND_LINE
from kai.kaishare_keys import SIZE_PREFIX
from kai.numbers import is_quantity
from kai.pod import PodView, decode_pod
from kai.share import is_container_memory_key
from tests.support.decisions import decide
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import Mode, NamespacePolicy
from webhook.policy.patch import apply_to_document, operations
from webhook.policy.reasons import Action
from webhook.policy.verify import verify

Json = dict[str, Any]
_TORCH: Final = re.compile(r"torchrun|torch[.]distributed[.]run|torch[.]distributed[.]launch")
_NODES: Final = re.compile(r"--nnodes?[=\s]+(\S*)", re.ASCII)
_REFERENCE: Final = re.compile(r"(?:^|\s)[$]", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Expected:
    pod: Json
    is_denied: bool
    differences: Sequence[DifferenceName]


def expected(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    namespace: str,
    pod: Json,
    rules: DecisionSettings,
    user: str,
) -> Expected:
    """Compute what the policies do, and the differences that apply to the pod."""
    policy = NamespacePolicy.from_labels(namespace, labels, annotations, default_mode=rules.default_mode)
    if policy is None:
        return Expected(pod=pod, is_denied=False, differences=())
    is_enforced = policy.mode is Mode.ENFORCE and namespace not in rules.excluded_namespaces
    if _is_large(pod):
        return Expected(pod=pod, is_denied=is_enforced, differences=[DifferenceName.LARGE_PODS])
    differences = []
    rules = replace(rules, by_admission_policies=True)
    if any(key.startswith(SIZE_PREFIX) and key in labels for key in annotations):
        differences.append(DifferenceName.SELECTORS)
    judged = pod
    if any(map(_is_read_otherwise, pod["spec"]["containers"])):
        judged = _as_policies_read_it(pod)
        differences.append(DifferenceName.COMMANDS)
    decision = decide(policy, judged, rules)
    changed = pod
    if decision.action is Action.INJECTED:
        original = decode_pod(json.dumps(pod).encode())
        changed = copy.deepcopy(dict(apply_to_document(operations(decision.changes, original), pod)))
    view = decode_pod(json.dumps(changed).encode())
    is_denied = not verify(policy, view, rules, user).is_allowed
    is_capped = policy.max_fraction is not None or policy.max_memory_mib is not None
    if is_enforced and is_capped and not view.is_of_daemon_set and not _has_plain_share(view):
        differences.append(DifferenceName.PLAIN_SHARES)
        is_denied = True
    return Expected(pod=changed, is_denied=is_denied, differences=differences)


def _has_plain_share(pod: PodView) -> bool:
    forms = (
        (keys.GPU_FRACTION, r"0?[.][0-9]{1,30}"),
        (keys.GPU_MEMORY, r"[0-9]{1,18}"),
        (keys.NUM_DEVICES, r"[1-9][0-9]{0,8}"),
    )
    amounts = (value for key, value in pod.annotations.items() if is_container_memory_key(key))
    return all(
        re.fullmatch(form, pod.annotations[key], re.ASCII) for key, form in forms if key in pod.annotations
    ) and all(map(is_quantity, amounts))


def differences_of_pod(pod: Json) -> Iterator[DifferenceName]:
    if _is_large(pod):
        yield DifferenceName.LARGE_PODS
    if any(map(_is_read_otherwise, pod["spec"]["containers"])):
        yield DifferenceName.COMMANDS


def _is_large(pod: Json) -> bool:
    metadata, spec = pod.get("metadata") or {}, pod["spec"]
    lists = [spec["containers"], spec.get("initContainers") or []]
    return (
        any(len(metadata.get(part) or {}) > expressions.MOST_KEYS for part in ("labels", "annotations"))
        or len(spec.get("tolerations") or []) > expressions.MOST_KEYS
        or len(metadata.get("ownerReferences") or []) > expressions.MOST_OWNERS
        or any(len(containers) > expressions.MOST_CONTAINERS for containers in lists)
        or any(sum(map(_entries, containers)) > expressions.MOST_ENTRIES for containers in lists)
    )


def _entries(container: Json) -> int:
    resources = container.get("resources") or {}
    lists = [resources.get(kind) for kind in ("limits", "requests")]
    lists += [container.get(field) for field in ("env", "command", "args")]
    return sum(len(each or ()) for each in lists)


def _may_be_rank(container: Json) -> bool:
    """Whether the policy takes the container with the GPU for a rank, and the webhook may not."""
    for variable in container.get("env") or ():
        if variable["name"] == "TF_CONFIG":
            cluster = variable.get("value") or ""
            break
    else:
        cluster = ""
    line = _line(container)
    return bool(cluster) or (
        _TORCH.search(line) is not None
        and (any(value != "1" for value in _NODES.findall(line)) or _REFERENCE.search(line) is not None)
    )


def _line(container: Json) -> str:
    line = "\n".join([*(container.get("command") or ()), *(container.get("args") or ())])
    return line[:LONGEST_COMMAND_LINE]


def _is_read_otherwise(container: Json) -> bool:
    return _TORCH.search(_line(container)) is not None or _may_be_rank(container)


def _as_policies_read_it(pod: Json) -> Json:
    """Return the pod without commands, and with evidence in each of its containers that may be a rank."""
    made = copy.deepcopy(pod)
    for container in made["spec"]["containers"]:
        if _may_be_rank(container):
            container["env"] = [*(container.get("env") or ()), {"name": "WORLD_SIZE", "value": "2"}]
        container.pop("command", None)
        container.pop("args", None)
    return made
