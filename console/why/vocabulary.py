"""The words that `kaishare why` shows in messages of other programs. Pure data.

`words.Redactor` hides every other word, since it may be the name of an object that the user may not list.
The words are those of the messages of KAI, Kubernetes' scheduler, kubelet, API server and admission webhooks,
vCluster's syncer and the agent. A word that could be the name of a team or a workload does not belong here.
"""

from typing import Final

from kai import key_classes, keys, own_labels
from kai.frameworks import FRAMEWORKS

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
    constants = {**vars(keys), **vars(own_labels)}
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
        *own_labels.AGENT_EXCLUDED_NAMESPACES,
    }
)
"""Compounds, programs, resources and keys that are shown as they are; compounds in lower case."""
