"""One row for each pod on each GPU, and the table of one node. Pure.

A response of a node that was taken over can have any figures and any number of pods: rows are bounded, and
implausible figures are unknown.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import islice
from typing import Final, NamedTuple

from msgspec import Struct

from console.top.gpu_rows import (
    LONGEST_DETAIL,
    LONGEST_NAME,
    NONE,
    UNKNOWN,
    GpuState,
    bar,
    count_text,
    gpus_of,
    known_bytes,
    percent,
    plain,
    utilization_text,
)
from console.top.layout import measure
from gpuagent.api_types import AgentResponse, ApiAmount, ApiHolding, ApiPod, ApiProblem, ApiVerdict
from kai.keys import FINISHED_PHASES
from service.text import LONGEST_LINE, shorten
from service.units import duration, size

MAX_PODS: Final = 4096  # of one agent; a kubelet runs at most some hundred pods
MAX_ROWS: Final = 8192  # of one agent
MAX_SECONDS: Final = 1e10  # larger durations are shown as this one
NO_POD: Final = "No pod has a GPU share or uses GPU memory."
WITHIN: Final = "within share"
_MAX_PROBLEMS: Final = 64
_MAX_GPUS: Final = 256  # GPUs and MIG devices of one pod
_IDLE_AFTER: Final = 3600.0  # seconds from which on a row says that its share is idle
_OWN_GRACE: Final = ("over-share", "limit-bypassed")
_LEAST_EXCESS: Final = 256 << 20  # bytes above a share from which on a pod is a cause of a risk

Key = tuple[str, str, str]


class Tier(IntEnum):
    """What is wrong with a pod on a GPU, the most urgent first."""

    FLAGGED = 0
    IN_GRACE = 1  # in violation, within the grace
    CAUSE = 2  # holds more than its share on a GPU at risk
    AT_RISK = 3  # has not used its share on a GPU at risk, so that its next allocation can fail
    CALM = 4


SIGNS: Final = {Tier.FLAGGED: "!", Tier.IN_GRACE: "~", Tier.CAUSE: "+", Tier.AT_RISK: "*", Tier.CALM: " "}
SIGN_OLD: Final = "?"


class Risk(NamedTuple):
    """The part of one pod in the risk of its GPU, in bytes and in words; one of the first two is 0."""

    excess: int = 0  # memory above the share, 0 for a pod that is no cause
    unused: int = 0  # memory that the pod is still promised, which may not be free
    text: str = ""


class PodRow(Struct, frozen=True, kw_only=True, gc=False):
    """One pod on one GPU. Texts are safe for a terminal.

    A row is part of no reference cycle, so garbage collection need not visit it.
    """

    key: Key  # agent, pod UID and GPU UUID, which is empty if unknown
    tier: Tier
    used: int | None  # bytes; None is unknown
    share: int | None  # bytes; None if there is none, or if it is unknown
    has_share: bool  # whether there is a share, known or not
    risk: Risk
    verdicts: tuple[ApiVerdict, ...]  # the flags, else the violations within their grace
    haystack: str  # lower-case text that the filter searches
    rank: float  # sort key of the default order: the tier, then the time over or the use of the share
    cells: dict[str, str]  # the text in each column; plain str only, so that no garbage collection visits it
    api_pod: ApiPod  # the pod as the agent reported it


class NodeTable(Struct, frozen=True, kw_only=True):
    """Everything that is shown of one response of an agent."""

    rows: tuple[PodRow, ...] = ()  # by GPU and pod
    widths: Mapping[str, int] = {}
    gpus: tuple[GpuState, ...] = ()
    problems: tuple[str, ...] = ()
    pods: int = 0
    flagged: int = 0  # pods with a flag
    over: int = 0  # pods without a flag, in violation within the grace
    is_suspended: bool = False  # whether verdicts are suspended on the whole node
    is_simulated: bool = False
    has_figures: bool = False
    """Whether the response has a current sample; without one it lists no GPU and no pod."""
    nothing: str = ""  # why the response has no row; empty if it has some


NO_TABLE: Final = NodeTable()


def sign(row: PodRow, *, is_old: bool) -> str:
    """Return the two characters that mark a row; `is_old` are figures of the past."""
    return SIGNS[row.tier] + (SIGN_OLD if is_old else " ")


def node_table(agent: str, node: str, response: AgentResponse) -> NodeTable:
    """Return the table of a response. The agent is in the keys of the rows; the node is printable."""
    gpus, pods = gpus_of(node, response), response.pods[:MAX_PODS]
    by_uuid = {gpu.uuid: gpu for gpu in gpus if gpu.uuid}
    every = (row for pod in pods for row in _pod_rows(agent, node, pod, by_uuid, response))
    rows = sorted(
        islice(every, MAX_ROWS), key=lambda row: (len(gpu := row.cells["gpu"]), gpu, row.cells["name"])
    )
    flagged = {row.key[1] for row in rows if row.tier is Tier.FLAGGED}
    if response.gpus:
        nothing = "" if response.pods else NO_POD
    elif response.sample_timestamp is None:
        nothing = "No figures: there is no sample yet, or the last one is too old."
    else:
        nothing = "No GPU on this node responds."
    return NodeTable(
        rows=tuple(rows),
        widths=measure([row.cells for row in rows]),
        gpus=gpus,
        problems=tuple(_problem(problem, gpus) for problem in response.problems[:_MAX_PROBLEMS]),
        pods=len({row.key[1] for row in rows}),
        flagged=len(flagged),
        over=len({row.key[1] for row in rows if row.tier is Tier.IN_GRACE} - flagged),
        is_suspended=response.attribution_ok is False,
        is_simulated=response.simulated,
        has_figures=bool(response.gpus) or response.attribution_ok is True,
        nothing=nothing,
    )


def _problem(problem: ApiProblem, gpus: Sequence[GpuState]) -> str:
    labels = {gpu.uuid or gpu.label.replace("GPU ", "index-"): gpu.label for gpu in gpus}
    scope = labels.get(problem.gpu_uuid) or plain(problem.gpu_uuid, 64) or "the node"
    detail = f": {plain(problem.detail, LONGEST_DETAIL)}" if problem.detail else ""
    return f"{plain(problem.reason, 48)} ({scope}){detail}"


def _pod_rows(
    agent: str, node: str, pod: ApiPod, gpus: Mapping[str, GpuState], response: AgentResponse
) -> Iterator[PodRow]:
    holdings = {holding.gpu_uuid: holding for holding in pod.gpus}
    verdicts: dict[str, list[ApiVerdict]] = {}
    for verdict in pod.verdicts:
        verdicts.setdefault(verdict.gpu_uuid, []).append(verdict)
    judged = {verdict.gpu_uuid for verdict in pod.verdicts if verdict.flagged or verdict.is_over}
    inner = pod.vcluster
    name, namespace = plain(pod.name, LONGEST_NAME), plain(pod.namespace, LONGEST_NAME)
    pod_size, queue = plain(pod.size or "", LONGEST_NAME), plain(pod.queue or "", LONGEST_NAME)
    tenant = plain(f"{inner.name}: {inner.namespace}/{inner.pod}", 3 * LONGEST_NAME) if inner else ""
    haystack = f"{node} {namespace}/{name} {pod_size} {queue} {tenant}".lower()
    names = {"node": node, "pod": name, "namespace": namespace, "name": f"{namespace}/{name}"}
    names |= {"size": pod_size or NONE, "queue": queue or NONE}
    for uuid in list(dict.fromkeys([*sorted(judged), *holdings, *pod.gpu_uuids]))[:_MAX_GPUS] or [""]:
        holding, gpu, of_gpu = holdings.get(uuid), gpus.get(uuid), verdicts.get(uuid, [])
        amount = (pod.shares.get(uuid) or _share_elsewhere(of_gpu)) if holding else pod.share_on(uuid)
        share = known_bytes(amount.bytes) if amount else None
        used = known_bytes(holding.used_bytes) if holding else None
        has_share = amount is not None or pod.has_unsized_gpus or (holding is None and pod.has_share)
        flags = tuple(each for each in of_gpu if each.flagged)
        visible = flags or tuple(each for each in of_gpu if each.is_over)
        over_seconds = max((min(each.over_seconds, MAX_SECONDS) for each in visible), default=None)
        ratio = used / share if used is not None and share else None
        risk = _risk_of(gpu, pod, uuid, used, of_gpu)
        idle = _idle_text(holding)
        if visible:
            tier = Tier.FLAGGED if flags else Tier.IN_GRACE
            reasons = ", ".join(dict.fromkeys(plain(each.reason, 48) for each in visible))
            word = "flagged" if flags else f"in grace{_grace_text(pod, visible, response.grace_seconds)}"
            state = shorten(f"{word}: {reasons}{f'; {risk.text}' if risk.text else ''}", LONGEST_LINE)
        else:
            tier = Tier.CAUSE if risk.excess else Tier.AT_RISK if risk.unused else Tier.CALM
            if any(each.is_of_memory for each in of_gpu):
                within = "in order" if amount is None else idle or WITHIN
                state = risk.text or ("within slack" if ratio is not None and ratio > 1 else within)
            else:
                reason = _not_judged(pod, uuid, holding, gpu)
                before = risk.text or idle
                state = f"{f'{before}; ' if before else ''}not judged{f': {reason}' if reason else ''}"
        processes = holding.processes if holding else None
        utilization = holding.utilization_ratio if holding else None
        has_gpu = bool(holding or uuid)  # else there are no figures, not even unknown ones
        figure = over_seconds if visible else (risk.excess or risk.unused or ratio)
        yield PodRow(
            key=(agent, pod.uid, uuid),
            tier=tier,
            used=used,
            share=share,
            has_share=has_share,
            risk=risk,
            verdicts=visible,
            haystack=f"{haystack} {state.lower()}",
            # A larger figure comes first in its tier, an unknown one last.
            rank=tier + (1.0 if figure is None else 1 / (2 + min(max(figure, 0.0), 1e12))) - 0.5,
            cells={
                **names,
                "state": state,
                "gpu": _place_text(pod, uuid, holding, gpu),
                "used": size(used) if has_gpu else NONE,
                "share": size(share) if has_share else NONE,
                "bar": bar(ratio),
                "percent": percent(ratio) if has_share and share != 0 else NONE,
                "utilization": utilization_text(utilization) if has_gpu else NONE,
                "over": duration(over_seconds or 0) if visible else NONE,
                "processes": count_text(processes) if has_gpu else NONE,
            },
            api_pod=pod,
        )


def _grace_text(pod: ApiPod, verdicts: Sequence[ApiVerdict], of_agent: float | None) -> str:
    """Return the length of the shortest grace that applies, such as ` of 2 min`; empty if it is unknown."""
    of_namespace = pod.over_share_policy.grace_seconds if pod.over_share_policy else None
    own = of_agent if of_namespace is None else of_namespace
    graces = [own if verdict.reason in _OWN_GRACE else of_agent for verdict in verdicts]
    known = [grace for grace in graces if grace is not None and 0 <= grace <= MAX_SECONDS]
    return f" of {duration(min(known))}" if known else ""


def _risk_of(
    gpu: GpuState | None, pod: ApiPod, uuid: str, used: int | None, verdicts: Iterable[ApiVerdict]
) -> Risk:
    """Return the part of a pod, which uses so many bytes, in the risk of a GPU.

    Where the use is unknown, the verdicts have a lower bound.
    """
    share = _allowed(pod, uuid) if gpu is not None and gpu.at_risk else None
    if gpu is None or share is None:
        return Risk()
    least = max((known_bytes(verdict.used_at_least_bytes) or 0 for verdict in verdicts), default=0)
    excess = (least if used is None else used) - share
    if excess >= _LEAST_EXCESS:
        above = "above its share" if share else "without a share here"
        return Risk(excess, 0, f"holds {'at least ' if used is None else ''}{size(excess)} {above}")
    if uuid not in pod.shares or excess >= 0:
        return Risk()
    amount = f"{'up to ' if used is None else ''}{size(-excess)}"
    return Risk(0, -excess, f"at risk: {amount} of its share unused, {size(gpu.free)} free")


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


def _share_elsewhere(verdicts: Sequence[ApiVerdict]) -> ApiAmount | None:
    """Return the share, from a verdict, with which a pod is compared on a GPU that may not be its own."""
    compared = (each.allowed_bytes for each in verdicts if each.reason == "over-share")
    amount = next((allowed for allowed in compared if allowed is not None), None)
    return None if amount is None else ApiAmount(amount, "")


def _not_judged(pod: ApiPod, uuid: str, holding: ApiHolding | None, gpu: GpuState | None) -> str:
    """Return why a pod is not judged on a GPU; empty if no reason is known."""
    if holding is None:
        return "its GPU does not respond" if uuid else "its GPU is unknown" if pod.has_share else "no share"
    reasons = {
        "the pod has ended": pod.phase in FINISHED_PHASES,
        "MIG": holding.mig,
        "verdicts are suspended": gpu is not None and gpu.is_suspended,
        "memory unknown": holding.used_bytes is None,
        "whole GPU": {share.source for share in pod.shares.values()} == {"whole-gpu"},
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
    if holding:
        return f"{count_text(holding.gpu)} {plain(uuid, 9)}" if holding.mig else count_text(holding.gpu)
    if gpu:
        return gpu.label.removeprefix("GPU ")
    return plain(uuid, 9) if uuid.startswith("MIG-") else UNKNOWN if uuid or pod.has_share else NONE
