"""Texts of a manifest that name a namespace, before they become part of a request."""

import pytest

from console.explain.cluster_facts import read_facts
from kube.client import KubeClient
from tests.support.api_server import ApiServer, says
from webhook.namespaces.file_policies import PoliciesError
from webhook.settings.decision_options import KnownSettings

SETTINGS = "/api/v1/namespaces/kaishare/configmaps/kaishare-settings"
NO_NAMES = (
    "team/services/web/proxy/shutdown", "../nodes", "team?watch=1", "team#x", "Team", "", "a" * 64, "a\nb",
)  # fmt: skip


@pytest.mark.parametrize("name", NO_NAMES)
async def test_a_text_that_is_no_name_is_in_no_path(server: ApiServer, client: KubeClient, name: str) -> None:
    server.always = says("{}")
    with pytest.raises(PoliciesError, match="is not the name of a namespace") as error:
        await read_facts(client, KnownSettings(), names=[name], settings_namespace="kaishare")
    assert str(error.value).isprintable()
    assert {request.path for request in server.requests} <= {SETTINGS}
