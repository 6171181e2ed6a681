"""Reads the labels of Namespaces with the caller's rights."""

from typing import Final

from console.advise.policies import KnownNamespace
from console.policies.reading import WebhookScope
from kai.keys import QUEUE_LABEL
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from webhook.namespaces.decode import LIST, ONE, PATH, NamespaceError, decode_metadata
from webhook.policy.labels import Mode, NamespacePolicy, PolicyMetadata

NOT_READ: Final = (
    "rows are by the share that pods had, and no command is given, because labels and caps are not known."
)
MAY_NOT_READ: Final = f"You may not read the Namespaces: {NOT_READ}"


async def read_namespaces(
    client: KubeClient, namespace: str | None, scope: WebhookScope
) -> dict[str, KnownNamespace] | None:
    """Read the labels of all namespaces, or of one; return None if the caller may not.

    Args:
        client: for the API server, with the caller's rights.
        namespace: the only namespace to read; None for all.
        scope: the namespaces whose labels change pods.

    Raises:
        ApiError, Unreachable, kube.access.AccessError: the namespaces cannot be read for another reason.
    """
    known: dict[str, KnownNamespace] = {}
    try:
        if namespace is not None:
            _add(known, await client.get(f"{PATH}/{namespace}", accept=ONE), scope)
            return known
        async with client.list_objects(PATH, accept=LIST) as items:
            async for item in items:
                _add(known, item, scope)
    except ApiError as error:
        if error.is_forbidden:
            return None
        if error.is_not_found:
            return known
        raise
    return known


def _add(known: dict[str, KnownNamespace], item: bytes, scope: WebhookScope) -> None:
    try:
        name, metadata = decode_metadata(item)
    except NamespaceError as error:
        raise Unreachable(f"GET {PATH}: {error}") from None
    known[name] = known_namespace(name, metadata, scope)


def known_namespace(name: str, metadata: PolicyMetadata, scope: WebhookScope) -> KnownNamespace:
    """Return a namespace with its policy, and why it has no effect."""
    policy = metadata.policy(name, scope.default_mode)
    return KnownNamespace(metadata, policy, _without_effect(name, policy, scope))


def _without_effect(name: str, policy: NamespacePolicy | None, scope: WebhookScope) -> str:
    """Return why the labels of a namespace change no pod; empty if they do."""
    if policy is None:
        return "the namespace is not managed"
    if not scope.reads_labels:
        return "the webhook reads its policies from files: labels of the namespace change no pod"
    if name in scope.excluded:
        return "the webhook excludes the namespace: its labels change no pod"
    if policy.queue is None:
        return f"the label {QUEUE_LABEL} of the namespace is invalid: its labels change no pod"
    if policy.mode in (Mode.OFF, Mode.OBSERVE):
        default = ", the webhook's default" if policy.has_default_mode else ""
        return f"the mode of the namespace is {policy.mode}{default}: its labels change no pod"
    return ""
