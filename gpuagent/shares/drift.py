"""Share drift: differences between a pod's annotations and KAI's records (`share-changed`). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuagent.shares.allocations import Allocation
from gpuagent.shares.cards import Cards
from gpuagent.shares.requests import ShareRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A pod's declaration of its share at one time."""

    ask: ShareRequest
    groups: tuple[str, ...]


def share_drift(now: Declared, first: Declared, grants: Allocation, cards: Cards) -> tuple[str, ...]:
    """Return all differences.

    The annotations are compared with KAI's record, rounded to two decimals as KAI rounds them. Without a
    record they are compared with those first seen. A group label that differs from the BindRequest is no
    drift: KAI changes it after a retried reservation (seen live on v0.9.8, v0.13.4 and v0.17.0).
    """
    bound, configured = grants.bound, grants.configured
    found = []
    if bound is not None:
        found.append(_against(bound.portion, "its BindRequest", now.ask, bound.count, cards))
    elif configured is not None and configured.portion:
        found.append(_against(configured.portion, "KAI's ConfigMap", now.ask, 0, cards))
    elif (now.ask.share, now.ask.requests) != (first.ask.share, first.ask.requests):
        found.append(f"the pod declares {_said(now.ask)}; it declared {_said(first.ask)} when first seen")
    if now.ask.limits != first.ask.limits:
        found.append("the memory limits of its containers have changed since the pod was first seen")
    if now.ask.devices != first.ask.devices:
        found.append("the GPUs of its containers have changed since the pod was first seen")
    if bound is None:
        found.append(_of_groups(now.groups, first))
    return tuple(filter(None, found))


def _against(portion: str, whose: str, ask: ShareRequest, count: int, cards: Cards) -> str:
    if not portion:
        return f"the pod declares {_said(ask)}, {whose} allocates no share" if ask.has_share else ""
    if not ask.has_share:
        return f"the pod declares {_said(ask)}, {whose} allocates {portion}"
    own = ask.portions(cards.all())
    if own and all(float(each) != float(portion) for each in own):
        return f"the pod declares {_said(ask)}, {whose} allocates {portion}"
    if count and ask.share is not None and ask.share.devices != count:
        return f"the pod declares {_said(ask)}, {whose} allocates {count} GPU(s)"
    return ""


def _of_groups(groups: Sequence[str], first: Declared) -> str:
    if tuple(groups) != first.groups:
        return "its GPU group labels have changed since the pod was first seen"
    share = first.ask.share
    if share is not None and len(groups) > share.devices:
        return f"the pod has {len(groups)} GPU groups for a share of {share.devices} GPU(s)"
    return ""


def _said(ask: ShareRequest) -> str:
    return ask.text or "no share"
