"""The seam between the server and where its certificate comes from."""

import asyncio
import ssl
from typing import Protocol


class CertificateSource(Protocol):
    """A serving certificate that may change while it is served."""

    @property
    def issued(self) -> asyncio.Event:
        """Set once there is a certificate; the admission port is opened then."""

    @property
    def context(self) -> ssl.SSLContext:
        """What the admission port serves with, whatever comes later; only once `issued` is set."""

    @property
    def problem(self) -> str:
        """Why API servers cannot trust the certificate yet, in one line; empty when they can."""

    async def run(self) -> None:
        """Look for a new certificate until cancelled."""
