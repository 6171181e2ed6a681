"""The page at `/`: every GPU, with the memory of each pod compared with its share.

The page is complete without JavaScript. With JavaScript it reloads itself and shows its age. All text from
pods is escaped. There is no inline style or script, and `HEADERS` forbids both.
"""

from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Final

from gpuagent.ledger.snapshot import GpuAccount, Holding
from gpuagent.problems import SUSPENDS_NOTHING
from gpuagent.shares.pod_shares import PodShare
from gpuagent.status import Status
from gpuagent.verdicts.judge import Verdict
from service.text import printable
from service.units import duration, size, time_over

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
STATIC: Final = Path(__file__).parent / "static"
"""Folder of `page.css` and `page.js`."""

_LONGEST_TEXT: Final = 4000
"""Maximum of characters of one text from outside."""

_WIDTH = 1000  # of every drawing, in its own units: a whole GPU

_HATCH = (
    '<svg class="defs" aria-hidden="true"><pattern id="hatch" width="8" height="8"'
    ' patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="ground" width="8" height="8"/>'
    '<rect class="hatch" width="4" height="8"/></pattern></svg>'
)
"""Hatching marks the part beyond a share, so that it is visible without colours."""


def page(status: Status, *, node: str, is_simulated: bool, now: float, interval: float) -> str:
    """Render the page.

    Args:
        status: the current status.
        node: name of the node.
        is_simulated: whether the figures are synthetic.
        now: Unix seconds.
        interval: seconds between samples, and between reloads of the page.
    """
    flagged = sum(verdict.is_flagged for verdict in status.verdicts.by_key.values())
    title = f"{node}: {_count(flagged, 'flag')}" if status.snapshot else f"{node}: no figures"
    sampled_at = status.good_wall_time
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_safe(title)} – kaishare</title>",
            '<link rel="icon" href="data:,"><link rel="stylesheet" href="page.css">',
            '<script src="page.js" defer></script></head><body>',
            _HATCH,
            f'<main data-interval="{max(interval, 1.0):g}" data-age="{_age(sampled_at, now):.1f}">',
            *_head(status, node=node, is_simulated=is_simulated, now=now),
            *_problems(status),
            *_body(status),
            "</main></body></html>\n",
        )
    )


def _head(status: Status, *, node: str, is_simulated: bool, now: float) -> Iterator[str]:
    yield f"<header><h1>{_safe(node)}</h1>"
    if is_simulated:
        yield '<p class="simulated">simulated: these figures are synthetic</p>'
    sampled_at = status.good_wall_time
    text = "no sample yet" if sampled_at is None else f"as of {duration(_age(sampled_at, now))} ago"
    yield f'<p id="age" role="status">{text}</p>'
    flagged = sum(verdict.is_flagged for verdict in status.verdicts.by_key.values())
    if status.snapshot is not None:
        yield f'<p class="count">{_count(flagged, "flag") if flagged else "no flags"}</p>'
    yield "</header>"


def _problems(status: Status) -> Iterator[str]:
    if not status.problems:
        return
    names = {account.gpu.uuid: f"GPU {account.gpu.index}" for account in _accounts(status)}
    yield '<section class="problems">'
    for title, is_harmless in (("Current problems", False), ("Reservation pods", True)):
        shown_problems = [
            problem for problem in status.problems if (problem.cause in SUSPENDS_NOTHING) is is_harmless
        ]
        if not shown_problems:
            continue
        yield f"<h2>{title}</h2><ul>"
        for problem in shown_problems:
            scope = names.get(problem.gpu_uuid) or problem.gpu_uuid or "the node"
            detail = f": {problem.detail}" if problem.detail else ""
            yield f"<li><b>{_safe(problem.cause)}</b> ({_safe(scope)}){_safe(detail)}</li>"
        yield "</ul>"
    if status.attribution_ok is False:
        yield "<p>Verdicts are suspended until these problems are resolved.</p>"
    yield "</section>"


def _accounts(status: Status) -> tuple[GpuAccount, ...]:
    return status.snapshot.gpus if status.snapshot else ()


def _body(status: Status) -> Iterator[str]:
    snapshot = status.snapshot
    if snapshot is None:
        yield '<p class="nothing">No data.</p>'
        return
    flags: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in status.verdicts.by_key.values():
        if verdict.is_flagged:
            flags.setdefault((verdict.key.uid, verdict.key.gpu_uuid), []).append(verdict)
    shown_uuids = {account.gpu.uuid for account in snapshot.gpus}
    for account in snapshot.gpus:
        own = {account.gpu.uuid, *(instance.uuid for instance in account.gpu.instances)}
        shown_uuids |= own
        rows = [holding for holding in snapshot.holdings if holding.gpu_uuid in own]
        yield from _gpu(account, rows, flags, snapshot.taken_at)
    lost = [
        pod_share for pod_share in snapshot.pod_shares if not shown_uuids.intersection(pod_share.gpu_uuids)
    ]
    lost = [pod_share for pod_share in lost if pod_share.has_share and not pod_share.pod.is_finished]
    if lost:
        yield '<section class="gpu"><h2>Pods whose GPU is unknown</h2><ul class="pods">'
        for pod_share in lost:
            yield f'<li class="pod">{_names(pod_share)}'
            yield from _flags(flags.get((pod_share.pod.uid, ""), ()), snapshot.taken_at)
            yield "</li>"
        yield "</ul></section>"
    if not snapshot.gpus:
        yield '<p class="nothing">No GPU on this node responds.</p>'


def _gpu(
    account: GpuAccount,
    rows: list[Holding],
    flags: dict[tuple[str, str], list[Verdict]],
    taken_at: float,
) -> Iterator[str]:
    gpu = account.gpu
    yield f'<section class="gpu"><h2>GPU {gpu.index} <small>{_safe(gpu.model)}</small></h2>'
    yield f'<p class="uuid">{_safe(gpu.uuid)}{" · MIG: reported, not evaluated" if gpu.mig else ""}</p>'
    yield _device_bar(account, rows)
    yield '<dl class="sums">'
    for name, amount, kind in (
        ("used", gpu.used_bytes, ""),
        ("of", gpu.total_bytes, ""),
        ("promised", account.promised_bytes, ""),
        ("host processes", account.host_bytes, "host"),
        ("unattributed", account.unattributed_bytes, "unattributed"),
    ):
        key = f'<svg class="key" aria-hidden="true"><rect class="{kind}" width="12" height="12"/></svg>'
        yield f"<div>{key if kind else ''}<dt>{name}</dt><dd>{size(amount)}</dd></div>"
    yield "</dl>"
    if gpu.memory_unknown:
        yield f'<p class="nothing">Its memory is unknown: {_safe(gpu.memory_unknown)}.</p>'
    if not rows:
        yield '<p class="nothing">No pod uses this GPU.</p></section>'
        return
    scale = max(_extent(holding) for holding in rows)
    yield '<ul class="pods">'
    for holding in sorted(rows, key=lambda row: (-_excess(row), row.pod_share.pod.key)):
        pod_flags = flags.get((holding.pod_share.pod.uid, holding.gpu_uuid), [])
        yield f'<li class="pod{" flagged" if pod_flags else ""}">{_names(holding.pod_share)}'
        yield _pod_bar(holding, scale)
        yield f'<p class="figures">{_figures(holding)}</p>'
        yield from _flags(pod_flags, taken_at)
        yield "</li>"
    yield "</ul></section>"


def _names(pod_share: PodShare) -> str:
    pod, tenant = pod_share.pod, pod_share.tenant
    lines = [f"<h3>{_safe(pod.name)}</h3>", f'<p class="where">{_safe(pod.namespace)}']
    if pod_share.queue:
        lines.append(f" · queue {_safe(pod_share.queue)}")
    if pod_share.groups:
        lines.append(f" · group {_safe(', '.join(group[:8] for group in pod_share.groups))}")
    if tenant is not None:
        lines.append(
            f"<br>in vCluster {_safe(tenant.vcluster)}: {_safe(tenant.namespace)} / {_safe(tenant.pod)}"
        )
    return "".join((*lines, "</p>"))


def _figures(holding: Holding) -> str:
    uuid, pod_share = holding.gpu_uuid, holding.pod_share
    share, limit = pod_share.shares.get(uuid), pod_share.limits.get(uuid)
    text = f"<b>{size(holding.used_bytes)}</b>"
    if share is not None:
        text += f" of {size(share.bytes)} <small>({_safe(share.source)})</small>"
    elif pod_share.pod.has_unsized_gpus:
        text += " <small>(by a ResourceClaim or a resource without a known size)</small>"
    else:
        text += " <small>(no share on this GPU)</small>"
    if limit is not None:
        text += f", limit {size(limit.bytes)} <small>({_safe(limit.source)})</small>"
    return f"{text} · {_count(holding.processes, 'process', 'processes')}"


def _flags(pod_flags: Iterable[Verdict], taken_at: float) -> Iterator[str]:
    for verdict in pod_flags:
        since = f" for {time_over(verdict.lasted(taken_at), verdict.balance)}" if verdict.is_over else ""
        reason = verdict.key.reason
        yield f'<p class="flag"><b>{reason}</b> {reason.summary}{since}</p>'


def _device_bar(account: GpuAccount, rows: list[Holding]) -> str:
    """Draw one stacked bar: pods, host processes, unattributed memory, and memory reserved by the driver."""
    gpu = account.gpu
    parts = [(f"pod p{index % 6}", row.pod_share.pod.name, row.used_bytes) for index, row in enumerate(rows)]
    parts.append(("host", "host processes", account.host_bytes))
    parts.append(("unattributed", "unattributed", account.unattributed_bytes))
    known = sum(max(amount or 0, 0) for _, _, amount in parts)
    if gpu.used_bytes is not None:
        parts.append(("unknown", "used, owner unknown", gpu.used_bytes - known))
    parts.append(("reserved", "reserved by the driver", gpu.reserved_bytes))
    shapes, at = [], 0.0
    for kind, name, amount in parts:
        if not amount or amount < 0 or not gpu.total_bytes:
            continue
        width = min(amount / gpu.total_bytes * _WIDTH, _WIDTH - at)
        title = f"<title>{_safe(name)}: {size(amount)}</title>"
        shapes.append(f'<rect class="{kind}" x="{at:.2f}" width="{width:.2f}" height="20">{title}</rect>')
        at += width
    text = f"{size(gpu.used_bytes)} of {size(gpu.total_bytes)} used"
    return _drawing("device", text, "".join(shapes))


def _extent(holding: Holding) -> int:
    """Return the bytes that a pod's bar must have room for."""
    share = holding.pod_share.shares.get(holding.gpu_uuid)
    return max(holding.used_bytes or 0, share.bytes if share else 0)


def _pod_bar(holding: Holding, scale: int) -> str:
    """Draw a pod's memory as a filled bar in the frame of its share; the part beyond is hatched.

    All bars of a GPU have one scale, whose end is the largest share or usage on it.
    """
    share = holding.pod_share.shares.get(holding.gpu_uuid)
    allowed = None if share is None else share.bytes
    used, shapes = holding.used_bytes, []

    def units(amount: int) -> float:
        return amount / scale * _WIDTH if scale else 0.0

    if used is not None:
        within = used if allowed is None else min(used, allowed)
        shapes.append(f'<rect class="within" width="{units(within):.2f}" height="20"/>')
        if allowed is not None and used > allowed:
            start = units(allowed)
            shapes.append(
                f'<rect fill="url(#hatch)" x="{start:.2f}" width="{units(used) - start:.2f}" height="20"/>'
            )
    if allowed is not None:
        width = max(units(allowed) - 1, 1)
        shapes.append(f'<rect class="share" x="0.5" y="0.5" width="{width:.2f}" height="19"/>')
    text = f"uses {size(used)}" + ("" if allowed is None else f" of its share of {size(allowed)}")
    return _drawing("held", text, "".join(shapes))


def _drawing(kind: str, text: str, shapes: str) -> str:
    return (
        f'<svg class="{kind}" role="img" aria-label="{_safe(text)}" viewBox="0 0 {_WIDTH} 20"'
        f' preserveAspectRatio="none"><rect class="empty" width="{_WIDTH}" height="20"/>{shapes}</svg>'
    )


def _excess(holding: Holding) -> int:
    """Return the bytes beyond the share; all bytes of a pod without a share."""
    share = holding.pod_share.shares.get(holding.gpu_uuid)
    return (holding.used_bytes or 0) - (share.bytes if share else 0)


def _age(sampled_at: float | None, now: float) -> float:
    return 0.0 if sampled_at is None else max(now - sampled_at, 0.0)


def _count(number: int, singular: str, more: str = "") -> str:
    return f"{number} {singular}" if number == 1 else f"{number} {more or singular + 's'}"


def _safe(text: object) -> str:
    """Return text from outside in printable characters, escaped for HTML."""
    return escape(printable(str(text), _LONGEST_TEXT))
