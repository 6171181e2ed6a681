"""Reads what decides about pods from a cluster: the webhook's settings, policies and LimitRanges.

Namespaces are read by name, so that a caller who may see a single namespace gets an answer.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from console.cluster.facts import FactReader
from console.cluster.webhook import (
    VIEW_IS_ENOUGH,
    does_not_exist,
    fetch_namespaces,
    may_not_get,
    may_not_list,
    pod_queues,
    read_settings,
)
from kai import keys
from kube.answers import REQUEST_ERRORS, ApiError
from kube.client import KubeClient
from kube.kinds import LIMIT_RANGES, LimitRange, gpu_limit_ranges
from service.command import namespace_name
from service.text import MALFORMED, listed, one_line
from webhook.namespaces.file_policies import PoliciesError
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import PolicyMetadata
from webhook.settings.decision_options import KnownSettings
from webhook.settings.published_settings import PublishedSettings, SettingsError

MOST_NAMED: Final = 100
"""Number of namespaces that are read by name; more are listed in one request."""
_INSTEAD: Final = "explain --live -n NAMESPACE explains one namespace with your rights"
_BY_POLICIES: Final = (
    "admission policies decide in this cluster: they give no warnings, and count some commands as those of"
    " several ranks"
)
_MAY_NOT_LIST: Final = "you may not list them"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFacts:
    """What decides about the pods of a cluster."""

    rules: DecisionSettings
    namespaces: Mapping[str, PolicyMetadata]
    """Labels and annotations of the namespaces that exist and were read, managed or not."""
    defaults: Mapping[str, Sequence[LimitRange]] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why a namespace could not be read, by namespace; empty unless missing rights are accepted."""
    notes: Sequence[str] = ()
    """Sentences about what is not known, and what the answer assumes instead."""


async def read_facts(
    client: KubeClient,
    options: KnownSettings,
    *,
    names: Collection[str] | None,
    created: Collection[str] = (),
    settings_namespace: str,
    accepts_unread: bool = False,
) -> DecisionFacts:
    """Read what decides about pods, with the caller's rights.

    The settings of the command line take precedence. `names` are the namespaces to read, None for all; those
    that the manifests create need not exist. With `accepts_unread`, namespaces that the caller may not get
    are no error.

    Raises:
        PoliciesError: a namespace cannot be read, or does not exist.
    """
    published, notes = await _published(client, settings_namespace)
    settings = options.completed_by(published)
    try:
        namespaces, unread = await _namespaces(client, names, created)
    except REQUEST_ERRORS as error:
        raise PoliciesError(f"--policies cluster: {error}") from None
    if unread and not accepts_unread:
        raise PoliciesError(f"{next(iter(unread.values()))}: {VIEW_IS_ENOUGH}")
    defaults, limit_notes = await _defaults(client, None if names is None else namespaces.keys())
    rules = settings.rules
    if not isinstance(published, PublishedSettings) or published.policies == "cluster":
        with suppress(*REQUEST_ERRORS, *MALFORMED):
            rules = replace(rules, kubernetes=await client.release())
        rules = replace(rules, queues=await pod_queues(FactReader(client)))
        if not rules.by_admission_policies:
            limits = chain.from_iterable(defaults.values())
            rules = replace(rules, gpu_limit_ranges=gpu_limit_ranges(limits))
    return DecisionFacts(
        rules=rules,
        namespaces=namespaces,
        defaults=defaults,
        unread=unread,
        notes=(*notes, *settings.unknown(), *limit_notes),
    )


async def _published(client: KubeClient, namespace: str) -> tuple[KnownSettings, list[str]]:
    try:
        published = await read_settings(client, namespace)
    except SettingsError as error:
        note = f"the webhook's settings are not known: {error}; --settings-namespace names another"
        return KnownSettings(), [note]
    if published.policies == "files":
        return published, ["the webhook reads its policies from files, not from these namespaces"]
    return published, [_BY_POLICIES] if published.rules.by_admission_policies else []


async def _namespaces(
    client: KubeClient, names: Collection[str] | None, created: Collection[str]
) -> tuple[dict[str, PolicyMetadata], dict[str, str]]:
    """Return the namespaces, and why others could not be read.

    Many names are read by one list; a caller without the right to list gets them one by one.
    """
    if names is None or len(names) > MOST_NAMED:
        try:
            namespaces = await fetch_namespaces(client)
        except ApiError as error:
            if not error.is_forbidden:
                raise
            if names is None:
                raise PoliciesError(may_not_list(error, _INSTEAD)) from None
        else:
            for name in sorted(set(names or ()) - namespaces.keys() - set(created)):
                raise PoliciesError(does_not_exist(name))
            return namespaces, {}
    namespaces, unread = {}, {}
    for name in sorted(names):
        try:
            namespace_name(name)  # a text of a manifest must not change the path of a request
        except ValueError as error:
            raise PoliciesError(str(error)) from None
        try:
            namespaces |= await fetch_namespaces(client, name)
        except ApiError as error:
            if error.is_forbidden:
                unread[name] = may_not_get(name)
            elif not error.is_not_found:
                raise
            elif name not in created:
                raise PoliciesError(does_not_exist(name)) from None
    return namespaces, unread


async def _defaults(
    client: KubeClient, names: Collection[str] | None
) -> tuple[Mapping[str, list[LimitRange]], list[str]]:
    """Return the defaults of LimitRanges by namespace, and notes about those that could not be read.

    All namespaces (None) are read in one request, and many names as in `_namespaces`.
    """
    in_all = names is None or len(names) > MOST_NAMED
    defaults, unread = await _limit_ranges(client, [""] if in_all else sorted(names or ()))
    if in_all and names and _MAY_NOT_LIST in unread:
        defaults, unread = await _limit_ranges(client, sorted(names))
    notes = []
    for reason, places in unread.items():
        of = "" if places == [""] else f" of namespace{'s' if len(places) > 1 else ''} {listed(places)}"
        notes.append(f"the LimitRanges{of} are not known: {reason}; assumed none")
    return defaults, notes


async def _limit_ranges(
    client: KubeClient, namespaces: Iterable[str]
) -> tuple[Mapping[str, list[LimitRange]], Mapping[str, list[str]]]:
    """Return the defaults of LimitRanges by namespace, and the namespaces that were not read by reason."""
    entries: list[LimitRange] = []
    unread: defaultdict[str, list[str]] = defaultdict(list)
    for namespace in namespaces:
        try:
            async with client.list_objects(LIMIT_RANGES.path(namespace)) as limit_ranges:
                entries += [LIMIT_RANGES.decode(item) async for item in limit_ranges]
        except (*REQUEST_ERRORS, *MALFORMED) as error:
            is_forbidden = isinstance(error, ApiError) and error.is_forbidden
            unread[_MAY_NOT_LIST if is_forbidden else one_line(str(error))].append(namespace)
    defaults: defaultdict[str, list[LimitRange]] = defaultdict(list)
    for each in sorted(entries, key=lambda each: each.metadata.name):
        if any(each.container_defaults()) or each.needs(keys.GPU_RESOURCE):
            defaults[each.metadata.namespace].append(each)
    return defaults, unread
