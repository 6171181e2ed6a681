"""The seam between the admission port and the sources of its certificate."""

import asyncio
import ssl
from typing import Protocol


class CertificateError(ValueError):
    """A serving certificate cannot be used or created; the message is one line."""


class CertificateSource(Protocol):
    """A source of serving certificates that may change at any time."""

    @property
    def issued(self) -> asyncio.Event:
        """Event that is set as soon as there is a certificate; the admission port opens then."""

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context of the admission port, also for later certificates; valid once `issued` is set."""

    @property
    def problem(self) -> str:
        """Why API servers cannot trust the certificate yet, in one line; empty when they can."""

    async def run(self) -> None:
        """Keep the certificate up to date until cancelled."""
