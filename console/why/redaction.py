"""Words of `kaishare why` that come from other objects: which of them are shown.

`words.Redactor` hides every other word, since it may be the name of an object that the user may not list.
The words are those of the messages of KAI, Kubernetes' scheduler, kubelet, API server and admission webhooks,
vCluster's syncer and the agent. A word that could be the name of a team or a workload does not belong here.

KAI's messages, Events and refusals can name objects of other tenants anywhere: nodes' other pods, queues,
namespaces. Their texts change with each release, so no list of patterns could find every name. A word is
therefore shown only if it is on a list, or has a form that no name of a Kubernetes object has.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final

import msgspec
from msgspec import Struct

from console.why.evidence import PodEvidence, known
from console.why.evidence_objects import EventObject, PodObject
from console.why.membership import workload_of
from kai import kaishare_keys, key_classes, keys
from kai.frameworks import FRAMEWORKS
from kube.kinds import FullMeta
from service.text import ELLIPSIS, LONGEST_LINE, LONGEST_VALUE, MALFORMED, one_line, shorten

_WORDS: Final = """
    a able about above accept accepted access active actually additional address admission admit
    admitted affinity after again against all allocatable allocate allocated allocation allocations
    allow allowable allowed allows almost already also although always among amount an and annotation
    annotations another answer any applied apply are as ask asks assign assigned at attach attached
    attempt attempting attempts authorized available await awaiting away back backoff bad be became
    because been before being below beside between bind binder binding blocked both bound but by bytes
    call called caller calling calls can cannot cant capabilities capacity card cards change changed
    changes changing check checked claim claims class classes client cluster combined command committed
    compatible complete completed condition conditions configmap configmaps configuration configured
    conflict conflicts connect connection connections consider considered contact container containers
    contains context controlled controller copy core cores correct could count counts cpu crash crashed
    crashing create created creates creating creation current currently deadline decided decision
    default defined delete deleted deleting deletion denied deny desired detached device devices dial
    did died differ different differs directly directory disabled disk disks does doing done down driver
    due during each either empty enabled end ended enforced enough entered entries entry ephemeral equal
    error errors event events ever every evict evicted evicting eviction exceed exceeded exceeding
    exceeds except exclude excluded executing exist existing exists exit exited expect expected expired
    exporting extra fail failed failing fails failure failures false few field fields file files find
    first fit fits following for forbidden format found fraction fractional free from fulfilled further
    gang gate gated gates get gets give given go got gpu gpus gpusharing grace granted greater group
    grouped groups had handle has have held higher hint hit hold holds host hosts how however if ignored
    image images immediate immediately in incompatible inconsistent incorrect index ineligible init
    initialized initializing insufficient into invalid is it its itself job jobs just keep keeps key
    keys kind kinds known kubelet label labels lack lacks large larger last later latest leader least
    leave left less level levels like limit limited limits line list listed lock long longer low lower
    made make managed manager manifest manually many master match matched matches matching maximum may
    mean memory message met migrated minimum missing mixed mode modified more most mount mounted
    mounting mounts move multiple must mutated mutating name named names namespace namespaced namespaces
    need needed needs negative neither never new newest next no node nodes non none nor not nothing
    notify now number numbers object objects observed obtained occupied occurred of off offer offers old
    older on once one only onto open operation operations option options or other others otherwise out
    outside over overcommitted own owned owner owners parent part partition partitions pass passed patch
    path pause per permitted persistent phase pipelined place placed placement please plugin plugins pod
    podgroup podgroups pods policies pool pools port ports positive possible preempt preempted
    preemptible preempting preemption prefer preferred present pressure prevent previous priorities
    priority probe process processes processing promised provide provided provider provision provisioner
    provisioning pull pulled pulling put quantity queue queued queues quota quotas range rank ranks
    reach reached read readiness reading ready really reason reasons receive received recent reclaim
    reclaimable reclaimed reconcile recreate recreated reference refers refuse refused register
    registered reject rejected related release released remain remaining remains remove removed removing
    replace replaced replica replicas report reported request requested requests require required
    requirement requirements requires reschedule rescheduled reservation reservations reserve reserved
    reserving reset resize resource resources respond responded response restart restarted restarting
    restarts restore restored result retried retry retrying return returned role roles room rule rules
    run running runs runtime same sample samples satisfied satisfy saved scale scaled schedule scheduled
    scheduler schedulers schedules scheduling second seconds secret secrets see seen select selected
    selector selectors send sent server service serviceaccount set sets setting settings several shard
    share shared shares sharing should shown shut shutdown shutting signal similar simultaneously since
    single size sizes skip skipped slack smaller so some source space spec specification specified
    specify spread stale start started starting starts state states status still stop stopped storage
    store string stuck subgroup subgroups subject succeed succeeded successful successfully such
    sufficient suitable support supported supports suspended sync synced syncer syncing taint tainted
    taints take taken takes target task tasks tcp temporarily terminated terminating termination than
    that the their them then there these they this those threshold through time timed timeout times to
    together token tolerate tolerated toleration tolerations too top topology topped total tree tried
    true try trying two type unable unavailable unbound uncordon undefined under unexpected unhealthy
    unknown unless unlimited unmet unschedulable unset unsupported until untolerated up update updated
    updates usage use used user users uses using utilization valid validate validating validation value
    values version versions via victim violate violated violates volume volumes wait waited waiting
    waits want wanted wants warning was watch way webhook webhooks were what when where whether which
    while who whole whose will with within without worker workers workload workloads would write writes
    written wrong yet you your zero zone zones internal max min post
    chose chosen code desc digest resolve resolved rpc sandbox unauthorized unpack
    daemonset deployment deployments replicaset revision statefulset
"""
WORDS: Final = frozenset(_WORDS.split())
"""Words in lower case."""

_COMPOUNDS: Final = """
    affinity/selector anti-affinity back-off best-effort bin-pack cluster-wide co-located co-scheduled
    cpu-only device-plugin fair-share fair-shares full-gpu gpu-index gpu-operator gpu-sharing i/o
    in-flight init-container multi-gpu multi-node namespace/name node-group node-groups node-pool
    node-pools non-empty non-mig non-preemptible non-zero not-ready over-quota over-share
    over-subscription per-gpu per-node pod-group pod-grouper pod-level post-start pre-bind pre-empted
    pre-stop re-created re-queued re-scheduled read-only read-write run-time sub-group sub-groups
    sub-resource time-out time-outs time-slicing under-quota up-to-date whole-gpu
"""
_COMPONENTS: Final = """
    admission.kai-scheduler.svc binder kai-00-kaishare kai-admission kai-binder kai-node-scale-adjuster
    kai-operator kai-podgroup-controller kai-queue-controller kai-scheduler kai-scheduler-default
    kaishare kaishare-agent kaishare-webhook kube-apiserver kube-controller-manager kube-scheduler
    mutate.kaishare.dev namespaces.validate.kaishare.dev nvidia nvidia-device-plugin podgroup-controller
    podgroup-mutator podgroupcontroller podgrouper pods.mutate.kaishare.dev pods.validate.kaishare.dev
    queue-controller resource-reservation validate.kaishare.dev
"""
_RESOURCES: Final = """
    apps/v1 batch/v1 bindrequests.scheduling.run.ai count/pods cpu deployments.apps ephemeral-storage
    jobs.batch kai.scheduler limits.cpu limits.memory memory podgroups.scheduling.run.ai
    queues.scheduling.run.ai replicasets.apps requests.cpu requests.ephemeral-storage requests.memory
    requests.storage scheduling.run.ai schedulingshards.kai.scheduler statefulsets.apps
    topologies.kai.scheduler topologies.kueue.x-k8s.io
"""
_NODE_KEYS: Final = """
    kubernetes.io/arch kubernetes.io/hostname kubernetes.io/os node-role.kubernetes.io/control-plane
    node-role.kubernetes.io/master node.kubernetes.io/disk-pressure node.kubernetes.io/instance-type
    node.kubernetes.io/memory-pressure node.kubernetes.io/network-unavailable
    node.kubernetes.io/not-ready node.kubernetes.io/out-of-service node.kubernetes.io/pid-pressure
    node.kubernetes.io/unreachable node.kubernetes.io/unschedulable nvidia.com/gpu.present
    topology.kubernetes.io/region topology.kubernetes.io/zone
"""


def _keys() -> set[str]:
    """Return the keys of KAI and kaishare that are compounds and have no variable part."""
    constants = {**vars(keys), **vars(kaishare_keys)}
    strings = [value for name, value in constants.items() if name.isupper() and isinstance(value, str)]
    strings += [row.key for row in key_classes.TABLE if not row.is_prefix]
    strings += [framework.option.lstrip("-") for framework in FRAMEWORKS]
    return {
        text for text in strings if text[-1:] not in "/.-=" and " " not in text and set(text) & set("/.-")
    }


FIXED: Final = frozenset(
    {
        *_COMPOUNDS.split(),
        *_COMPONENTS.split(),
        *_RESOURCES.split(),
        *_NODE_KEYS.split(),
        *_keys(),
        *kaishare_keys.AGENT_EXCLUDED_NAMESPACES,
    }
)
"""Compounds, programs, resources and keys that are shown as they are; compounds in lower case."""


_LONGEST_INPUT: Final = 4096
"""Characters of a message that are read; KAI's longest recorded message has fewer than 2000."""

_LONGEST_WORD: Final = 600
"""Longest word that is compared, in characters: a namespace, a slash and a name have at most 507."""

_MOST_STRINGS: Final = 2000
"""Values of a pod's specification that count as known names."""

_OF_KAI: Final = "kai.scheduler/"
"""Prefix of the labels and annotations by which a workload names a queue, a node pool or a topology."""

_JOINERS: Final = "-./:=@+~?&%#"
"""Punctuation that joins parts to one word."""

_SEPARATOR = re.compile(r"([^\w\-./:=@+~?&%#])", re.ASCII)
"""A character between two words: white space, a quote, a bracket."""
_SPACING: Final = frozenset({"", " ", ",", ";"})
_NEGATED: Final = frozenset(
    {"aren", "couldn", "didn", "doesn", "don", "hadn", "hasn", "haven", "isn", "wasn", "weren", "wouldn"}
)
"""Words before `'t`."""
_UNITS: Final = frozenset({"s", "h", "d"})
"""Units of `service.units.duration` that are no words."""
_FOREIGN = re.compile(r"[^\x00-\x7f…“”‘’–—×·→≥≤\ufffd]")
_NUMBER = re.compile(r"[0-9]+(?:[./:][0-9]+)?(?:[KMGTP]i?B?|ms|s|m|h)?")
_DURATION = re.compile(r"(?:[0-9]{1,4}h)?(?:[0-9]{1,4}m)?[0-9]{1,4}(?:\.[0-9]{1,9})?s")
_CAMEL_CASE = re.compile(r"[A-Za-z0-9][a-z0-9]*[A-Z][A-Za-z0-9]*")
_ACRONYM = re.compile(r"[A-Z][A-Z0-9]+s?")
_GPU_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{36}")
_PARTS = re.compile(r"[.-]")
_VALUE = re.compile(r"[=:]")
_RESOURCE_WORDS: Final = FIXED | {"pods", "cpu", "memory", "services"}
_NOT_IN_NAME = re.compile(r"([^a-z0-9.-])")
_SUFFIX = re.compile(r"-(?:[bcdfghjklmnpqrstvwxz2456789]{5})?")
"""The end of a generated name (apimachinery, `pkg/util/rand`)."""


@dataclass(frozen=True, slots=True)
class Redactor:
    """Replaces words that may be names which the user does not know by `…`."""

    names: frozenset[str] = frozenset()
    """Names that the user knows."""
    sees_all: bool = False
    """Whether nothing is hidden."""

    @classmethod
    def of(cls, evidence: PodEvidence) -> "Redactor":
        """Take the names of the objects that were read with the user's rights."""
        return cls(frozenset(filter(None, _names(evidence))), evidence.sees_all)

    def name(self, name: str) -> str:
        """Return the name of an object in one line, or `…` if the user does not know it."""
        return one_line(name, LONGEST_VALUE * 2) if self.sees_all or name in self.names else ELLIPSIS

    def clean(self, text: str, limit: int = LONGEST_LINE) -> str:
        """Return a message in one line, in which only words that cannot be names are shown.

        A plain number stays, although a name may consist of digits.

        Args:
            text: untrusted text; the first 4096 characters are read.
            limit: largest length of the result in characters.
        """
        if self.sees_all:
            return one_line(text, limit)
        head = text[:_LONGEST_INPUT]
        line = one_line(head, _LONGEST_INPUT + 1)
        if len(head) < len(text):  # the last word may be the beginning of a name
            line = f"{line.rpartition(' ')[0]} {ELLIPSIS}".lstrip()
        parts = _SEPARATOR.split(_hide_foreign(line))
        for index in range(0, len(parts), 2):
            if not _is_ending(parts, index):
                parts[index] = self._replace(parts[index])
        return shorten("".join(_merged(parts)), limit)

    def _replace(self, text: str) -> str:
        """Return a word with the punctuation around it, or `…` with that punctuation."""
        core = text.strip(_JOINERS)
        if not core or self._is_shown(core):
            return text
        before, _, after = text.partition(core)
        key, *value = _VALUE.split(core, maxsplit=1)
        if value and _is_resource(key):
            return (
                before + core[: len(key) + 1] + (value[0] if self._is_shown(value[0]) else ELLIPSIS) + after
            )
        return f"{before}{ELLIPSIS}{after}"

    def _is_shown(self, word: str) -> bool:
        if len(word) > _LONGEST_WORD:
            return False
        if word in self.names or _is_public(word):
            return True
        namespace, slash, name = word.partition("/")
        return bool(slash) and namespace in self.names and name in self.names


def _is_ending(parts: Sequence[str], index: int) -> bool:
    """Whether a word ends another one: `node(s)`, `Pod's`, `didn't`, `95 s`."""
    word, before, after = parts[index], parts[index - 1 : index], parts[index + 1 : index + 3]
    if word.lower() in _NEGATED:
        return after == ["'", "t"]
    if word.rstrip(_JOINERS) in _UNITS and before == [" "]:
        return parts[index - 2].isdecimal()
    if index < 2 or not parts[index - 2][-1:].isalpha():
        return False
    if before == ["'"]:
        return word == "s" or (word == "t" and parts[index - 2].lower() in _NEGATED)
    return word == "s" and before == ["("] and after[:1] == [")"]


def _merged(parts: Sequence[str]) -> Iterator[str]:
    """Yield words and separators, with one ellipsis for hidden words that only blanks and commas separate."""
    pending: list[str] = []
    is_hidden = False
    for part in parts:
        if is_hidden and part in _SPACING:
            pending.append(part)
        elif is_hidden and part == ELLIPSIS:
            pending = []
        else:
            yield from (*pending, part)
            pending, is_hidden = [], part == ELLIPSIS
    yield from pending


def _hide_foreign(line: str) -> str:
    """Hide words with letters that are not ASCII; no name of an object has any."""
    if not _FOREIGN.search(line):
        return line
    return " ".join(ELLIPSIS if _FOREIGN.search(word) else word for word in line.split(" "))


def _is_public(word: str) -> bool:
    """Whether a word can be shown to every user."""
    return (
        _is_word(word)
        or word.lower() in FIXED
        or _is_resource(word)
        or _GPU_UUID.fullmatch(word) is not None
        or _is_compound(word)
    )


def _is_word(word: str) -> bool:
    """Whether a word is in the vocabulary, or is a number with or without a unit, an acronym or CamelCase."""
    return (
        word.lower() in WORDS
        or _NUMBER.fullmatch(word) is not None
        or _DURATION.fullmatch(word) is not None
        or _CAMEL_CASE.fullmatch(word) is not None
        or _ACRONYM.fullmatch(word) is not None
    )


def _is_resource(word: str) -> bool:
    """Whether a word is a key, or a resource of a quota such as `requests.nvidia.com/gpu`."""
    return word.removeprefix("requests.").removeprefix("limits.") in _RESOURCE_WORDS


def _is_compound(word: str) -> bool:
    """Whether a word consists of public parts, and one of two neighbours has an upper-case letter.

    Names have no upper-case letters, so that a word such as `spec.nodeName` or `NVIDIA-H100` contains none.
    """
    parts = _PARTS.split(word)
    return (
        len(parts) > 1
        and all(map(_is_word, parts))
        and all(first != first.lower() or second != second.lower() for first, second in pairwise(parts))
    )


def _names(evidence: PodEvidence) -> Iterator[str]:
    """Yield the names of the objects that the user named or that were read with the user's rights."""
    yield from (evidence.namespace, evidence.name, evidence.queue_name, *evidence.queues, *evidence.claims)
    pod = known(evidence.pod)
    if pod is not None:
        yield from _names_of_pod(pod)
    for workload in (*evidence.owners, known(evidence.workload)):
        if workload is not None:
            yield workload.metadata.name
            yield from _values(workload.metadata)
            yield from (owner.name for owner in workload.metadata.owner_references)
    group = known(evidence.pod_group)
    if group is not None:
        yield from (group.metadata.name, group.spec.queue, group.spec.priority_class_name)
    order = known(evidence.bind_request)
    if order is not None:
        yield from (order.metadata.name, order.spec.selected_node, *(order.spec.selected_gpu_groups or ()))
    for queue in filter(None, map(known, evidence.queues.values())):
        yield from (queue.name, queue.parent)
    for node in known(evidence.nodes) or ():
        yield node.metadata.name
        for taint in node.spec.taints or ():
            yield from (taint.key, taint.value)
    for member in evidence.group_members:
        yield member.name
    for shard in known(evidence.shards) or ():
        yield from (shard.metadata.name, shard.spec.partition_label_value)
    yield from _names_in_events((*evidence.pod_events, *evidence.group_events, *evidence.creation_events))


def _names_of_pod(pod: PodObject) -> Iterator[str]:
    yield from (pod.name, pod.pod_group_name, pod.queue_label, *pod.gpu_groups)
    yield from _values(pod.metadata)
    yield from (owner.name for owner in pod.metadata.owner_references)
    yield from (pod.spec.node_name, *pod.claim_names)
    yield from islice(_strings(pod), _MOST_STRINGS)


class _Spec(Struct, frozen=True):
    spec: Any = None


_decode_spec = msgspec.json.Decoder(_Spec).decode


def _strings(pod: PodObject) -> Iterator[str]:
    """Yield the values in the pod's specification, such as images, ConfigMaps, classes and gates."""
    try:
        pending = [_decode_spec(pod.document).spec]
    except MALFORMED:
        return
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list):
            pending += value


def _values(metadata: FullMeta) -> Iterator[str]:
    """Yield the queue, priority, node pool, sub-group and topology that an object names for KAI."""
    for key, value in (*metadata.labels.items(), *metadata.annotations.items()):
        if key == keys.PRIORITY_LABEL or key.startswith(_OF_KAI):
            yield value


def _names_in_events(events: Iterable[EventObject]) -> Iterator[str]:
    """Yield the names of the objects of the namespace that Events are about."""
    for event in events:
        name = event.involved_object.name
        yield from (name, workload_of(name))


def without_suffixes(text: str, base: str) -> str:
    """Replace the generated end of a pod's name by `…`, so that messages about several pods are alike.

    Args:
        text: a message.
        base: name of the pods' owner, such as a ReplicaSet.
    """
    if not base or base not in text:
        return text
    words = (
        f"{base}-{ELLIPSIS}" if word.startswith(base) and _SUFFIX.fullmatch(word.removeprefix(base)) else word
        for word in _NOT_IN_NAME.split(text)
    )
    return "".join(words)
