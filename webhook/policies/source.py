"""The seam between policies and where they come from."""

from collections.abc import Mapping
from typing import Protocol

from webhook.policy import NamespacePolicy


class PolicySource(Protocol):
    """Namespace name to policy. Reading is cheap, and never waits while the answer is known."""

    async def find(self, namespace: str) -> NamespacePolicy | None:
        """Return the namespace's policy, or None if it is not managed."""

    def all(self) -> Mapping[str, NamespacePolicy]:
        """Return every managed namespace's policy as known now."""

    @property
    def ready(self) -> bool:
        """Whether the source knows enough to serve."""

    async def run(self) -> None:
        """Keep the policies up to date until cancelled."""
