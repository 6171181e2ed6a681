"""A loopback API server with real TLS, and a service account that is let in."""

from tests.kube.fixtures import account, authority, client, served, server

__all__ = ["account", "authority", "client", "served", "server"]
