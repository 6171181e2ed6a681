"""Texts of a manifest that name a namespace, before they become part of a request."""

from typing import Any

import pytest

from console.explain.cluster_facts import read_facts
from webhook.namespaces.file_policies import PoliciesError
from webhook.settings.decision_options import KnownSettings


class SettingsOnly:
    """A client that answers requests for the webhook's settings only."""

    async def get(self, path: str, **options: Any) -> bytes:
        assert path == "/api/v1/namespaces/kaishare/configmaps/kaishare-settings", options
        return b"{}"


@pytest.mark.parametrize(
    "name",
    ["team/services/web/proxy/shutdown", "../nodes", "team?watch=1", "team#x", "Team", "", "a" * 64, "a\nb"],
)
async def test_a_text_that_is_no_name_reaches_no_path(name: str) -> None:
    with pytest.raises(PoliciesError, match="is not the name of a namespace") as error:
        await read_facts(
            SettingsOnly(),  # type: ignore[arg-type]
            KnownSettings(),
            names=[name],
            settings_namespace="kaishare",
        )
    assert str(error.value).isprintable()
