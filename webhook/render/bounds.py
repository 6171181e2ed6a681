"""The size of an object up to which an admission policy reads it.

An expression over a list or a map takes the API server quadratic time (on Kubernetes 1.36.3 26 s for 70,000
labels). A pod beyond these bounds is left unchanged, and the edit of a namespace beyond them is not judged,
without any work.
"""

from typing import Final

from kai.cel import literal
from kai.own_labels import REASON

MOST_KEYS: Final = 1000
"""Labels, annotations, or tolerations of a pod."""
MOST_OF_NAMESPACE: Final = 2500
"""Labels, or annotations, of a namespace."""
_WRITTEN: Final = 10
"""More than what the policy and a LimitRange add to them before a reinvocation."""
MOST_SORTED: Final = 500
"""Sizes of a namespace that are sorted to find the first ones; 800 would exceed the API server's budget."""
MOST_OWNERS: Final = 100
MOST_CONTAINERS: Final = 1000
MOST_ENTRIES: Final = 5000
"""Limits, requests, environment variables and words of the commands of a pod's containers together."""

_LISTS: Final = "[object.spec.containers, object.spec.?initContainers.orValue([])]"
IS_SMALL_POD: Final = (
    "[size(object.metadata.?labels.orValue({})), size(object.metadata.?annotations.orValue({})),"
    " size(object.spec.?tolerations.orValue([]))].all(entries, entries <="
    f" (object.metadata.?annotations[?{literal(REASON)}].hasValue() ? {MOST_KEYS + _WRITTEN} : {MOST_KEYS}))"
    f" && size(object.metadata.?ownerReferences.orValue([])) <= {MOST_OWNERS}"
    f" && {_LISTS}.all(list, size(list) <= {MOST_CONTAINERS} && list.map(c,"
    " size(c.?resources.?limits.orValue({})) + size(c.?resources.?requests.orValue({}))"
    " + size(c.?env.orValue([])) + size(c.?command.orValue([])) + size(c.?args.orValue([]))"
    f").sum() <= {MOST_ENTRIES})"
)
"""The CEL expression for: the pod is within the bounds."""
IS_SMALL_NAMESPACE: Final = (
    "[object, oldObject].all(version, version == null"
    " || [version.metadata.?labels, version.metadata.?annotations].all(entries,"
    f" size(entries.orValue({{}})) <= {MOST_OF_NAMESPACE}))"
)
"""The CEL expression for: the namespace is within the bounds, before and after an edit."""
