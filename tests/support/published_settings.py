"""The ConfigMap with a webhook's settings, as a running webhook publishes it."""

from typing import Any

from service.version import version
from webhook.policy.decision_settings import DecisionSettings
from webhook.settings.decision_options import NAMESPACE
from webhook.settings.published_settings import KEY, NAME, PublishedSettings, encode_settings


def settings_object(
    rules: DecisionSettings, *, namespace: str = NAMESPACE, release: str | None = None
) -> dict[str, Any]:
    """Return the ConfigMap of a webhook that reads its policies from the cluster."""
    published = PublishedSettings(version=release or version(), policies="cluster", rules=rules)
    return {
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": namespace},
        "data": {KEY: encode_settings(published)},
    }
