"""Reads what decides about pods from a cluster: the webhook's settings, policies and LimitRanges.

Namespaces are read by name, so that a caller who may see a single namespace gets an answer.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple

from console.cluster.facts import FactReader, items
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
from service.text import MALFORMED, counted
from webhook.namespaces.file_policies import PoliciesError
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import PolicyMetadata
from webhook.settings.decision_options import KnownSettings
from webhook.settings.published_settings import PublishedSettings, SettingsError

_INSTEAD: Final = "explain --live -n NAMESPACE explains one namespace with your rights"
_OF_FILES: Final = "the webhook reads its policies from files, not from these namespaces"
_BY_POLICIES: Final = (
    "admission policies decide in this cluster: they give no warnings, and count some commands as those of"
    " several ranks"
)


class DecisionFacts(NamedTuple):
    """What decides about the pods of a cluster."""

    rules: DecisionSettings
    namespaces: Mapping[str, PolicyMetadata]  # those that exist and were read, managed or not
    defaults: Mapping[str, Sequence[LimitRange]]
    unread: Mapping[str, str]  # why namespaces could not be read, by name
    notes: Sequence[str]  # sentences about what is not known, and what the answer assumes instead


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
    that the manifests create need not exist. Raises PoliciesError for any other that does not exist or, but
    with `accepts_unread`, cannot be read.
    """
    reader, published = FactReader(client), KnownSettings()
    notes: list[str] = []
    try:
        published = await read_settings(client, settings_namespace)
    except SettingsError as error:
        notes += [f"the webhook's settings are not known: {error}; --settings-namespace names another"]
    is_of_files = isinstance(published, PublishedSettings) and published.policies == "files"
    notes += [_OF_FILES] if is_of_files else [_BY_POLICIES] if published.rules.by_admission_policies else []
    settings = options.completed_by(published)
    unread: dict[str, str] = {}
    try:
        namespaces = await _namespaces(client, names, created, unread)
    except REQUEST_ERRORS as error:
        raise PoliciesError(f"--policies cluster: {error}") from None
    if unread and not accepts_unread:
        raise PoliciesError(f"{next(iter(unread.values()))}: {VIEW_IS_ENOUGH}")
    defaults, limit_notes = await _defaults(reader, [""] if names is None else sorted(namespaces))
    rules = settings.rules
    if not is_of_files:
        with suppress(*REQUEST_ERRORS, *MALFORMED):
            rules = replace(rules, kubernetes=await client.release())
        rules = replace(rules, queues=await pod_queues(reader))
        if not rules.by_admission_policies:
            limits = chain.from_iterable(defaults.values())
            rules = replace(rules, gpu_limit_ranges=gpu_limit_ranges(limits))
    notes += [*settings.unknown(), *limit_notes]
    return DecisionFacts(rules, namespaces, defaults, unread, notes)


async def _namespaces(
    client: KubeClient, names: Collection[str] | None, created: Collection[str], unread: dict[str, str]
) -> dict[str, PolicyMetadata]:
    """Return the namespaces, all for None; `unread` gets why one could not be read."""
    namespaces: dict[str, PolicyMetadata] = {}
    for name in [None] if names is None else sorted(names):
        try:
            if name is not None:
                namespace_name(name)  # a text of a manifest must not change the path of a request
            namespaces |= await fetch_namespaces(client, name)
        except ApiError as error:
            if name is None and error.is_forbidden:
                raise PoliciesError(may_not_list(error, _INSTEAD)) from None
            if name is None or not (error.is_forbidden or error.is_not_found):
                raise
            if error.is_forbidden:
                unread[name] = may_not_get(name)
            elif name not in created:
                raise PoliciesError(does_not_exist(name)) from None
        except ValueError as error:
            raise PoliciesError(str(error)) from None
    return namespaces


async def _defaults(
    reader: FactReader, places: Collection[str]
) -> tuple[Mapping[str, list[LimitRange]], list[str]]:
    """Return the LimitRanges that count, by namespace, and notes about those that could not be read."""
    facts = {place: await reader.list(LIMIT_RANGES, place) for place in places}
    unread = [fact.line for fact in facts.values() if not fact.is_known]
    more = f", and {counted(len(unread) - 1, 'more namespace')}" if len(unread) > 1 else ""
    notes = [f"{unread[0]}{more}; LimitRanges are assumed to give no GPUs"] if unread else []
    defaults: defaultdict[str, list[LimitRange]] = defaultdict(list)
    for each in sorted(chain.from_iterable(map(items, facts.values())), key=lambda each: each.metadata.name):
        if any(each.container_defaults()) or each.needs(keys.GPU_RESOURCE):
            defaults[each.metadata.namespace].append(each)
    return defaults, notes
