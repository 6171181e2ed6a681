"""Proves that the guard refuses: sends forbidden requests by dry run, with the caller's rights."""

import asyncio
import re
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import msgspec

from console.cluster.facts import Listing, items
from console.doctor.admission import MEMBERS, OBJECTS, PODGROUPS, PODS, Guarded
from console.doctor.dry_run import dry_run, minimal_pod, missing_right, unlikely_name
from kai import keys
from kube import kinds
from kube.access import AccessError
from kube.answers import REQUEST_ERRORS, ApiError, Unreachable
from kube.client import KubeClient
from service.text import ELLIPSIS, MALFORMED, one_line

_MOST_TRIED: Final = 3  # maximum number of namespaces, or of PodGroups, to try for each request
_TAKES_EFFECT_SECONDS: Final = 1.5
"""Pause before an admitted request is repeated. The API server needs about a second to load a policy."""
_KEY: Final = f"{keys.MIG_PREFIX}kaishare-doctor"  # an annotation that only KAI may write
_DENIAL: Final = re.compile(
    r"ValidatingAdmissionPolicy '([a-z0-9.-]{1,253})' with binding '[^']{1,253}' denied request: "
)
_WORDS: Final = "kaishare-guard: "  # beginning of the messages of the guard
_REVIEWS: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class Breach(Enum):
    """A forbidden request: a title, and the words of the refusal by the policy that must refuse it.

    The optional policy `MEMBERS` may be first to refuse the deletion: the API server returns one refusal.
    """

    FOREIGN_QUEUE = "a new PodGroup in another queue", PODGROUPS, {PODGROUPS: "queue "}
    HELD_GROUP = (
        "the deletion of a PodGroup with pods",
        PODGROUPS,
        {PODGROUPS: "pods of this PodGroup exist", MEMBERS: "pod "},
    )
    KEY = "a new pod with a key of KAI", PODS, {PODS: _KEY}
    CONFIG_MAP = "a new ConfigMap with a name of KAI's", OBJECTS, {OBJECTS: "only KAI writes a ConfigMap"}

    def __init__(self, title: str, policy: str, words_by_policy: Mapping[str, str]) -> None:
        self.title, self.policy, self.words_by_policy = title, policy, words_by_policy


@dataclass(frozen=True, slots=True)
class Trial:
    """A forbidden request that was tried in a namespace."""

    breach: Breach
    namespace: str
    why: str  # why the request proves nothing; empty if the guard refused or admitted it
    is_refused: bool = False

    @property
    def is_admitted(self) -> bool:
        """Whether the guard does not act."""
        return not self.is_refused and not self.why


async def prove(
    client: KubeClient,
    groups: Listing[kinds.PodGroup],
    exempt: Collection[str],
    guarded: Guarded,
    refusing: Mapping[str, Sequence[str]],
) -> list[Trial]:
    """Try each request until the guard refuses or admits it; an admitted one again.

    The guard exempts the service accounts of the namespaces `exempt`. A policy should refuse in the
    namespaces that `refusing` has for it.
    """
    trials = []
    for breach in Breach:
        namespaces = sorted(refusing.get(breach.policy, ()))[:_MOST_TRIED]
        for namespace in namespaces:
            trial = await _try(client, groups, guarded, breach, namespace)
            # The rules about PodGroups hold for accounts of KAI, too.
            if trial.is_admitted and breach.policy != PODGROUPS and await _is_exempt(client, exempt):
                trial = replace(trial, why="the caller's service account is exempt as one of KAI's")
            elif trial.is_admitted:
                await asyncio.sleep(_TAKES_EFFECT_SECONDS)
                trial = await _try(client, groups, guarded, breach, namespace)
            if not trial.why:
                break
        trials += [trial] if namespaces else []
    return trials


async def _try(
    client: KubeClient, groups: Listing[kinds.PodGroup], guarded: Guarded, breach: Breach, namespace: str
) -> Trial:
    if breach is not Breach.HELD_GROUP:
        labels = {keys.VCLUSTER_MANAGED_BY: "kaishare-doctor"} if guarded is Guarded.VCLUSTERS else {}
        return await _judged(breach, namespace, _create(client, *_creation(breach, namespace, labels)))
    own = [each for each in items(groups) if each.metadata.namespace == namespace and each.has_pods]
    own.sort(key=lambda each: len(each.metadata.name))  # a refusal names the object before the rule
    why = "PodGroups could not be listed" if groups.value is None else "no PodGroup with pods"
    trial = Trial(breach, namespace, f"{one_line(namespace)}: {why}")
    for group in own[:_MOST_TRIED]:
        path = kinds.POD_GROUPS.path(namespace, group.metadata.name)
        trial = await _judged(breach, namespace, _delete(client, path))
        if not trial.why:
            break
    return trial


async def _create(client: KubeClient, path: str, body: Mapping[str, Any]) -> str:
    stored = msgspec.json.decode(await dry_run(client, path, body))
    return "" if _keeps(stored, body) else "a webhook removes what is forbidden"


async def _delete(client: KubeClient, path: str) -> str:
    await dry_run(client, path)
    group = kinds.POD_GROUPS.decode(await client.get(path))  # it may have lost its pods meanwhile
    return "" if group.has_pods else "the PodGroup has no pods any more"


async def _is_exempt(client: KubeClient, exempt: Collection[str]) -> bool:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await client.request("POST", _REVIEWS, body=msgspec.json.encode(review))
        name = kinds.text_at(msgspec.json.decode(answer), "status", "userInfo", "username")
    except (*REQUEST_ERRORS, *MALFORMED):
        return False
    return name.startswith(tuple(f"system:serviceaccount:{namespace}:" for namespace in exempt))


async def _judged(breach: Breach, namespace: str, request: Awaitable[str]) -> Trial:
    """Send a request and judge the answer; it returns why an admission says nothing, or an empty text.

    Only a refusal with the words of the rule is a proof: RBAC, a quota or another policy may refuse, too.
    """
    place = one_line(namespace)
    try:
        obstacle = await request
        why = f"{place}: {obstacle}" if obstacle else ""
    except ApiError as error:
        if _is_refusal_of(breach, error.message):
            return Trial(breach, namespace, "", is_refused=True)
        right = missing_right(error)
        why = f"the caller may not {right} in {place}" if right else f"{place}: {error.message}"
    except (Unreachable, AccessError, *MALFORMED) as error:
        why = one_line(str(error))
    return Trial(breach, namespace, why)


def _is_refusal_of(breach: Breach, message: str) -> bool:
    """Whether a message is the guard's; a long one, with the name of a PodGroup, may lack its end."""
    denial = _DENIAL.search(message)
    if denial is None or denial[1] not in breach.words_by_policy:
        return False
    sentence, expected = message[denial.end() :], _WORDS + breach.words_by_policy[denial[1]]
    words = sentence.removesuffix(ELLIPSIS)
    return words.startswith(expected) or (words != sentence and expected.startswith(words))


def _creation(breach: Breach, namespace: str, labels: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    if breach is Breach.FOREIGN_QUEUE:
        kind = kinds.POD_GROUPS
        metadata = {"name": f"spark-{unlikely_name()}", "labels": labels}  # the rule about names admits it
        body = {"apiVersion": f"{kind.group}/{kind.version}", "kind": kind.name, "metadata": metadata}
        return kind.path(namespace), {**body, "spec": {"queue": unlikely_name(), "minMember": 1}}
    if breach is Breach.CONFIG_MAP:
        metadata = {"name": f"{unlikely_name()}-shared-gpu-0", "labels": labels}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        return kinds.CONFIG_MAPS.path(namespace), body
    return kinds.PODS.path(namespace), minimal_pod(labels=labels, annotations={_KEY: "0"})


def _keeps(stored: Any, sent: Mapping[str, Any]) -> bool:
    """Whether an object would be stored with the labels, annotations, name and queue that were sent."""
    metadata, wanted = stored.get("metadata") or {}, sent["metadata"]
    parts = ("labels", "annotations")
    return (
        metadata.get("name") == wanted["name"]
        and all((metadata.get(part) or {}).items() >= wanted.get(part, {}).items() for part in parts)
        and (stored.get("spec") or {}).get("queue") == sent.get("spec", {}).get("queue")
    )
