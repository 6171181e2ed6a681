"""What to do about each cause, the first act first: one table. Pure.

Every act is an imperative. A person who needs more rights than the pod's author is named before it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from console.cluster.facts import Fact
from console.why.evidence import PodEvidence
from console.why.explanation import Code, PodFinding, Remedy
from service.names import is_dns_subdomain
from service.text import LONGEST_LINE, one_line

_TABLE: Final = """
# The pod's devices are ResourceClaims.
create-device-claim: Create the {source}, or correct its name in the pod's template.
    $ kubectl get resourceclaims,resourceclaimtemplates --namespace {namespace}
label-claim: Give the ResourceClaim the label of the pod's queue.
    $ kubectl label resourceclaim {claim} --namespace {namespace} --overwrite kai.scheduler/queue={queue}
use-template: Or let each pod have a claim of its own, by resourceClaimTemplateName: KAI asks it for no label.
correct-class: Correct deviceClassName in the claim or its template. $ kubectl get deviceclasses
install-dra-driver: Administrator: install the DRA driver that has the class.
start-dra-driver: Administrator: start the DRA driver, or read its log. $ kubectl get resourceslices
wait-for-claims: Wait until a pod with a claim on such a device ends, or end one.
    $ kubectl get resourceclaims --namespace {namespace}
shrink-claim: Or ask for less memory in the claim's template: a claim cannot be changed.
# The pod could not be created, or is gone.
later: Or wait: a controller tries again by itself, after longer and longer pauses.
quota: Ask for a larger ResourceQuota, or for less. $ kubectl describe resourcequota --namespace {namespace}
administrator: Administrator: {remedy}. $ {command}
change-refused: Change in the pod's template what the message names. $ kaishare explain --live -n {namespace}
change-named: Change what the message names. $ kubectl describe {kind} {name} --namespace {namespace}
request-whole: Request a whole GPU (nvidia.com/gpu: 1) instead of a share.
install-runtime-class: Administrator: install the RuntimeClass (the GPU operator has it), or stop KAI from
    setting it (gpuPodRuntimeClassName). $ kubectl get runtimeclass
correct-runtime-class: Or correct runtimeClassName, if the pod's template names it.
correct-priority-class: Correct priorityClassName in the pod's template. $ kubectl get priorityclass
look-for-name: Look for its name. $ kubectl get pods --namespace {namespace}
look-at-workload: Look at the workload's own status. $ kubectl describe {kind} {name} --namespace {namespace}
resume: Set spec.suspend to false, or wait for the program that admits it, such as Kueue.
scale-up: Scale it up.
create-again: Create the pod again, if no controller does.
spare-reservations: Administrator: never delete pods in kai-resource-reservation. KAI's binder deletes a pod
    without an Event when the reservation pod of its GPU is deleted.
find-lost-member: Find out why the missing pod ended, then start the job again.
    $ kubectl get events --namespace {namespace} --sort-by=.lastTimestamp
nothing: Do nothing: KAI places the pod that replaces it.
wait-for-quota: Wait until the queue may use GPUs over its quota again, or ask for a larger quota.
use-priority: Wait for room, or use a higher priority with the label priorityClassName.
# KAI does not schedule the pod.
correct-scheduler: Correct the scheduler's name, if it is a typing mistake.
set-scheduler: Set schedulerName: {scheduler} in a new pod. $ kaishare explain --live -n {namespace}
read-events: Read the pod's Events. $ kubectl describe pod {pod} --namespace {namespace}
ask-for-queue: Ask an administrator for a queue, if needed: the namespace has no label kai.scheduler/queue.
# kaishare left the pod alone, by the reason for which it would do so now.
left-opted-out: Remove the label kaishare.dev/inject from the pod's template.
left-mode-off: Policy owner: set another kaishare.dev/mode on the namespace, then create the pod again.
left-node-name-set: Remove spec.nodeName from the pod's template: such a pod is never scheduled.
left-other-scheduler: Remove schedulerName from the pod's template.
left-policy-invalid: Policy owner: correct the namespace's labels (kaishare policies), then delete the pod.
left-namespace-excluded: Ask an administrator: the webhook's settings exclude the namespace.
left-before: Delete the pod and let it be created again: kaishare's webhook did not change it, and would now.
# KAI has not looked at the pod.
open-gate: Ask the owner of the program that put the gate there, which removes it.
read-pod-grouper: Administrator: look at the log of KAI's pod-grouper.
start-kai: Administrator: start KAI's {program} again. $ kubectl get pods --namespace {kai}
wait-seconds: Wait some seconds.
find-missing-pods: Find out why the others do not exist, by the workload's Events.
correct-node-pool: Remove the label kai.scheduler/node-pool from the workload, or correct it.
create-shard: Administrator: create the SchedulingShard.
start-scheduler: Administrator: start KAI's scheduler, or read its log. $ kubectl get pods --namespace {kai}
mend-root-queues: Administrator: give every queue spec.parentQueue or children. KAI before v0.16.5 ends when a
    queue without a parent is to give GPUs back.
ask-host: In a vCluster: ask the host's administrators, who see the pod's objects.
check-dns: If no pod of the vCluster starts, look whether its Service kube-system/kube-dns has an address:
    vCluster copies no pod to the host before that. $ kubectl get service kube-dns --namespace kube-system
install-kai: Else name another scheduler, or install KAI, which is not installed here.
ask-host-why: In a vCluster: ask the host's administrators, since KAI's objects are there and not on this API
    server, to type $ kaishare why -n HOST_NAMESPACE {pod}-x-{namespace}-x-VCLUSTER
# The guard refuses the PodGroup.
guard-queue: Set the label kai.scheduler/queue in the pod's template to a queue of its namespace, and remove
    it from the objects that own the pod.
guard-priority: Restore the labels priorityClassName and kai.scheduler/preemptibility of the workload.
guard-owner: Restore the pod's owner references. A new pod can have other ones.
guard-spark: Remove the label spark-app-selector from the pod's template: its values begin with spark-.
guard-annotations: Remove these annotations from the object that owns the pod.
guard-other: Undo what these words name. Ask an administrator where they are not clear.
# The queue.
name-queue-of-pool: Name a queue of the node pool {pool} with the label kai.scheduler/queue, {place}.
    $ kubectl get queues.scheduling.run.ai -L kai.scheduler/node-pool
name-pool-of-queue: Or set the label kai.scheduler/node-pool to the queue's pool.
set-queue: Set the label kai.scheduler/queue to {which}: {place}.
set-queue-of-workload: If the workload names its queue itself, set the label kai.scheduler/queue to {which}:
    {place}.
set-queue-of-namespace: Policy owner: name {which} on the namespace; pods that exist keep their queue.
    $ kubectl label namespace {namespace} --overwrite kai.scheduler/queue=QUEUE
set-or-remove-queue: Set the label kai.scheduler/queue to a queue, or remove it: {place}.
create-queue: Administrator: create the queue, or correct spec.parentQueue.
    $ kubectl get queues.scheduling.run.ai
ask-about-queue: Ask an administrator whether the queue {queue} has child queues, or no parent: KAI says no
    more than this about both. $ kubectl get queues.scheduling.run.ai
wait-in-queue: Wait until other pods of the queue end{holders}. Or request less.
request-less-or-other-queue: Request less, or name another queue.
fewer-or-other-queue: Start the workload with fewer or smaller pods, or name another queue.
raise-queue: Administrator: raise spec.resources.{resource} of the queue.
    $ kubectl edit queues.scheduling.run.ai {queue}
preemptible: {change}, {place}. KAI may then evict the pod when another queue needs its quota.
wait-for-guaranteed: Or wait until other pods of the queue end that are not preemptible.
name-a-queue: Or name a queue with the label kai.scheduler/queue, {place}.
# KAI finds no node.
wait-for-pods: Wait until other pods end{holders}.
request-smaller: Or request less, if a smaller part of a GPU is enough.
request-card: Request less, or GPUs with more memory. $ kubectl get nodes -L nvidia.com/gpu.memory
correct-affinity: Correct nodeSelector or affinity of the pod's template. $ kubectl get nodes --show-labels
tolerate: Add the toleration to the pod's template. $ kubectl describe nodes
uncordon: Administrator: uncordon a node. $ kubectl get nodes
wait-for-gpu-nodes: Or wait until other pods end on the nodes that lack GPUs, if these have any{holders}.
change-requirements: Change what the pod's template asks of nodes, or wait. $ kubectl describe nodes
start-device-plugin: Administrator: start the device plugin, or read its log. $ kubectl describe nodes
use-fraction: Use gpu-fraction instead of gpu-memory.
install-gfd: Administrator: install GPU feature discovery. $ kubectl get nodes -L nvidia.com/gpu.memory
correct-topology: Correct or remove the annotation kai.scheduler/topology of the workload.
create-topology: Administrator: create the Topology.
prefer-topology: Wait, ask for fewer pods, or set kai.scheduler/topology-preferred-placement instead.
read-claim: Look at the claim's Events. $ kubectl describe pvc {claims} --namespace {namespace}
fit-node: Request what one node has, or spread the work over several pods. $ kubectl describe nodes
shrink-gang: Wait until other pods end{holders}. Or start the workload with fewer or smaller pods.
roll-in-place: Let the rollout end an old pod before it starts a new one: maxSurge 0 and maxUnavailable 1.
    $ kubectl edit deployment {deployment} --namespace {namespace}
delete-old-pod: Or delete an old pod, if the service may be down meanwhile.
wait-for-node: Wait some minutes until the node has joined and offers its GPUs.
read-autoscaler: If no node comes, an administrator reads the autoscaler's log. $ kubectl get nodes
scale-from-zero: If these nodes are scaled to zero, an administrator raises their number, or installs KAI with
    global.clusterAutoscaling=true.
correct-resource: Correct the resource's name in the pod's template. $ kubectl describe nodes
install-plugin: Administrator: install the device plugin that offers {resource}, or look at its pods' log.
request-whole-gpu: Request a whole GPU, which these nodes take: nvidia.com/gpu: 1 instead of the share, with
    the annotation kaishare.dev/whole-gpu: "true" in a namespace that gives shares.
request-mig: Request a MIG device (nvidia.com/mig-1g.10gb). $ kubectl get nodes -L nvidia.com/mig.strategy
wait-for-evicted: Wait: an evicted pod may take its terminationGracePeriodSeconds, 30 s by default.
check-names: Check the names that the pod uses: {names}.
ask-why: Ask an administrator to run the same command. $ kaishare why -n {namespace} {name}
# KAI chose a node, and the pod is not bound.
wait-a-minute: Wait a minute; KAI tries again.
ask-for-binding: Then ask an administrator to type it, who sees BindRequests and reservation pods.
    $ kaishare why -n {namespace} {name}
delete-missed: Delete the pod and create it again. $ kubectl delete pod {pod} --namespace {namespace}
order-webhooks: Administrator: let kaishare's webhook be called before KAI's, so its name must sort first.
    $ kubectl get mutatingwebhookconfigurations
delete-if-missed: Delete the pod and create it again, if KAI is older than v0.18: it lacks the annotation
    runai/shared-gpu-configmap, which KAI's webhook writes. $ kubectl delete pod {pod} --namespace {namespace}
read-binder: If it repeats, an administrator reads the binder's log. $ kubectl get pods --namespace {kai}
read-reservations: Administrator: look at the reservation pods: image, RuntimeClass, device plugin.
    $ kubectl get pods --all-namespaces --selector app=kai-resource-reservation
# The pod is bound.
read-log: Look at its log. $ kubectl logs {pod} --namespace {namespace} --all-containers
read-last-log: Look at the log of its last run.
    $ kubectl logs {pod} --namespace {namespace} --all-containers --previous
read-container-log: Look at its log. $ kubectl logs {pod} --namespace {namespace} --container {container}
read-readiness: Look for the readiness probe or gate. $ kubectl describe pod {pod} --namespace {namespace}
look-at-node: Administrator: look at the node. $ kubectl get node {node}
raise-deadline: Raise activeDeadlineSeconds in the pod's template, if the work takes longer.
delete-refused: Delete the pod: it never runs again. Its controller makes a new one, if it has one.
    $ kubectl delete pod {pod} --namespace {namespace}
read-kubelet: If it repeats, an administrator looks at the node: {causes}. $ kubectl describe node {node}
mend-runtime: Administrator: correct NVIDIA's container runtime on the node. $ kubectl describe node {node}
correct-command: Correct the container's command or image in the pod's template: the image lacks that program.
ask-for-share: Or ask for a larger share, if the pod needs it: the annotation gpu-fraction or the label
    kaishare.dev/size in its template, as far as the namespace allows.
wait-for-end: Wait for its containers to end; a finalizer can hold it as well.
    $ kubectl get pod {pod} --namespace {namespace} -o jsonpath={{.metadata.finalizers}}
whole-gpus-for-ranks: Request whole GPUs, if each rank needs a GPU of its own: the annotation
    kaishare.dev/whole-gpu: "true" in the template, and no share.
one-pod-for-ranks: Or use one pod with several GPUs (gpu-fraction-num-devices).
equal-queues: Write the same label kai.scheduler/queue on the workload and on its pods.
known-priority: Use train, build-preemptible, build or inference, if that PriorityClass does not exist; else
    set the label priorityClassName on the topmost owner. $ kubectl get priorityclass
agent: {act}
clear-flag: End the violation: the flag clears with {cleared_by}.
"""
"""A name, a sentence and perhaps a command after `$` for each act; texts that a cause gives are in braces."""


def _acts(table: str) -> dict[str, Remedy]:
    acts = {}
    for entry in re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", table).strip()):
        name, _, rest = entry.partition(": ")
        text, _, command = " ".join(rest.split()).partition(" $ ")
        acts[name] = Remedy(text, command)
    return acts


ACTS: Final = _acts(_TABLE)


def finding(
    evidence: PodEvidence,
    code: Code,
    sentence: str,
    *acts: str,
    details: Mapping[str, float | str] | None = None,
    excluded_by: Sequence[Fact[Any]] = (),
    **values: object,
) -> PodFinding:
    """Return a finding with its acts, in the order in which they are to be tried.

    The sentence and the values, which fill the braces in the acts, may have texts of others. Of a cause by
    exclusion, `excluded_by` has the facts that it must have read.
    """
    texts = {
        "namespace": evidence.namespace,
        "kind": evidence.kind.lower(),
        "name": evidence.name,
        "pod": evidence.pod.known.name if evidence.pod.known else evidence.name,
        "kai": evidence.kai_namespace,
        "holders": "",
        **{key: one_line(str(value), LONGEST_LINE * 2) for key, value in values.items()},
    }
    remedies = [_remedy(ACTS[act], texts) for act in acts]
    if remedies and remedies[0].text.startswith("Or "):  # where the acts before it do not apply
        remedies[0] = replace(remedies[0], text=f"{remedies[0].text[3].upper()}{remedies[0].text[4:]}")
    return PodFinding(code, one_line(sentence, LONGEST_LINE * 3), remedies, details or {}, excluded_by)


def _remedy(act: Remedy, texts: Mapping[str, str]) -> Remedy:
    """Fill in an act. No text that a shell could interpret gets into a command, only names of objects."""
    words = dict(texts)
    for key, text in texts.items():
        names = text.split(" ") if key == "claims" else [text]
        if act.command != "{command}" and not all(map(is_dns_subdomain, names)):
            words[key] = key.upper()
    return Remedy(act.text.format_map(texts), act.command.format_map(words))
