"""Proves that the guard refuses: sends forbidden requests by dry run, with the caller's rights."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct

from console.cluster.facts import FactReader, items
from console.doctor.admission import MEMBERS, OBJECTS, PODGROUPS, PODS, Guarded
from console.doctor.cluster_state import ClusterFacts
from console.doctor.dry_run import dry_run, dry_run_deletion, minimal_pod, missing_right, unlikely_name
from kai import keys
from kube.access import AccessError
from kube.answers import REQUEST_ERRORS, ApiError, Unreachable
from kube.kinds import CONFIG_MAPS, POD_GROUPS, PodGroup
from kube.kinds import PODS as KIND_OF_PODS
from service.text import ELLIPSIS, MALFORMED, one_line

_MOST_TRIED: Final = 3
"""Maximum number of namespaces, or of PodGroups, to try for each request."""

_TAKES_EFFECT_SECONDS: Final = 1.5
"""Pause before an admitted request is repeated. The API server needs about a second to load a policy."""

_KEY: Final = f"{keys.MIG_PREFIX}kaishare-doctor"
"""An annotation that only KAI may write."""
_DENIAL: Final = re.compile(
    r"ValidatingAdmissionPolicy '([a-z0-9.-]{1,253})' with binding '[^']{1,253}' denied request: "
)
_WORDS: Final = "kaishare-guard: "
"""Beginning of the messages of the guard."""
_REVIEWS: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


class Breach(Enum):
    """A forbidden request: the policy that must refuse it, a title, and the words of the refusal.

    The optional policy `MEMBERS` may be first to refuse the deletion: the API server returns one refusal.
    """

    FOREIGN_QUEUE = PODGROUPS, "a new PodGroup in another queue", "queue "
    HELD_GROUP = (
        PODGROUPS,
        "the deletion of a PodGroup with pods",
        "pods of this PodGroup exist",
        {MEMBERS: "pod "},
    )
    KEY = PODS, "a new pod with a key of KAI", _KEY
    CONFIG_MAP = OBJECTS, "a new ConfigMap with a name of KAI's", "only KAI writes a ConfigMap"

    def __init__(
        self, policy: str, title: str, words: str, others: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.policy = policy
        self.title = title
        self.words_by_policy = {policy: words, **others}

    @property
    def has_exemptions(self) -> bool:
        """Whether the rule lets accounts of KAI pass; the rules about PodGroups hold for everybody."""
        return self.policy != PODGROUPS


class TrialOutcome(Enum):
    """The result of a forbidden request."""

    REFUSED = "refused"
    ADMITTED = "admitted"
    UNPROVED = "unproved"


@dataclass(frozen=True, slots=True)
class Trial:
    """A forbidden request that was tried in a namespace."""

    breach: Breach
    outcome: TrialOutcome
    namespace: str = ""
    why: str = ""
    """Reason of `TrialOutcome.UNPROVED`."""


class _Review(Struct):
    status: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Prover:
    """Sends the forbidden requests of one cluster."""

    reader: FactReader
    cluster: ClusterFacts
    exempt: Collection[str]
    """Namespaces whose service accounts the guard exempts."""

    async def prove(self, guarded: Guarded, plan: Iterable[tuple[Breach, Sequence[str]]]) -> list[Trial]:
        """Try each request until the guard refuses or admits it.

        Args:
            guarded: the reason why the namespaces are guarded.
            plan: the requests, each with the namespaces in which the guard should refuse it.
        """
        trials = [await self._try_in_turn(guarded, breach, namespaces) for breach, namespaces in plan]
        if not any(trial.outcome is TrialOutcome.ADMITTED for trial in trials):
            return trials
        is_exempt = await self._is_exempt()
        await asyncio.sleep(_TAKES_EFFECT_SECONDS)
        return [
            await self._confirmed(guarded, trial, is_exempt=is_exempt)
            if trial.outcome is TrialOutcome.ADMITTED
            else trial
            for trial in trials
        ]

    async def _confirmed(self, guarded: Guarded, trial: Trial, *, is_exempt: bool) -> Trial:
        """Repeat an admitted request: the policy may have been applied a moment ago."""
        if is_exempt and trial.breach.has_exemptions:
            why = "the caller's service account is exempt as one of KAI's"
            return replace(trial, outcome=TrialOutcome.UNPROVED, why=why)
        return await self._try(guarded, trial.breach, trial.namespace)

    async def _try_in_turn(self, guarded: Guarded, breach: Breach, namespaces: Sequence[str]) -> Trial:
        trial = Trial(breach, TrialOutcome.UNPROVED, why="no namespace to try")
        for namespace in namespaces[:_MOST_TRIED]:
            trial = await self._try(guarded, breach, namespace)
            if trial.outcome is not TrialOutcome.UNPROVED:
                break
        return trial

    async def _try(self, guarded: Guarded, breach: Breach, namespace: str) -> Trial:
        if breach is Breach.HELD_GROUP:
            return await self._try_deletion(namespace)
        labels = {keys.VCLUSTER_MANAGED_BY: "kaishare-doctor"} if guarded is Guarded.VCLUSTERS else {}
        path, body = _creation(breach, namespace, labels)

        async def create() -> str:
            stored = msgspec.json.decode(await dry_run(self.reader.client, "POST", path, body))
            return "" if _keeps(stored, body) else "a webhook removes what is forbidden"

        return await _judged(breach, namespace, create)

    async def _try_deletion(self, namespace: str) -> Trial:
        """Delete a PodGroup with pods by dry run; it may lose its pods meanwhile."""
        groups = self.cluster.pod_groups
        own = [each for each in items(groups) if each.metadata.namespace == namespace and each.has_pods]
        own.sort(key=lambda each: len(each.metadata.name))  # a refusal names the object before the rule
        why = "PodGroups could not be listed" if groups.value is None else "no PodGroup with pods"
        trial = Trial(Breach.HELD_GROUP, TrialOutcome.UNPROVED, namespace, f"{one_line(namespace)}: {why}")
        for group in own[:_MOST_TRIED]:

            async def delete(group: PodGroup = group) -> str:
                path = POD_GROUPS.path(namespace, group.metadata.name)
                await dry_run_deletion(self.reader.client, path)
                group = POD_GROUPS.decode(await self.reader.client.get(path))
                return "" if group.has_pods else "the PodGroup has no pods any more"

            trial = await _judged(Breach.HELD_GROUP, namespace, delete)
            if trial.outcome is not TrialOutcome.UNPROVED:
                break
        return trial

    async def _is_exempt(self) -> bool:
        """Whether the caller is a service account that the guard exempts."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        try:
            answer = await self.reader.client.request("POST", _REVIEWS, body=msgspec.json.encode(review))
            user = msgspec.json.decode(answer, type=_Review).status.get("userInfo", {})
        except (*REQUEST_ERRORS, *MALFORMED):
            return False
        name = str(user.get("username", ""))
        return name.startswith(tuple(f"system:serviceaccount:{namespace}:" for namespace in self.exempt))


async def _judged(breach: Breach, namespace: str, send: Callable[[], Awaitable[str]]) -> Trial:
    """Send a request and judge the answer.

    Only a refusal with the words of the rule is a proof: RBAC, a quota or another policy may refuse, too.

    Args:
        breach: the request.
        namespace: its namespace.
        send: sends it; returns why an admission says nothing, or an empty text.
    """
    place = one_line(namespace)

    def unproved(why: str) -> Trial:
        return Trial(breach, TrialOutcome.UNPROVED, namespace, why)

    try:
        obstacle = await send()
    except ApiError as error:
        if _is_refusal_of(breach, error.message):
            return Trial(breach, TrialOutcome.REFUSED, namespace)
        right = missing_right(error)
        return unproved(f"the caller may not {right} in {place}" if right else f"{place}: {error.message}")
    except (Unreachable, AccessError, *MALFORMED) as error:
        return unproved(one_line(str(error)))
    return unproved(f"{place}: {obstacle}") if obstacle else Trial(breach, TrialOutcome.ADMITTED, namespace)


def _is_refusal_of(breach: Breach, message: str) -> bool:
    """Whether a message is the guard's; a long one, with the name of a PodGroup, may lack its end."""
    denial = _DENIAL.search(message)
    if denial is None or denial[1] not in breach.words_by_policy:
        return False
    sentence, expected = message[denial.end() :], _WORDS + breach.words_by_policy[denial[1]]
    words = sentence.removesuffix(ELLIPSIS)
    return words.startswith(expected) or (words != sentence and expected.startswith(words))


def _creation(breach: Breach, namespace: str, labels: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request that creates a forbidden object."""
    if breach is Breach.FOREIGN_QUEUE:
        # a name that the rule about names admits
        metadata = {"name": f"spark-{unlikely_name()}", "labels": labels}
        body = {
            "apiVersion": f"{POD_GROUPS.group}/{POD_GROUPS.version}",
            "kind": "PodGroup",
            "metadata": metadata,
        }
        return POD_GROUPS.path(namespace), {**body, "spec": {"queue": unlikely_name(), "minMember": 1}}
    if breach is Breach.CONFIG_MAP:
        metadata = {"name": f"{unlikely_name()}-shared-gpu-0", "labels": labels}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        return CONFIG_MAPS.path(namespace), body
    return KIND_OF_PODS.path(namespace), minimal_pod(labels=labels, annotations={_KEY: "0"})


def _keeps(stored: Any, sent: Mapping[str, Any]) -> bool:
    """Whether an object would be stored with the labels, annotations, name and queue that were sent."""
    metadata, wanted = stored.get("metadata") or {}, sent["metadata"]
    return (
        metadata.get("name") == wanted["name"]
        and all(
            (metadata.get(part) or {}).items() >= wanted.get(part, {}).items()
            for part in ("labels", "annotations")
        )
        and (stored.get("spec") or {}).get("queue") == sent.get("spec", {}).get("queue")
    )
