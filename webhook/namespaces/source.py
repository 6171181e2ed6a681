"""The seam between policies and where they come from."""

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from webhook.policy.labels import Mode, NamespacePolicy

ANY_MODE: Final = frozenset(Mode)


class PolicyUnknown(Exception):
    """Whether a namespace is managed, and how, cannot be had now; the message is one line that says why."""


class PolicySource(Protocol):
    """Namespace name to policy. Reading is cheap, and never waits while the answer is known."""

    async def find(self, namespace: str, *, modes: Collection[Mode] = ANY_MODE) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed.

        Args:
            namespace: its name.
            modes: those whose pods the API server sends to who asks. A source that can be behind asks again
                before it says that there is no policy, or one of another mode.

        Raises:
            PolicyUnknown: it cannot be had now.
        """

    def all(self) -> Mapping[str, NamespacePolicy] | None:
        """Return every managed namespace's policy as known now; for any thread. None: none yet."""

    @property
    def ready(self) -> bool:
        """Whether the source knows enough, and what it knows is recent enough, to serve."""

    async def run(self) -> None:
        """Keep the policies up to date until cancelled."""
