"""The webhook's decision about a pod."""

import json
from typing import Any

from webhook.policy.decide import Decision
from webhook.policy.decision_settings import DecisionSettings
from webhook.policy.labels import NamespacePolicy
from webhook.policy.patch import mutate


def decide(policy: NamespacePolicy, document: Any, rules: DecisionSettings) -> Decision:
    return mutate(policy, json.dumps(document).encode(), rules).decision
