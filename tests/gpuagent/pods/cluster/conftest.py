"""A loopback API server with real TLS, and a service account that is let in."""

import pytest


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gather what comes together for a shorter time."""
    monkeypatch.setattr("gpuagent.pods.cluster_pods._GATHER_SECONDS", 0.02)
