"""Proves that the guard refuses: sends forbidden edits by dry run."""

import asyncio
import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import msgspec
from msgspec import Struct

from kai import keys
from kube.access import AccessError
from kube.client import MERGE_PATCH
from kube.errors import REQUEST_ERRORS, ApiError, Unreachable
from kube.objects import FullMeta, decode_partial_object
from kube.watch import METADATA_ONLY
from service.text import MALFORMED, one_line
from webhook.doctor.api_reader import ApiReader, ListOutcome, ListSpec
from webhook.doctor.dry_run_requests import dry_run, minimal_pod, missing_right, unlikely_name

_MOST_TRIED: Final = 3
"""Maximum number of namespaces to try for each edit."""

_MOST_PODS: Final = 20
"""Number of pods of which the one with the shortest name is tried.

A refusal names the pod before the policy, and only the beginning of the API server's message is kept.
"""

_TAKES_EFFECT_SECONDS: Final = 1.5
"""Pause before an admitted edit is repeated. The API server needs about a second to load a policy."""

_KEY: Final = f"{keys.MIG_PREFIX}kaishare-doctor"
"""An annotation that only KAI may write."""

_PODS: Final = ListSpec(
    resource="pods", accept=METADATA_ONLY, without="the guard was not proved on existing pods"
)
_DENIAL: Final = re.compile(r"ValidatingAdmissionPolicy '([a-z0-9.-]+)' with binding '[^']*' denied")
_REVIEWS: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class EditTarget(Enum):
    """The object of a forbidden edit."""

    CONFIG_MAP = "a new ConfigMap"
    POD = "an existing pod"
    SYNCED_POD = "an existing pod of a vCluster"
    NEW_SYNCED_POD = "a new pod of a vCluster"


class Breach(Enum):
    """The rule that a forbidden edit breaks."""

    KEY = "key"
    QUEUE = "queue"
    OWNER = "owner"


@dataclass(frozen=True, slots=True)
class ForbiddenEdit:
    """An edit that exactly one policy refuses."""

    policy: str
    target: EditTarget
    breach: Breach


ENFORCE_EDITS: Final = (
    ForbiddenEdit("kaishare-guard-keys", EditTarget.POD, Breach.KEY),
    ForbiddenEdit("kaishare-guard-keys", EditTarget.CONFIG_MAP, Breach.KEY),
    ForbiddenEdit("kaishare-guard-owners", EditTarget.CONFIG_MAP, Breach.QUEUE),
    ForbiddenEdit("kaishare-guard-references", EditTarget.CONFIG_MAP, Breach.OWNER),
)
VCLUSTER_EDITS: Final = (
    ForbiddenEdit("kaishare-guard-keys", EditTarget.SYNCED_POD, Breach.KEY),
    ForbiddenEdit("kaishare-guard-keys", EditTarget.NEW_SYNCED_POD, Breach.KEY),
    ForbiddenEdit("kaishare-guard-queues", EditTarget.NEW_SYNCED_POD, Breach.QUEUE),
)


class TrialOutcome(Enum):
    """The result of a forbidden edit."""

    REFUSED = "refused"
    ADMITTED = "admitted"
    UNPROVED = "unproved"


@dataclass(frozen=True, slots=True)
class Trial:
    """A forbidden edit that was tried in a namespace."""

    edit: ForbiddenEdit
    outcome: TrialOutcome
    namespace: str = ""
    why: str = ""
    """Reason of `TrialOutcome.UNPROVED`."""


class _Review(Struct):
    status: dict[str, dict[str, Any]]


async def prove(
    reader: ApiReader, plan: Iterable[tuple[ForbiddenEdit, Sequence[str]]], exempt: Collection[str]
) -> list[Trial]:
    """Try each edit until the guard refuses or admits it.

    Args:
        reader: for the API server.
        plan: the edits, each with the namespaces in which the guard should refuse it.
        exempt: namespaces whose service accounts the guard exempts.
    """
    trials = [await _try_in_turn(reader, edit, namespaces) for edit, namespaces in plan]
    if all(trial.outcome is not TrialOutcome.ADMITTED for trial in trials):
        return trials
    if await _is_exempt(reader, exempt):
        why = "the caller's service account is exempt as one of KAI's"
        return [
            replace(trial, outcome=TrialOutcome.UNPROVED, why=why)
            if trial.outcome is TrialOutcome.ADMITTED
            else trial
            for trial in trials
        ]
    await asyncio.sleep(_TAKES_EFFECT_SECONDS)
    return [
        await _try(reader, trial.edit, trial.namespace) if trial.outcome is TrialOutcome.ADMITTED else trial
        for trial in trials
    ]


async def _try_in_turn(reader: ApiReader, edit: ForbiddenEdit, namespaces: Sequence[str]) -> Trial:
    trial = Trial(edit, TrialOutcome.UNPROVED, why="no namespace to try")
    for namespace in namespaces[:_MOST_TRIED]:
        trial = await _try(reader, edit, namespace)
        if trial.outcome is not TrialOutcome.UNPROVED:
            break
    return trial


async def _try(reader: ApiReader, edit: ForbiddenEdit, namespace: str) -> Trial:
    def unproved(why: str) -> Trial:
        return Trial(edit, TrialOutcome.UNPROVED, namespace, why)

    place = one_line(namespace)
    method, path, content_type = "POST", f"/api/v1/namespaces/{namespace}/pods", "application/json"
    if edit.target is EditTarget.CONFIG_MAP:
        path = f"/api/v1/namespaces/{namespace}/configmaps"
    elif edit.target is not EditTarget.NEW_SYNCED_POD:
        params = {"labelSelector": keys.VCLUSTER_MANAGED_BY} if edit.target is EditTarget.SYNCED_POD else {}
        spec = replace(_PODS, namespace=namespace, params=params)
        pods = await reader.first(spec, decode_partial_object, _MOST_PODS)
        if isinstance(pods, ListOutcome):
            return unproved(f"the pods of {place} could not be listed")
        if not pods:
            return unproved(f"no pod in {place}")
        name = min((pod.metadata.name for pod in pods), key=len)
        method, path, content_type = "PATCH", f"{path}/{name}", MERGE_PATCH
    body = _body(edit)
    try:
        answer = await dry_run(reader.client, method, path, body, content_type)
        is_kept = _keeps(decode_partial_object(answer).metadata, body["metadata"])
    except ApiError as error:
        denial = _DENIAL.search(error.message)
        if denial and denial[1] == edit.policy:
            return Trial(edit, TrialOutcome.REFUSED, namespace)
        right = missing_right(error)
        return unproved(f"the caller may not {right} in {place}" if right else f"{place}: {error.message}")
    except (Unreachable, AccessError, *MALFORMED) as error:
        return unproved(one_line(str(error)))
    if not is_kept:
        return unproved(f"{place}: a webhook removes the edit")
    return Trial(edit, TrialOutcome.ADMITTED, namespace)


def _body(edit: ForbiddenEdit) -> dict[str, Any]:
    """Return the object to create, or the patch."""
    metadata: dict[str, Any] = {}
    if edit.breach is Breach.KEY:
        metadata["annotations"] = {_KEY: "0"}
    elif edit.breach is Breach.QUEUE:
        metadata["labels"] = {keys.QUEUE_LABEL: unlikely_name()}
    else:
        owner = {"apiVersion": "v1", "kind": "Namespace", "name": unlikely_name(), "uid": str(uuid.uuid4())}
        metadata["ownerReferences"] = [owner]
    if edit.target is EditTarget.CONFIG_MAP:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": unlikely_name(), **metadata}}
    if edit.target is EditTarget.NEW_SYNCED_POD:
        labels = {keys.VCLUSTER_MANAGED_BY: "kaishare-doctor", **metadata.pop("labels", {})}
        return minimal_pod(labels=labels, **metadata)
    return {"metadata": metadata}


def _keeps(stored: FullMeta, sent: Mapping[str, Any]) -> bool:
    """Whether a stored object has the labels, annotations and owners that were sent."""
    labels, annotations = sent.get("labels", {}), sent.get("annotations", {})
    return (
        labels.items() <= stored.labels.items()
        and annotations.items() <= stored.annotations.items()
        and ("ownerReferences" not in sent or bool(stored.owner_references))
    )


async def _is_exempt(reader: ApiReader, exempt: Collection[str]) -> bool:
    """Whether the caller is a service account that the guard exempts."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await reader.client.request("POST", _REVIEWS, body=msgspec.json.encode(review))
        user = msgspec.json.decode(answer, type=_Review).status.get("userInfo", {})
    except (*REQUEST_ERRORS, *MALFORMED):
        return False
    name = str(user.get("username", ""))
    return name.startswith(tuple(f"system:serviceaccount:{namespace}:" for namespace in exempt))
