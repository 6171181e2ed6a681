"""One cluster with KAI's programs for all tests of this folder; each module takes its nodes away at its end."""

from collections.abc import Iterator

import pytest

from tests.support.kai_programs import KaiCluster, kai_cluster


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KaiCluster]:
    with kai_cluster(tmp_path_factory.mktemp("kai")) as running:
        yield running
