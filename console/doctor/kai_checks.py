"""Checks of KAI: release, GPU sharing, queue label, webhooks, RuntimeClass, and a KAI inside vClusters."""

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

from console.cluster.facts import FactReader, items
from console.cluster.rules import is_missed_by_kai, missed_by_kai, release_effects, sharing_off
from console.doctor.check_results import CheckResult, grouped, ok, problem, unknown, warning
from console.doctor.cluster_state import ClusterFacts, Scope
from console.doctor.policy_checks import labelled_hosts
from kai import keys
from kai.installation import CONFIG_NAME, RESERVATION_NAMESPACE, RUNTIME_CLASS, Installation, SharingMode
from kai.kaishare_keys import FRAMEWORK_MEMORY
from kube.kinds import CONFIG_MAPS, PODS, RUNTIME_CLASSES, Pod
from service.text import counted, listed, one_line
from webhook.policy.labels import FrameworkMemory

_MODES: Final[Mapping[SharingMode, str]] = {
    SharingMode.NON_MEMORY_ENFORCED: "on, without memory limits (NonMemoryEnforced)",
    SharingMode.HAMI_CORE: "on, with limits enforced by HAMi-core (HamiCore)",
    SharingMode.NV_FRACTIONS: "on, with limits enforced by NVIDIA's runtime (NvFractions)",
}


def release_fits(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.installation is None:
        return
    is_known, configured = cluster.running.knows("kai_version"), cluster.running.rules.kai_version
    option = f"kaishare runs with --kai-version {configured}" if configured else ""
    option = option or f"kaishare's --kai-version is {'unset' if is_known else 'not known'}"
    version = cluster.installation.version
    if version is None:
        yield _without_release(cluster.installation, cluster.kai_namespace, option)
        return
    advice = f"install kaishare with kaiVersion={version} (--kai-version)"
    if cluster.is_absent and not cluster.is_by_policies:
        yield ok(f"{version}; {advice}")
    elif not is_known:
        yield unknown(f"{version}; {option}", advice)
    elif configured == version:
        yield ok(f"{version}, as kaishare's --kai-version")
    else:
        effects = release_effects(configured, version, warns=not cluster.is_by_policies)
        make = problem if configured and effects else warning
        effects = f"it {effects}" if effects else "its answers are the same"
        yield make(f"KAI is {version}, and {option}; {effects}", advice)


def _without_release(installed: Installation, namespace: str, option: str) -> CheckResult:
    if not installed.programs:
        what = f"no KAI pods found in namespace {one_line(namespace)}"
        return unknown(what, "install KAI; inside a vCluster, KAI may run on the host")
    if not installed.versions:
        return unknown(
            f"version not found in image tags: {listed(installed.images)}; {option}",
            "compare it with the release of KAI that you installed",
        )
    versions = " and ".join(map(str, installed.versions))
    return problem(f"{versions} are installed together", "finish or undo the upgrade of KAI")


def sharing_is_on(cluster: ClusterFacts) -> Iterator[CheckResult]:
    mode, modes = cluster.sharing_mode, " and ".join(sorted(cluster.sharing_modes))
    if mode is None:
        if modes:
            yield unknown(
                f"KAI's {CONFIG_NAME}, or the pods of its admission, name several modes: {modes}",
                "run doctor again when the rollout of KAI has ended; then set the plugins of admission and"
                " binder to the mode, or leave them out",
            )
        elif cluster.installation is not None:
            yield unknown(f"no pod of KAI's admission found in {one_line(cluster.kai_namespace)}")
        return
    gives_none = not cluster.running.rules.inject_shares
    fault = sharing_off(cluster.installation)
    sharing = [name for name, policy in cluster.managed.items() if policy.share or policy.sizes]
    if mode is not SharingMode.DISABLED and gives_none:
        yield warning(
            f"{_MODES[mode]}, but the webhook gives no shares: it runs with --inject-shares=false",
            "install kaishare with webhook.injectShares=true",
        )
    elif mode is not SharingMode.DISABLED:
        yield ok(_MODES[mode])
    elif gives_none:
        yield ok("off, and the webhook gives no shares (--inject-shares=false)")
    elif sharing:
        yield problem(
            f"{fault.sentence}; policies give shares to pods of {listed(sharing)}",
            f"{fault.remedy}, or kaishare with webhook.injectShares=false",
        )
    else:
        yield warning(fault.sentence, fault.remedy)
    yield from _known_mode(cluster, mode)


def _known_mode(cluster: ClusterFacts, mode: SharingMode) -> Iterator[CheckResult]:
    if cluster.is_by_policies or not cluster.running.knows("gpu_sharing_mode"):
        return
    configured, managed = cluster.running.rules.gpu_sharing_mode, cluster.managed
    wanting = [name for name, policy in managed.items() if policy.framework_memory is FrameworkMemory.SET]
    advice = f"install kaishare with webhook.gpuSharingMode={mode}"
    label = f"{FRAMEWORK_MEMORY}=set of {listed(wanting)} has no effect"
    if configured is not None and configured is not mode:
        yield problem(f"KAI's mode is {mode}, and the webhook's {configured}", advice)
    elif wanting and configured is None:
        yield warning(f"the webhook does not know KAI's mode, {mode}: {label}", advice)
    elif wanting and mode is not SharingMode.NON_MEMORY_ENFORCED:
        yield warning(f"{label} in mode {mode}", "remove the label, or change KAI's mode")


def label_is_read(cluster: ClusterFacts) -> Iterator[CheckResult]:
    label = cluster.installation.queue_label if cluster.installation else None
    if label is not None and label != keys.QUEUE_LABEL:
        yield problem(
            f"KAI reads a pod's queue from the label {one_line(label)} and ignores {keys.QUEUE_LABEL}",
            f"install KAI with global.queueLabelKey={keys.QUEUE_LABEL}, its default",
        )


def kai_sees_the_pods(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if cluster.mutating.value is None:
        return
    configurations = cluster.kai_mutating
    if not configurations:
        yield unknown(
            "not registered here; inside a vCluster it is registered on the host",
            "pods with a share cannot start without KAI's webhook",
        )
        return
    yield ok("; ".join(one_line(each.name) for each in (*configurations, *cluster.kai_validating)))
    for configuration in configurations:
        missed = [
            namespace
            for namespace in cluster.managed
            if not any(
                hook.namespace_selector.matches(cluster.labels[namespace]) for hook in configuration.pod_hooks
            )
        ]
        if missed:
            yield problem(
                f"{one_line(configuration.name)} does not select {listed(missed)}: pods with a share never"
                " start",
                "correct KAI's namespaceLabelSelector, or remove the queue label from these namespaces",
            )
    known = cluster.matched_schedulers
    by_scheduler = grouped((policy.scheduler, namespace) for namespace, policy in cluster.managed.items())
    for scheduler in sorted(by_scheduler.keys() - known) if known else ():
        yield problem(
            f"matches only pods of {listed(known)}, but the policies of"
            f' {listed(by_scheduler[scheduler])} set the scheduler "{one_line(scheduler)}"',
            "correct the label kaishare.dev/scheduler",
        )


def kai_saw_the_pods(cluster: ClusterFacts) -> Iterator[CheckResult]:
    if SharingMode.NV_FRACTIONS in cluster.sharing_modes:
        return  # in that mode KAI leaves no mark on a pod
    missed = [
        "/".join(pod.metadata.key)
        for pod in items(cluster.waiting)
        if pod.spec.scheduler_name in cluster.kai_schedulers and is_missed_by_kai(pod)
    ]
    if missed:
        fault = missed_by_kai(counted(len(missed), "pod was", "pods were"))
        yield problem(f"{fault.sentence}: {listed(missed)}", fault.remedy)


async def runtime_classes_exist(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield a finding about each RuntimeClass that KAI sets; before KAI's installation, about its default."""
    installed, missing = cluster.installation, problem
    names = {installed.runtime_class, installed.reservation_runtime_class} if installed else set()
    if cluster.options.scope is Scope.PRE and not (installed and installed.programs):
        names, missing = {RUNTIME_CLASS}, warning
    for name in sorted(filter(None, names)):
        fact = await reader.get(RUNTIME_CLASSES, name)
        title = f'"{one_line(name)}", which KAI sets on pods with a share or on their reservations,'
        if not fact.is_known:
            yield unknown(f'could not read RuntimeClass "{one_line(name)}"')
        elif fact.value is not None:
            yield ok(f"{title} exists")
        else:
            yield missing(
                f"{title} does not exist: these pods are refused",
                "install NVIDIA's container toolkit or operator, which creates it, or configure KAI to set"
                " none",
            )


async def nodes_are_added(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield a finding where an autoscaler adds nodes, which sees no request for a GPU in a pod with a share.

    KAI's node-scale-adjuster asks for whole GPUs in the place of such pods (v0.13.4, v0.17.0,
    `docs/gpu-sharing/autoscaling`). cluster-autoscaler has a ConfigMap with its status, Karpenter an API
    group.
    """
    installed = cluster.installation
    if installed is None or not installed.programs:
        return
    if installed.asks_for_nodes:
        yield ok("KAI's node-scale-adjuster asks autoscalers for nodes, in the place of pods with a share")
        return
    if not any(policy.share or policy.sizes for policy in cluster.managed.values()):
        return
    status = await reader.get(CONFIG_MAPS, "cluster-autoscaler-status", "kube-system")
    names = ["cluster-autoscaler"] if status.known is not None else []
    served = (await reader.served()).known or ()
    names += ["Karpenter"] if any(kind.group == "karpenter.sh" for kind in served) else []
    if names:
        yield warning(
            f"no node is added for a pod with a share: {listed(names)} cannot see that it needs a GPU, and"
            " KAI's node-scale-adjuster does not run",
            "install KAI with global.clusterAutoscaling=true, or keep nodes with GPUs running",
        )


async def no_kai_inside_vclusters(cluster: ClusterFacts, reader: FactReader) -> AsyncIterator[CheckResult]:
    """Yield a warning if KAI runs on the host, and seems to run inside vClusters, too.

    Measured with KAI 0.13.4 and 0.17.0 beside vCluster 0.36.1: a KAI on the host selects pods by the label
    `runai-gpu-group` in the whole cluster, and deletes the tenants' pods with a share and their reservation
    pods. It is no problem: every user who may create pods in a host namespace can write such a pod.
    """
    labelled = labelled_hosts(cluster)
    with_pods = {pod.metadata.namespace for pod in items(cluster.synced)}
    if not (cluster.installation and cluster.installation.programs and labelled & with_pods):
        return
    label = f"{keys.VCLUSTER_MANAGED_BY},{keys.APP_LABEL}={keys.RESERVATION_APP}"
    pods = await reader.list(PODS, query={"labelSelector": label}, what="pods of vClusters")
    inner = sorted(
        f"pod {pod.metadata.namespace}/{pod.name} of"
        f" {one_line(pod.metadata.labels.get(keys.VCLUSTER_MANAGED_BY, ''))}"
        for pod in items(pods)
        if pod.metadata.namespace in labelled and _is_inner_reservation(pod)
    )
    if inner:
        yield warning(
            f"KAI runs on this host, and seems to run inside vClusters, too ({listed(inner)}): a KAI on the"
            " host deletes the tenants' pods with a share and their reservation pods",
            "ask the owner of the pod first whether KAI runs inside the vCluster: every user who may create"
            " pods in the namespace can write such a pod. If so, remove KAI from this host",
        )


def _is_inner_reservation(pod: Pod) -> bool:
    """Whether a pod is a running reservation pod of a KAI inside a vCluster.

    KAI creates them with a node and the default scheduler (v0.9.8, v0.13.4 and v0.17.0).
    """
    expected = {
        keys.VCLUSTER_OBJECT_NAMESPACE: RESERVATION_NAMESPACE,
        keys.VCLUSTER_HOST_NAME: pod.name,
        keys.VCLUSTER_HOST_NAMESPACE: pod.metadata.namespace,
    }
    is_running = pod.is_bound and pod.status.phase == "Running"
    is_default = pod.spec.scheduler_name == keys.DEFAULT_SCHEDULER
    return is_running and is_default and pod.metadata.annotations.items() >= expected.items()
