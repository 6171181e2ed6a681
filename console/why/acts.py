"""What to do about each cause, the first act first: one table. Pure.

Every act is an imperative. A person who needs more rights than the pod's author is named before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from console.cluster.facts import Fact
from console.why.evidence import PodEvidence
from console.why.explanation import Code, PodFinding, Remedy
from kai import keys
from service.names import is_dns_subdomain
from service.text import LONGEST_LINE, one_line
from webhook.policy.reasons import Reason

KAI_PODS: Final = "kubectl get pods --namespace kai-scheduler"
"""Shows whether KAI's programs run."""
LIST_QUEUES: Final = "kubectl get queues.scheduling.run.ai"
_EDIT_QUEUE: Final = "kubectl edit queues.scheduling.run.ai {queue}"
_DESCRIBE_NODES: Final = "kubectl describe nodes"
_DESCRIBE: Final = "kubectl describe pod {pod} --namespace {namespace}"
_DELETE: Final = "kubectl delete pod {pod} --namespace {namespace}"
_LOGS: Final = "kubectl logs {pod} --namespace {namespace}"
_WORKLOAD: Final = "kubectl describe {kind} {name} --namespace {namespace}"
_EXPLAIN: Final = "kaishare explain --live -n {namespace}"
_WHY: Final = "kaishare why -n {namespace} {name}"
_RESERVATIONS: Final = f"kubectl get pods --all-namespaces --selector {keys.APP_LABEL}={keys.RESERVATION_APP}"
_SET_QUEUE: Final = f"the label {keys.QUEUE_LABEL} to {{which}}: {{place}}."


class _Act(NamedTuple):
    text: str
    command: str = ""


_ACTS: Final[Mapping[str, _Act]] = {
    # The pod could not be created, or is gone.
    "later": _Act("Or wait: a controller tries again by itself, after longer and longer pauses."),
    "quota": _Act(
        "Ask for a larger ResourceQuota, or for less. KAI's queue has nothing to do with it.",
        "kubectl describe resourcequota --namespace {namespace}",
    ),
    "start-webhook": _Act("Administrator: {remedy}.", "{command}"),
    "change-refused": _Act("Change in the pod's template what the message names.", _EXPLAIN),
    "change-named": _Act("Change what the message names.", _WORKLOAD),
    "change-template": _Act("Change in the pod's template what the message names."),
    "request-whole": _Act("Request a whole GPU (nvidia.com/gpu: 1) instead of a share."),
    "sharing-on": _Act("Administrator: {remedy}."),
    "install-runtime-class": _Act(
        "Administrator: install the RuntimeClass (the GPU operator has it), or stop KAI from setting it"
        " (gpuPodRuntimeClassName).",
        "kubectl get runtimeclass",
    ),
    "correct-runtime-class": _Act("Or correct runtimeClassName, if the pod's template names it."),
    "correct-priority-class": _Act(
        "Correct priorityClassName in the pod's template.", "kubectl get priorityclass"
    ),
    "look-for-name": _Act("Look for its name.", "kubectl get pods --namespace {namespace}"),
    "look-at-workload": _Act("Look at the workload's own status.", _WORKLOAD),
    "resume": _Act("Set spec.suspend to false, or wait for the program that admits it, such as Kueue."),
    "scale-up": _Act("Scale it up."),
    "create-again": _Act("Create the pod again, if it has no controller, which would do so."),
    "recreate-deleted": _Act("Create the pod again: a person or a controller deleted it."),
    "spare-reservations": _Act(
        "Administrator: never delete pods in kai-resource-reservation. KAI's binder deletes a pod without an"
        " Event when the reservation pod of its GPU is deleted."
    ),
    "find-lost-member": _Act(
        "Find out why the missing pod ended, then start the job again.",
        "kubectl get events --namespace {namespace} --sort-by=.lastTimestamp",
    ),
    "nothing": _Act("Do nothing: KAI places the pod that replaces it."),
    "wait-for-quota": _Act(
        "Wait until the queue may use GPUs over its quota again, or ask for a larger quota."
    ),
    "use-priority": _Act("Wait for room, or use a higher priority with the label priorityClassName."),
    # KAI does not schedule the pod.
    "correct-scheduler": _Act("Correct the scheduler's name, if it is a typing mistake."),
    "set-scheduler": _Act(
        "Set schedulerName: {scheduler} in a new pod: it cannot be changed on this one.", _EXPLAIN
    ),
    "read-events": _Act("Read the pod's Events.", _DESCRIBE),
    "ask-for-queue": _Act(
        "Ask an administrator for a queue, if the pod needs one: the namespace has no label"
        f" {keys.QUEUE_LABEL}, so that kaishare leaves its pods alone."
    ),
    # KAI has not looked at the pod.
    "open-gate": _Act("Ask the owner of the program that put the gate there, which removes it."),
    "read-pod-grouper": _Act("Administrator: look at the log of KAI's pod-grouper."),
    "start-pod-grouper": _Act("Administrator: start KAI's pod-grouper again.", KAI_PODS),
    "wait-seconds": _Act("Wait some seconds."),
    "find-missing-pods": _Act(
        "Find out why the others do not exist: the workload's Events name a quota or a webhook that refuses"
        " them."
    ),
    "correct-node-pool": _Act(f"Remove the label {keys.NODE_POOL_LABEL} from the workload, or correct it."),
    "create-shard": _Act("Administrator: create the SchedulingShard."),
    "start-scheduler": _Act(
        "Administrator: start KAI's scheduler again, which does not run or ends at every start; look at its"
        " log.",
        KAI_PODS,
    ),
    "mend-root-queues": _Act(
        "Administrator: give every queue spec.parentQueue or children. KAI before v0.16.5 ends when a queue"
        " without a parent is to give GPUs back."
    ),
    "ask-host": _Act("In a vCluster: ask the host's administrators, who see the pod's objects."),
    "check-dns": _Act(
        "If no pod of the vCluster starts, look whether its Service kube-system/kube-dns has an address:"
        " vCluster copies no pod to the host before that.",
        "kubectl get service kube-dns --namespace kube-system",
    ),
    "install-kai": _Act("Else name another scheduler, or install KAI, which is not installed here."),
    "ask-host-why": _Act(
        "In a vCluster: ask the host's administrators, since KAI's objects are there and not on this API"
        " server, to type",
        "kaishare why -n HOST_NAMESPACE {pod}-x-{namespace}-x-VCLUSTER",
    ),
    # The guard refuses the PodGroup.
    "guard-queue": _Act(
        f"Set the label {keys.QUEUE_LABEL} in the pod's template to a queue of its namespace, and remove it"
        " from the objects that own the pod."
    ),
    "guard-priority": _Act(
        f"Restore the labels {keys.PRIORITY_LABEL} and {keys.PREEMPTIBILITY} of the workload. Other values"
        " count once none of its pods is left."
    ),
    "guard-owner": _Act("Restore the pod's owner references. A new pod can have other ones."),
    "guard-spark": _Act(
        "Remove the label spark-app-selector from the pod's template: its values begin with spark-."
    ),
    "guard-annotations": _Act("Remove these annotations from the object that owns the pod."),
    "guard-other": _Act("Undo what these words name. Ask an administrator where they are not clear."),
    # The queue.
    "set-queue": _Act(f"Set {_SET_QUEUE}"),
    "set-queue-of-workload": _Act(f"If the workload names its queue itself, set {_SET_QUEUE}"),
    "set-queue-of-namespace": _Act(
        "Policy owner: name {which} on the namespace; pods that exist keep their queue.",
        f"kubectl label namespace {{namespace}} --overwrite {keys.QUEUE_LABEL}=QUEUE",
    ),
    "set-or-remove-queue": _Act(f"Set the label {keys.QUEUE_LABEL} to a queue, or remove it: {{place}}."),
    "mend-queue": _Act("Administrator: {remedy}.", "{command}"),
    "create-queue": _Act("Administrator: create the queue, or correct spec.parentQueue.", LIST_QUEUES),
    "ask-about-queue": _Act(
        "Ask an administrator whether the queue {queue} has child queues, or no parent: KAI says no more than"
        " this about both.",
        LIST_QUEUES,
    ),
    "wait-in-queue": _Act("Wait until other pods of the queue end, or request less."),
    "wait-or-ask-limit": _Act("Wait until other pods of the queue end, or ask for a higher limit."),
    "request-less-or-other-queue": _Act("Request less, or name another queue."),
    "raise-queue": _Act("Administrator: raise spec.resources.{resource} of the queue.", _EDIT_QUEUE),
    "raise-some-queue": _Act("Administrator: raise spec.resources.{resource} of the queue.", LIST_QUEUES),
    "raise-other-queue": _Act("Administrator: raise spec.resources.{resource} of the queue."),
    "preemptible": _Act("{change}, {place}. KAI may then evict the pod when another queue needs its quota."),
    "wait-for-guaranteed": _Act("Or wait until other pods of the queue end that are not preemptible."),
    "name-a-queue": _Act(f"Or name a queue with the label {keys.QUEUE_LABEL}, {{place}}."),
    # KAI finds no node.
    "wait-for-pods": _Act("Wait until other pods end."),
    "request-smaller": _Act("Or request less, if a smaller part of a GPU is enough."),
    "wait-for-reclaim": _Act(
        "The queue {queue} has a quota of {quota}. {uses} GPUs back from preemptible pods of other queues. If"
        " that does not happen within a minute, an administrator looks at KAI's scheduler.",
        KAI_PODS,
    ),
    "request-card": _Act(
        "Request less, or GPUs with more memory.",
        f"kubectl get nodes --label-columns {keys.NODE_GPU_MEMORY}",
    ),
    "correct-affinity": _Act(
        "Correct nodeSelector or affinity of the pod's template.", "kubectl get nodes --show-labels"
    ),
    "tolerate": _Act(
        "Add the toleration to the pod's template.",
        "kubectl get nodes -o custom-columns=N:.metadata.name,TAINTS:.spec.taints",
    ),
    "uncordon": _Act("Administrator: uncordon a node.", "kubectl get nodes"),
    "wait-for-gpu-nodes": _Act(
        "Or wait until other pods end on the nodes that lack GPUs, if these have any."
    ),
    "change-requirements": _Act("Change what the pod's template asks of nodes, or wait.", _DESCRIBE_NODES),
    "start-device-plugin": _Act(
        "Administrator: look at the pods of the device plugin and their log: it does not run, or sees no"
        " GPU.",
        _DESCRIBE_NODES,
    ),
    "use-fraction": _Act("Use gpu-fraction instead of gpu-memory."),
    "install-gfd": _Act(
        "Administrator: install GPU feature discovery, which sets the label.",
        f"kubectl get nodes --label-columns {keys.NODE_GPU_MEMORY}",
    ),
    "correct-topology": _Act("Correct or remove the annotation kai.scheduler/topology of the workload."),
    "create-topology": _Act("Administrator: create the Topology."),
    "prefer-topology": _Act(
        "Wait, ask for fewer pods, or ask for the placement by kai.scheduler/topology-preferred-placement"
        " instead of required."
    ),
    "read-claim": _Act(
        "Look at the claim's own Events.",
        "kubectl describe persistentvolumeclaim {claims} --namespace {namespace}",
    ),
    "fit-node": _Act("Request what one node has, or spread the work over several pods.", _DESCRIBE_NODES),
    "shrink-gang": _Act("Wait until other pods end, or start the workload with fewer or smaller pods."),
    "wait-for-evicted": _Act(
        "Wait: an evicted pod may take its terminationGracePeriodSeconds, 30 s by default."
    ),
    "check-names": _Act("Check the names that the pod uses: {names}."),
    "ask-why": _Act(
        "Ask an administrator to run the same command, and to look at the log of KAI's scheduler.", _WHY
    ),
    # KAI chose a node, and the pod is not bound.
    "wait-a-minute": _Act("Wait a minute; KAI tries again."),
    "ask-for-binding": _Act(
        "Then ask an administrator to type it: it shows more with the right to read"
        " bindrequests.scheduling.run.ai and the pods of kai-resource-reservation.",
        _WHY,
    ),
    "delete-missed": _Act("Delete the pod and create it again.", _DELETE),
    "order-webhooks": _Act(
        "Administrator: let kaishare's webhook be called before KAI's, so its name must sort first.",
        "kubectl get mutatingwebhookconfigurations",
    ),
    "wait-for-binder": _Act("Wait a minute: KAI tries again, perhaps on another node."),
    "read-binder": _Act("If it repeats, an administrator looks at the log of KAI's binder.", KAI_PODS),
    "read-reservations": _Act(
        "If it lasts, an administrator looks at the reservation pods: image, RuntimeClass, device plugin.",
        _RESERVATIONS,
    ),
    "wait-for-reservation": _Act("Wait a minute; KAI tries again every 40 s."),
    "find-reservation": _Act(
        "Administrator: find out whether the reservation pod of the GPU has started.", _RESERVATIONS
    ),
    "start-binder": _Act("Administrator: start KAI's binder again.", KAI_PODS),
    # The pod is bound.
    "read-log": _Act("Look at its log.", f"{_LOGS} --all-containers"),
    "read-last-log": _Act("Look at the log of its last run.", f"{_LOGS} --all-containers --previous"),
    "read-ended-log": _Act("Look at the log of its last run.", f"{_LOGS} --all-containers"),
    "read-container-log": _Act("Look at its log.", f"{_LOGS} --container {{container}}"),
    "read-loading-log": _Act(
        "Look at its log: it may still load a model.", f"{_LOGS} --container {{container}}"
    ),
    "read-kubelet": _Act("Read the kubelet's words in the pod's Events.", _DESCRIBE),
    "read-probe": _Act("Look whether its readiness probe fails, in the pod's Events.", _DESCRIBE),
    "read-gate": _Act(
        "Look at the pod's conditions, which name a readiness gate that is not met.", _DESCRIBE
    ),
    "look-at-node": _Act("Administrator: look at the node.", "kubectl get node {node}"),
    "or-look-at-node": _Act("Or look whether the kubelet of its node answers.", "kubectl get node {node}"),
    "part-schedulers": _Act(
        "Administrator: give each scheduler its own nodes. Two schedulers share a node, so that KAI allocated"
        " a GPU that was taken."
    ),
    "wait-for-end": _Act(
        "Wait for its containers to end; a finalizer can hold it as well.",
        "kubectl get pod {pod} --namespace {namespace} -o jsonpath={{.metadata.finalizers}}",
    ),
    "place-again": _Act("Delete the pod, so that it is placed again.", _DELETE),
    "whole-gpus-for-ranks": _Act(
        "Request whole GPUs, if each rank needs a GPU of its own: the annotation kaishare.dev/whole-gpu:"
        ' "true" in the template, and no share.'
    ),
    "one-pod-for-ranks": _Act("Or use one pod with several GPUs (gpu-fraction-num-devices)."),
    "equal-queues": _Act(f"Write the same label {keys.QUEUE_LABEL} on the workload and on its pods."),
    "known-priority": _Act(
        "Use train, build-preemptible, build or inference, if that PriorityClass does not exist; else the"
        f" label {keys.PRIORITY_LABEL} of the topmost owner wins.",
        "kubectl get priorityclass",
    ),
    "start-podgroup-controller": _Act("Administrator: start KAI's podgroup-controller again.", KAI_PODS),
    "agent": _Act("{act}"),
    "clear-flag": _Act("End the violation: the flag clears with {cleared_by}."),
}

LEFT_ALONE: Final[Mapping[str, str]] = {
    Reason.OPTED_OUT.code: "Remove the label kaishare.dev/inject from the pod's template.",
    Reason.MODE_OFF.code: (
        "Policy owner: set another kaishare.dev/mode on the namespace, then create the pod again."
    ),
    Reason.NODE_NAME_SET.code: "Remove spec.nodeName from the pod's template: such a pod is never scheduled.",
    Reason.OTHER_SCHEDULER.code: "Remove schedulerName from the pod's template.",
    Reason.POLICY_INVALID.code: (
        "Policy owner: correct the namespace's labels, which kaishare policies names; then delete the pod and"
        " create it again."
    ),
    Reason.NAMESPACE_EXCLUDED.code: (
        "Ask an administrator: the webhook's settings exclude the namespace, so that kaishare leaves its pods"
        " alone."
    ),
}
"""What to do about a pod that kaishare left alone, by the reason for which it would do so now."""


def finding(
    evidence: PodEvidence,
    code: Code,
    sentence: str,
    *acts: str,
    details: Mapping[str, float | str] | None = None,
    excluded_by: Sequence[Fact[Any]] = (),
    **values: object,
) -> PodFinding:
    """Return a finding with its acts.

    Args:
        evidence: what is known.
        code: the cause.
        sentence: what is the matter, as a clause. May have texts of others.
        acts: names of the acts, in the order in which they are to be tried.
        details: figures of the sentence.
        excluded_by: of a cause by exclusion, the facts that it must have read.
        values: texts for the braces in the acts.
    """
    texts = {
        "namespace": evidence.namespace,
        "kind": evidence.kind.lower(),
        "name": evidence.name,
        "pod": evidence.pod.known.name if evidence.pod.known else evidence.name,
        **{key: one_line(str(value), LONGEST_LINE * 2) for key, value in values.items()},
    }
    remedies = [_remedy(_ACTS[act], texts) for act in acts]
    return PodFinding(code, one_line(sentence, LONGEST_LINE * 3), remedies, details or {}, excluded_by)


def _remedy(act: _Act, texts: Mapping[str, str]) -> Remedy:
    """Fill in an act. No text that a shell could interpret gets into a command."""
    is_given = act.command == "{command}"
    words = {key: text if is_given or _is_safe(key, text) else key.upper() for key, text in texts.items()}
    return Remedy(act.text.format_map(texts), act.command.format_map(words))


def _is_safe(key: str, text: str) -> bool:
    """Whether a text is the name of an object; several names of claims."""
    return all(map(is_dns_subdomain, text.split(" ") if key == "claims" else [text]))
