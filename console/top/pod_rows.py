"""One row for each pod on each GPU, and the table of one node. Pure.

A response of a node that was taken over can have any figures and any number of pods: rows are bounded, and
implausible figures are unknown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct

from console.top.gpu_rows import (
    LONGEST_NAME,
    NONE,
    UNKNOWN,
    GpuState,
    ProblemText,
    bar,
    gpus_of,
    index_text,
    known_bytes,
    nothing_text,
    percent,
    plain,
    problems_of,
)
from gpuagent.api_types import AgentResponse, ApiAmount, ApiHolding, ApiPod, ApiVerdict
from kai.keys import FINISHED_PHASES
from service.names import is_dns_label, is_dns_subdomain
from service.text import LONGEST_LINE, shorten
from service.units import duration, size

MAX_PODS: Final = 4096  # of one agent; a kubelet runs at most some hundred pods
MAX_ROWS: Final = 8192  # of one agent
MAX_SECONDS: Final = 1e10  # larger durations are shown as this one
_MAX_GPUS: Final = 256  # GPUs and MIG devices of one pod
_IDLE_AFTER: Final = 3600.0  # seconds from which on a row says that its share is idle

# Bytes above a share that count as a cause in any case. Less counts only for the pod with most of it, since
# the response does not have the agent's slack.
_SMALL: Final = 256 << 20

Key = tuple[str, str, str]
# By UUID of a GPU at risk, its free bytes, and the excess from which on a pod counts as a cause.
Risks = Mapping[str, tuple[int, int]]


class RowRisk(NamedTuple):
    """The part of one pod in the risk of its GPU, in bytes and in words; one of the first two is 0."""

    excess: int = 0  # memory above the share, 0 for a pod that is no cause
    unused: int = 0  # memory that the pod is still promised, which may not be free
    text: str = ""


class PodState(StrEnum):
    """The state of a pod on one GPU, from its verdicts. The value is the word for it."""

    FLAGGED = "flagged"
    IN_GRACE = "in grace"  # in violation, within the grace
    WITHIN = "within share"
    NOT_JUDGED = "not judged"


# The cells of a pod without a GPU, which has no figures, not even unknown ones.
_NO_GPU: Final = dict.fromkeys(("used", "utilization", "limit", "processes"), NONE)


class PodRow(Struct, frozen=True, kw_only=True, gc=False):
    """One pod on one GPU. Text fields are safe for a terminal.

    A row is part of no reference cycle, so garbage collection need not visit it.
    """

    key: Key  # agent, pod UID and GPU UUID, which is empty if unknown
    state: PodState
    state_text: str  # the state, with the reasons of flags and violations, or why the pod is not judged
    pod: str
    namespace: str
    used: int | None  # bytes; None is unknown
    share: int | None  # bytes; None if there is none, or if it is unknown
    has_share: bool  # whether there is a share, known or not
    ratio: float | None  # used memory divided by the share
    over_seconds: float | None  # duration of the longest current violation; None if there is none
    risk: RowRisk
    verdicts: tuple[ApiVerdict, ...]  # the flags, else the violations within their grace
    haystack: str  # lower-case text that the filter searches
    rank: float  # sort key of the default order: the tier, then the time over or the use of the share
    by_pod: str  # sort key: namespace and pod, as one string; tuples of strings sort ten times slower
    cells: dict[str, str]  # the text in each column; plain str only, so that no garbage collection visits it
    api_pod: ApiPod  # the pod as the agent reported it

    @property
    def is_violation(self) -> bool:
        """Whether the pod is flagged or in its grace."""
        return bool(self.verdicts)

    @property
    def is_cause(self) -> bool:
        """Whether the pod holds more than its share on a GPU at risk, flagged or not."""
        return self.risk.excess > 0

    @property
    def is_at_risk(self) -> bool:
        """Whether the pod has not used its share on a GPU at risk, so that its next allocation can fail."""
        return self.risk.unused > 0

    @property
    def is_urgent(self) -> bool:
        """Whether the pod is flagged, in its grace, a cause of a GPU's risk, or at risk."""
        return self.is_violation or self.is_cause or self.is_at_risk

    @property
    def why_command(self) -> str:
        """The command that tells the pod's story; empty for a name that Kubernetes does not allow.

        The name comes from an agent, and the command is for a shell.
        """
        pod = self.api_pod
        is_safe = is_dns_label(pod.namespace) and is_dns_subdomain(pod.name)
        return f"kaishare why -n {pod.namespace} {pod.name}" if is_safe else ""


class NodeTable(Struct, frozen=True, kw_only=True):
    """Everything that is shown of one response of an agent."""

    rows: tuple[PodRow, ...] = ()  # by GPU and pod
    gpus: tuple[GpuState, ...] = ()
    problems: tuple[ProblemText, ...] = ()
    pods: int = 0
    flagged: int = 0  # pods with a flag
    over: int = 0  # pods without a flag, in violation within the grace
    is_suspended: bool = False  # whether verdicts are suspended on the whole node
    is_simulated: bool = False
    has_figures: bool = False
    """Whether the response has a current sample; without one it lists no GPU and no pod."""
    nothing: str = ""  # why the response has no row; empty if it has some

    def other_causes(self, row: PodRow) -> list[PodRow]:
        """Return the other pods above their share on the GPU of a row, the largest first."""
        others = (each for each in self.rows if each.key[2] == row.key[2] and each.key != row.key)
        return sorted((each for each in others if each.is_cause), key=lambda each: -each.risk.excess)


NO_TABLE: Final = NodeTable()


def node_table(agent: str, node: str, response: AgentResponse) -> NodeTable:
    """Return the table of a response. The agent is in the keys of the rows; the node is printable."""
    gpus, pods = gpus_of(node, response), response.pods[:MAX_PODS]
    by_uuid, risks = {gpu.uuid: gpu for gpu in gpus if gpu.uuid}, _gpus_at_risk(pods, gpus)
    every = (row for pod in pods for row in _pod_rows(agent, node, pod, by_uuid, risks, response))
    rows = sorted(islice(every, MAX_ROWS), key=lambda row: (len(gpu := row.cells["gpu"]), gpu, row.by_pod))
    flagged = {row.key[1] for row in rows if row.state is PodState.FLAGGED}
    return NodeTable(
        rows=tuple(rows),
        gpus=gpus,
        problems=problems_of(response, gpus),
        pods=len({row.key[1] for row in rows}),
        flagged=len(flagged),
        over=len({row.key[1] for row in rows if row.state is PodState.IN_GRACE} - flagged),
        is_suspended=response.attribution_ok is False,
        is_simulated=response.simulated,
        has_figures=bool(response.gpus) or response.attribution_ok is True,
        nothing=nothing_text(response),
    )


def _pod_rows(
    agent: str,
    node: str,
    pod: ApiPod,
    gpus: Mapping[str, GpuState],
    risks: Risks,
    response: AgentResponse,
) -> Iterator[PodRow]:
    holdings = {holding.gpu_uuid: holding for holding in pod.gpus}
    verdicts: dict[str, list[ApiVerdict]] = {}
    for verdict in pod.verdicts:
        verdicts.setdefault(verdict.gpu_uuid, []).append(verdict)
    judged = {verdict.gpu_uuid for verdict in pod.verdicts if verdict.flagged or verdict.is_over}
    inner = pod.vcluster
    name, namespace = plain(pod.name, LONGEST_NAME), plain(pod.namespace, LONGEST_NAME)
    texts = {
        "size": plain(pod.size or "", LONGEST_NAME),
        "queue": plain(pod.queue or "", LONGEST_NAME),
        "workload": plain(f"{pod.workload.kind} {pod.workload.name}") if pod.workload else "",
        "tenant": plain(f"{inner.name}: {inner.namespace}/{inner.pod}", 3 * LONGEST_NAME) if inner else "",
    }
    words = (node, f"{namespace}/{name}", texts["size"], texts["queue"], texts["tenant"])
    haystack = " ".join(words).lower()
    names = {"node": node, "pod": name, "namespace": namespace}
    names |= {key: text or NONE for key, text in texts.items()}
    for uuid in list(dict.fromkeys([*sorted(judged), *holdings, *pod.gpu_uuids]))[:_MAX_GPUS] or [""]:
        holding, gpu, of_gpu = holdings.get(uuid), gpus.get(uuid), verdicts.get(uuid, [])
        amount = (pod.shares.get(uuid) or _share_elsewhere(pod, of_gpu)) if holding else pod.share_on(uuid)
        share = known_bytes(amount.bytes) if amount else None
        used = known_bytes(holding.used_bytes) if holding else None
        has_share = amount is not None or pod.has_unsized_gpus or (holding is None and pod.has_share)
        state = _state(of_gpu)
        is_flagged = state is PodState.FLAGGED
        visible = tuple(each for each in of_gpu if (each.flagged if is_flagged else each.is_over))
        over_seconds = max((min(each.over_seconds, MAX_SECONDS) for each in visible), default=None)
        ratio = used / share if used is not None and share else None
        risk = _risk_of(risks, pod, uuid, used, of_gpu)
        if visible:
            reasons = dict.fromkeys(plain(each.reason, 48) for each in visible)
            grace = "" if is_flagged else _grace_text(pod, visible, response.grace_seconds)
            state_text = f"{state}{grace}: {', '.join(reasons)}{f'; {risk.text}' if risk.text else ''}"
            state_text = shorten(state_text, LONGEST_LINE)
        elif state is PodState.WITHIN:
            is_above = ratio is not None and ratio > 1
            within = "in order" if amount is None else _idle_text(holding) or state.value
            state_text = risk.text or ("within slack" if is_above else within)
        else:
            reason = _not_judged(pod, uuid, holding, gpu)
            before = risk.text or _idle_text(holding)
            state_text = f"{f'{before}; ' if before else ''}{state}{f': {reason}' if reason else ''}"
        yield PodRow(
            key=(agent, pod.uid, uuid),
            state=state,
            state_text=state_text,
            pod=name,
            namespace=namespace,
            used=used,
            share=share,
            has_share=has_share,
            ratio=ratio,
            over_seconds=over_seconds,
            risk=risk,
            verdicts=visible,
            haystack=f"{haystack} {state_text.lower()}",
            rank=_rank(is_flagged, over_seconds, risk, ratio),
            by_pod=f"{namespace}\0{name}",
            cells={
                **names,
                **(_on_gpu(pod, uuid, holding) if holding or uuid else _NO_GPU),
                "state": state_text,
                "gpu": _place_text(pod, uuid, holding, gpu),
                "share": size(share) if has_share else NONE,
                "bar": bar(ratio),
                "percent": percent(ratio) if has_share and share != 0 else NONE,
                "over": duration(over_seconds or 0) if visible else NONE,
                "source": (plain(amount.source, 48) if amount else "") or NONE,
            },
            api_pod=pod,
        )


_OWN_GRACE: Final = ("over-share", "limit-bypassed")


def _grace_text(pod: ApiPod, verdicts: Sequence[ApiVerdict], of_agent: float | None) -> str:
    """Return the length of the shortest grace that applies, such as ` of 2 min`; empty if it is unknown."""
    of_namespace = pod.over_share_policy.grace_seconds if pod.over_share_policy else None
    own = of_agent if of_namespace is None else of_namespace
    graces = [own if verdict.reason in _OWN_GRACE else of_agent for verdict in verdicts]
    known = [grace for grace in graces if grace is not None and 0 <= grace <= MAX_SECONDS]
    return f" of {duration(min(known))}" if known else ""


def _on_gpu(pod: ApiPod, uuid: str, holding: ApiHolding | None) -> dict[str, str]:
    """Return the cells with what a pod uses and may use on a GPU."""
    utilization = holding.utilization_ratio if holding else None
    is_plausible = utilization is not None and 0 <= utilization <= 1
    processes = holding.known_processes if holding else None
    limit = known_bytes(pod.limits[uuid].bytes) if uuid in pod.limits else None
    return {
        "used": size(known_bytes(holding.used_bytes) if holding else None),
        "utilization": percent(utilization if is_plausible else None),
        "limit": NONE if limit is None else size(limit),
        "processes": UNKNOWN if processes is None else str(processes),
    }


def _gpus_at_risk(pods: Iterable[ApiPod], gpus: Iterable[GpuState]) -> Risks:
    """Return the GPUs at risk by UUID."""
    at_risk = {gpu.uuid: gpu for gpu in gpus if gpu.at_risk and gpu.uuid}
    largest = dict.fromkeys(at_risk, 0)
    for pod in pods if at_risk else ():
        for holding in pod.gpus:
            uuid = holding.gpu_uuid
            share = _allowed(pod, uuid) if uuid in largest else None
            if share is not None:
                used = known_bytes(holding.used_bytes)
                # A pod of unknown use may be the cause, so that little above a share is none.
                largest[uuid] = max(largest[uuid], _SMALL if used is None else used - share)
    return {
        uuid: (gpu.free or 0, _SMALL if gpu.is_over_promised else min(_SMALL, max(largest[uuid], 1)))
        for uuid, gpu in at_risk.items()
    }


def _risk_of(
    risks: Risks, pod: ApiPod, uuid: str, used: int | None, verdicts: Iterable[ApiVerdict]
) -> RowRisk:
    """Return the part of a pod, which uses so many bytes, in the risk of a GPU.

    Where the use is unknown, the verdicts have a lower bound.
    """
    share = _allowed(pod, uuid) if uuid in risks else None
    if share is None:
        return RowRisk()
    free, smallest_excess = risks[uuid]
    least = max((known_bytes(verdict.used_at_least_bytes) or 0 for verdict in verdicts), default=0)
    excess = (least if used is None else used) - share
    if excess >= smallest_excess:
        above = "above its share" if share else "without a share here"
        return RowRisk(excess, 0, f"holds {'at least ' if used is None else ''}{size(excess)} {above}")
    if uuid not in pod.shares or excess >= 0:
        return RowRisk()
    amount = f"{'up to ' if used is None else ''}{size(-excess)}"
    return RowRisk(0, -excess, f"at risk: {amount} of its share unused, {size(free)} free")


def _allowed(pod: ApiPod, uuid: str) -> int | None:
    """Return the bytes that a pod may use on a GPU; None if that is unknown.

    A pod whose GPU is unknown may use its share on any GPU; the verdict has the share then.
    """
    amount = pod.shares.get(uuid)
    if amount is not None:
        return known_bytes(amount.bytes)
    allowed = [verdict.allowed_bytes for verdict in pod.verdicts if verdict.gpu_uuid == uuid]
    share = max((known_bytes(amount) or 0 for amount in allowed if amount is not None), default=None)
    return None if share is None and (pod.gpu_unresolved or pod.has_unsized_gpus) else share or 0


def _share_elsewhere(pod: ApiPod, verdicts: Sequence[ApiVerdict]) -> ApiAmount | None:
    """Return the share, from a verdict, with which a pod is compared on a GPU that may not be its own."""
    source = next((candidate.source for candidate in pod.candidates if candidate.counts), "")
    for verdict in verdicts:
        if verdict.reason == "over-share" and verdict.allowed_bytes is not None:
            return ApiAmount(verdict.allowed_bytes, source)
    return None


def _state(verdicts: Sequence[ApiVerdict]) -> PodState:
    if any(verdict.flagged for verdict in verdicts):
        return PodState.FLAGGED
    if any(verdict.is_over for verdict in verdicts):
        return PodState.IN_GRACE
    return PodState.WITHIN if any(verdict.is_of_memory for verdict in verdicts) else PodState.NOT_JUDGED


def _not_judged(pod: ApiPod, uuid: str, holding: ApiHolding | None, gpu: GpuState | None) -> str:
    """Return why a pod is not judged on a GPU; empty if no reason is known."""
    if holding is None:
        return "its GPU does not respond" if uuid else "its GPU is unknown" if pod.has_share else "no share"
    sources = {share.source for share in pod.shares.values()}
    reasons = {
        "the pod has ended": pod.phase in FINISHED_PHASES,
        "MIG": holding.mig,
        "verdicts are suspended": gpu is not None and gpu.is_suspended,
        "memory unknown": holding.used_bytes is None,
        "whole GPU": sources == {"whole-gpu"},
        "share of unknown size": pod.has_unsized_gpus,
    }
    return next((reason for reason, is_so in reasons.items() if is_so), "")


def _idle_text(holding: ApiHolding | None) -> str:
    """Return how long a share has been idle; empty below an hour, or if that is unknown."""
    seconds = holding.idle_seconds if holding else None
    if holding is None or seconds is None or seconds < _IDLE_AFTER:
        return ""
    return (
        f"idle for {duration(min(seconds, MAX_SECONDS))}: no {'kernel' if holding.used_bytes else 'memory'}"
    )


def _place_text(pod: ApiPod, uuid: str, holding: ApiHolding | None, gpu: GpuState | None) -> str:
    index = holding.gpu if holding else gpu.index if gpu else None
    if index is None:
        is_mig = uuid.startswith("MIG-")
        return plain(uuid, 9) if is_mig else UNKNOWN if uuid or pod.has_share else NONE
    return f"{index_text(index)} {plain(uuid, 9)}" if holding and holding.mig else index_text(index)


def _rank(is_flagged: bool, over_seconds: float | None, risk: RowRisk, ratio: float | None) -> float:
    """Return a number that sorts by tier, then by a figure in descending order, unknown ones last."""
    tier, figure = 4, ratio
    if over_seconds is not None:
        tier, figure = (0 if is_flagged else 1), over_seconds
    elif risk.text:
        tier, figure = (2, risk.excess) if risk.excess else (3, risk.unused)
    return tier + (1.0 if figure is None else 1 / (2 + min(max(figure, 0.0), 1e12))) - 0.5


def figures_text(verdict: ApiVerdict) -> str:
    """Return the memory that a verdict compared; empty if the reason is not about memory."""
    if not verdict.is_of_memory:
        return ""
    at_least = "at least " if verdict.used_bytes is None else ""
    used = verdict.used_at_least_bytes if verdict.used_bytes is None else verdict.used_bytes
    has_limit = verdict.allowed_bytes is not None
    allowed = f"of {size(known_bytes(verdict.allowed_bytes))}" if has_limit else "in use"
    return f"{at_least}{size(known_bytes(used))} {allowed}"


def message_text(verdict: ApiVerdict) -> str:
    """Return the text of the Event about a flag; empty without a flag, or from an older agent."""
    return plain(verdict.message or "", 1000)
