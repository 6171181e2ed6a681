"""Reads the labels of Namespaces with the caller's rights."""

from typing import Final

from console.advise.policies import KnownNamespace
from console.policies.reading import WebhookScope
from kai.keys import QUEUE_LABEL
from kube.client import KubeClient
from kube.errors import ApiError
from webhook.namespaces.reading import fetch_namespaces
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
    try:
        namespaces = await fetch_namespaces(client, namespace)
    except ApiError as error:
        if error.is_forbidden:
            return None
        if error.is_not_found:
            return {}
        raise
    return {name: known_namespace(name, metadata, scope) for name, metadata in namespaces.items()}


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
