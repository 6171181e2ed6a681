"""The digest of a policy of the guard. Packaging writes it into an annotation of the policy."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

DIGEST: Final = "kaishare.dev/digest"
"""Annotation of a policy with its digest."""
PARAMETERS: Final = ("kaiNamespaces", "schedulerName", "preemptibleClasses", "longest")
"""Variables that an administrator may set: the digest does not cover them."""
_RULE: Final = ("apiGroups", "apiVersions", "operations", "resources")


def digest(spec: Mapping[str, Any]) -> str:
    """Return the digest of what a policy decides, in hexadecimal.

    Args:
        spec: the spec of a ValidatingAdmissionPolicy or MutatingAdmissionPolicy.
    """
    rules = (spec.get("matchConstraints") or {}).get("resourceRules") or ()
    validations = spec.get("validations") or ()
    decided = {
        "rules": [[rule.get(field) or [] for field in _RULE] for rule in rules],
        "conditions": _named(spec.get("matchConditions") or ()),
        "variables": [each for each in _named(spec.get("variables") or ()) if each[0] not in PARAMETERS],
        "validations": [
            [each.get("expression"), each.get("message") or "", each.get("messageExpression") or ""]
            for each in validations
        ],
        "mutations": [
            (each.get("jsonPatch") or {}).get("expression") for each in spec.get("mutations") or ()
        ],
    }
    text = json.dumps(decided, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _named(items: Any) -> list[list[Any]]:
    return [[each.get("name"), each.get("expression")] for each in items]
