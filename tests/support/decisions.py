"""Policies of namespaces, and the webhook's decision about a pod."""

import json
from collections.abc import Mapping
from typing import Any

from webhook.policy.decide import Decision
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import mutate


def decide(policy: NamespacePolicy, document: Any, rules: DecisionSettings) -> Decision:
    return mutate(policy, json.dumps(document).encode(), rules).decision


def policy_of(
    labels: Mapping[str, str], annotations: Mapping[str, str] | None = None, *, namespace: str = "team-a"
) -> NamespacePolicy:
    """Return the policy of a namespace that is managed."""
    policy = NamespacePolicy.from_labels(namespace, labels, annotations or {})
    assert policy is not None
    return policy


def ours(**labels: str) -> dict[str, str]:
    """Return labels of kaishare: `gpu_fraction="0.5"` stands for kaishare.dev/gpu-fraction."""
    return {f"kaishare.dev/{key.replace('_', '-')}": value for key, value in labels.items()}
