"""The top of the page: GPUs in danger, flags and problems, each with what to do first. Pure.

The numbers of flags, problems and pods have limits, since tenants can cause any number of them. The page
names how many are left out; `/api/v1/shares` has all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from gpuagent.api_types import ApiPod, ApiVerdict, transitions_text
from gpuagent.evaluation.status import Status
from gpuagent.first_acts import FOR_FLAG, FOR_GPU_AT_RISK, FOR_OVERPROMISED_GPU, FirstAct
from gpuagent.server.page.page_links import PageLinks
from gpuagent.server.page.sections import Context, SectionOutline, anchor, groups_text
from gpuagent.table.gpu_rows import GpuState, ProblemText, plain
from gpuagent.table.node_table import NodeTable
from gpuagent.table.pod_rows import PodRow, why_command
from gpuagent.verdicts.flag_reasons import FlagReason
from service.text import counted
from service.units import duration, size

MAX_FLAGS: Final = 50
MAX_PROBLEMS: Final = 50
MAX_RISKS: Final = 16
"""Largest number of GPUs at risk at the top. Each has its own sentences in its section."""
MAX_PODS: Final = 4
"""Largest number of pods that a sentence about a GPU names on either side."""
_MAX_CANDIDATES: Final = 8
_LONGEST_TEXT: Final = 1000

_REASONS: Final = {reason.value: reason for reason in FlagReason}


class FirstStep(Struct, frozen=True, kw_only=True):
    """What to do first about an item."""

    step: str
    section: str
    """Section of docs/runbooks.md."""
    href: str
    """Address of the section, or the link to its text on the page."""


class PodLink(Struct, frozen=True, kw_only=True):
    """A pod in a sentence about a GPU, with its row."""

    pod: str
    target: str
    """Anchor of the pod's row, or of the GPU if the row is left out."""
    amount: str


class RiskItem(Struct, frozen=True, kw_only=True):
    """A GPU at risk, in the list at the top."""

    target: str
    """Anchor of the GPU."""
    gpu: str
    text: str
    """The memory at risk, and the free memory."""
    promised: str
    """How much more than its memory is promised; empty if it is not."""
    causes: tuple[PodLink, ...]
    """Pods above their share, by how much."""
    hidden_causes: int
    victims: tuple[PodLink, ...]
    """Pods with a share that they have not used, by how much."""
    hidden_victims: int
    advice: FirstStep


class FlagItem(Struct, frozen=True, kw_only=True):
    """A flag in the list at the top."""

    anchor: str
    target: str
    """Anchor of the pod's row, or of the GPU if the row is left out."""
    pod: str
    gpu: str
    """Empty if the message names it."""
    reason: str
    message: str
    """What the pod does and what helps, as in its Event."""
    since: str
    advice: FirstStep
    command: str
    """Shell command that tells the pod's story; empty without one."""
    evidence: tuple[tuple[str, str], ...]
    """Names and texts of the details."""


class ProblemItem(Struct, frozen=True, kw_only=True):
    """A problem in the list at the top."""

    reason: str
    text: str
    """Scope and detail."""
    target: str = ""
    """Anchor of the GPU that it concerns; empty without one."""
    advice: FirstStep | None = None
    """None if the text itself has the remedy."""


class PageTop(Struct, frozen=True, kw_only=True):
    """Everything above the sections of the GPUs, but the age of the figures."""

    risks: tuple[RiskItem, ...]
    flags: tuple[FlagItem, ...]
    hidden_flags: int
    problems: tuple[ProblemItem, ...]
    hidden_problems: int
    is_suspended: bool
    gpus: tuple[SectionOutline, ...]
    transitions: str
    """Numbers of flags raised, cleared and dropped since the agent started."""
    nothing: str
    """Why there are no figures; empty if there are."""

    @property
    def runbooks(self) -> tuple[str, ...]:
        """The sections of the runbooks that an item names, each once."""
        steps = [risk.advice for risk in self.risks] + [flag.advice for flag in self.flags]
        steps += [problem.advice for problem in self.problems if problem.advice is not None]
        return tuple(dict.fromkeys(step.section for step in steps))


def page_top(context: Context, gpus: Sequence[SectionOutline], links: PageLinks) -> PageTop:
    """Return the top of the page, given the outlines of its sections."""
    table, response = context.table, context.response
    labels = {gpu.scope: gpu.label for gpu in table.gpus}
    flags = sorted(
        ((verdict, pod) for pod in response.pods for verdict in pod.verdicts if verdict.flagged),
        key=lambda flag: -flag[0].over_seconds,
    )
    rows = frozenset[str]().union(*(section.rows for section in gpus))
    at_risk = [gpu for gpu in table.gpus if gpu.is_at_risk]
    at_risk.sort(key=lambda gpu: -(gpu.at_risk or 0))
    others = (gpu for gpu in table.gpus if not gpu.is_at_risk)
    problems = [*_overpromised(others, links), *(_problem(problem, links) for problem in table.problems)]
    problems += _node_notes(context.status)
    return PageTop(
        risks=tuple(_risk(gpu, table, rows, links) for gpu in at_risk[:MAX_RISKS]),
        flags=tuple(_flag(verdict, pod, labels, rows, context, links) for verdict, pod in flags[:MAX_FLAGS]),
        hidden_flags=max(len(flags) - MAX_FLAGS, 0),
        problems=tuple(problems[:MAX_PROBLEMS]),
        hidden_problems=max(len(problems) - MAX_PROBLEMS, 0),
        is_suspended=table.is_suspended,
        gpus=tuple(gpus),
        transitions=transitions_text(response) or "none",
        nothing="" if response.gpus else table.nothing,
    )


def flag_count(status: Status) -> int:
    """Return the number of flags."""
    return sum(verdict.is_flagged for verdict in status.verdicts.by_key.values())


def _risk(gpu: GpuState, table: NodeTable, anchors: frozenset[str], links: PageLinks) -> RiskItem:
    causes = table.causes(gpu.uuid)
    is_promised_too_much = gpu.is_over_promised and not causes
    victims = [row for row in table.rows if row.gpu_uuid == gpu.uuid and row.is_at_risk]
    victims.sort(key=lambda row: -row.risk.unused)
    return RiskItem(
        target=anchor("gpu", gpu.uuid),
        gpu=gpu.label,
        text=f"{gpu.risk_text}. Its pods may still take {size((gpu.at_risk or 0) + (gpu.free or 0))} of their"
        f" shares, and {size(gpu.free)} are free",
        promised=gpu.promised_text if gpu.is_over_promised else "",
        causes=tuple(_pod_link(row, anchors) for row in causes[:MAX_PODS]),
        hidden_causes=max(len(causes) - MAX_PODS, 0),
        victims=tuple(_pod_link(row, anchors) for row in victims[:MAX_PODS]),
        hidden_victims=max(len(victims) - MAX_PODS, 0),
        advice=_advice(FOR_OVERPROMISED_GPU if is_promised_too_much else FOR_GPU_AT_RISK, links),
    )


def _pod_link(row: PodRow, anchors: frozenset[str]) -> PodLink:
    target = anchor("pod", row.key[1], row.gpu_uuid)
    return PodLink(
        pod=f"{row.namespace}/{row.pod}",
        target=target if target in anchors else anchor("gpu", row.gpu_uuid),
        amount=row.risk.amount,
    )


def _advice(step: FirstAct, links: PageLinks) -> FirstStep:
    href = links.runbook(step.section) or f"#{anchor('runbook', step.section)}"
    return FirstStep(step=step.text, section=step.section, href=href)


def risk_count(status: Status) -> int:
    """Return the number of GPUs at risk."""
    return sum(bool(account.at_risk_bytes) for account in status.snapshot.gpus) if status.snapshot else 0


def _overpromised(gpus: Iterable[GpuState], links: PageLinks) -> Iterator[ProblemItem]:
    for gpu in gpus:
        if gpu.is_over_promised:
            yield ProblemItem(
                reason="overpromised",
                text=f" ({gpu.label}): {gpu.promised_text}",
                target=anchor("gpu", gpu.uuid),
                advice=_advice(FOR_OVERPROMISED_GPU, links),
            )


def _problem(problem: ProblemText, links: PageLinks) -> ProblemItem:
    step = problem.next_step
    return ProblemItem(
        reason=problem.reason,
        text=problem.text.removeprefix(problem.reason),
        advice=_advice(step, links) if step is not None else None,
    )


def _node_notes(status: Status) -> Iterator[ProblemItem]:
    """Yield sentences about GPUs that the agent has never seen."""
    snapshot = status.snapshot
    if snapshot is None or snapshot.labelled_gpus is None or any(a.gpu.mig for a in snapshot.gpus):
        return
    known, labelled = len(snapshot.gpus) + len(snapshot.lost_gpus), snapshot.labelled_gpus
    if known < labelled:
        yield ProblemItem(
            reason="",
            text=(
                f"The node's label nvidia.com/gpu.count says {labelled}, and the agent knows"
                f" {counted(known, 'GPU')}. The others have not responded since the agent started, so their"
                " indices and UUIDs are unknown."
            ),
        )


def _flag(
    verdict: ApiVerdict,
    pod: ApiPod,
    labels: dict[str, str],
    rows: frozenset[str],
    context: Context,
    links: PageLinks,
) -> FlagItem:
    reason = _REASONS[verdict.reason]
    row = anchor("pod", pod.uid, verdict.gpu_uuid)
    lasted, gpu = verdict.lasted_seconds, labels.get(verdict.gpu_uuid, "a GPU that is unknown")
    message = plain(verdict.message or reason.summary, _LONGEST_TEXT).replace(f" ({verdict.gpu_uuid})", "")
    return FlagItem(
        anchor=anchor("flag", pod.uid, verdict.gpu_uuid, reason),
        target=row if row in rows else anchor("gpu", verdict.gpu_uuid),
        pod=f"{plain(pod.namespace)}/{plain(pod.name)}",
        gpu="" if f" on {gpu}" in message else gpu,
        reason=reason,
        message=message,
        since=context.began(lasted) if lasted is not None else "not over in the last sample",
        advice=_advice(FOR_FLAG[reason], links),
        command=why_command(pod),
        evidence=tuple(_evidence(verdict, pod, reason)),
    )


def _evidence(verdict: ApiVerdict, pod: ApiPod, reason: FlagReason) -> Iterator[tuple[str, str]]:
    """Yield the details of a flag: where its figures come from, and when it ends."""
    yield "pod UID", plain(pod.uid)
    if pod.queue:
        yield "queue", plain(pod.queue)
    if pod.gpu_groups:
        yield "GPU group", groups_text(pod.gpu_groups)
    for candidate in pod.candidates[:_MAX_CANDIDATES]:
        amount = size(candidate.bytes_per_gpu.get(verdict.gpu_uuid))
        text = f"{plain(candidate.text)}, {amount}{'' if candidate.counts else ' (does not count)'}"
        yield f"share by {candidate.source}", text
    if pod.share_changed:
        yield "difference", plain(pod.share_changed, _LONGEST_TEXT)
    if reason is not FlagReason.SHARE_CHANGED:
        yield "counts towards the grace", duration(verdict.balance_seconds or 0.0)
    yield "ends with", reason.cleared_by
