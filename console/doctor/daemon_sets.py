"""The agents' DaemonSet, and why it places no pod on a node.

The DaemonSet's controller creates a pod for each node that the pod's node selector and node affinity select
and whose taints the pod tolerates (`pkg/controller/daemon`, `NodeShouldRunDaemonPod`).
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from console.agents import AGENT_LABELS
from kube.objects import ObjectMeta, Taint
from service.text import one_line
from webhook.doctor.api_reader import ApiReader, ListResult, ListSpec
from webhook.registration.objects import Requirement

_NAME: Final = "metadata.name"
_KEEPS_AWAY: Final = frozenset({"NoSchedule", "NoExecute"})
_OF_KUBERNETES: Final = "node.kubernetes.io/"
"""Prefix of the taints for a node's state, which the controller makes every pod of a DaemonSet tolerate."""


class _Toleration(Struct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect not in ("", taint.effect) or (self.key and self.key != taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class _Term(Struct, rename="camel", frozen=True):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        lines = (*(self.match_expressions or ()), *(self.match_fields or ()))
        return bool(lines) and all(_holds(line, labels) for line in lines)


class _NodeSelector(Struct, rename="camel", frozen=True):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(Struct, frozen=True):
    required: _NodeSelector | None = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=None
    )


class _Affinity(Struct, rename="camel", frozen=True):
    node_affinity: _NodeAffinity | None = None


class _PodSpec(Struct, rename="camel", frozen=True):
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[_Toleration] | None = None


class _Template(Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _Spec(Struct, frozen=True):
    template: _Template = _Template()


class _Status(Struct, rename="camel", frozen=True):
    desired_number_scheduled: int = 0


class AgentDaemonSet(Struct, frozen=True):
    """The agents' DaemonSet."""

    metadata: ObjectMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()

    @property
    def desired(self) -> int:
        """Number of nodes that should run an agent (DESIRED in kubectl)."""
        return self.status.desired_number_scheduled

    def obstacles(self, name: str, labels: Mapping[str, str], taints: tuple[Taint, ...]) -> Iterator[str]:
        """Yield why the DaemonSet places no pod on a node, with the value of the chart; nothing if it does.

        Args:
            name: the node's name.
            labels: the node's labels.
            taints: the node's taints.
        """
        spec = self.spec.template.spec
        for key, value in sorted((spec.node_selector or {}).items()):
            if labels.get(key) != value:
                yield f"no label {one_line(key)}={one_line(value)} (agent.nodeSelector)"
        affinity = spec.affinity.node_affinity if spec.affinity else None
        if affinity is not None and affinity.required is not None:
            fields = {**labels, _NAME: name}
            if not any(term.holds(fields) for term in affinity.required.node_selector_terms or ()):
                yield "not selected by the node affinity (agent.affinity)"
        for taint in taints:
            if (
                taint.effect in _KEEPS_AWAY
                and not taint.key.startswith(_OF_KUBERNETES)
                and not any(toleration.tolerates(taint) for toleration in spec.tolerations or ())
            ):
                yield f"taint {one_line(str(taint))} without a toleration (agent.tolerations)"


_daemon_set = msgspec.json.Decoder(AgentDaemonSet)


async def list_agent_daemon_sets(reader: ApiReader, namespace: str) -> ListResult[AgentDaemonSet]:
    """List the agents' DaemonSets in a namespace; a failed request is recorded in the reader."""
    spec = ListSpec(
        resource="daemonsets",
        group="apps",
        namespace=namespace,
        params={"labelSelector": AGENT_LABELS},
        without="why nodes have no agent is not known",
    )
    return await reader.list(spec, _daemon_set.decode)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """Whether a requirement of a node affinity holds; it has the operators Gt and Lt, too."""
    if requirement.operator not in ("Gt", "Lt"):
        return requirement.holds(labels)
    try:
        actual, limit = int(labels.get(requirement.key, "")), int((requirement.values or [""])[0])
    except ValueError:
        return False
    return actual > limit if requirement.operator == "Gt" else actual < limit
