from pathlib import Path

import pytest

from tests.gpuagent.doctor.machines import Machine
from tests.kube.fixtures import account, authority, client, served, server

__all__ = ["account", "authority", "client", "served", "server"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)
