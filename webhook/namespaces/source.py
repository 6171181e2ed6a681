"""The interface of policy sources."""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from webhook.policy.labels import Mode, NamespacePolicy

ANY_MODE: Final = frozenset(Mode)


class PolicyUnknown(Exception):
    """The policy of a namespace is not available now; the message is one line with the reason."""


class PolicySource(Protocol):
    """Provides policies by namespace name. A lookup does not wait while the policy is known."""

    async def find(
        self, namespace: str, *, modes: Collection[Mode] = ANY_MODE, peer: str = ""
    ) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed.

        Args:
            namespace: the namespace's name.
            modes: the modes whose reviews the API server sends to the caller, by the namespace's label. A
                source that may be behind checks again before it returns None or a policy whose
                `selected_mode` is another one.
            peer: the sender of the review, whose look-ups are limited.

        Raises:
            PolicyUnknown: the policy is not available now.
        """

    def all(self) -> Mapping[str, NamespacePolicy] | None:
        """Return the known policies by namespace; None if they are not known yet. Thread-safe."""

    @property
    def ready(self) -> bool:
        """Whether the policies are complete and recent enough to serve."""

    async def run(self) -> None:
        """Keep the policies up to date until cancelled."""
