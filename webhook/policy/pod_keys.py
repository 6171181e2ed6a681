"""Keys of pods that have no effect: in the wrong map, on the wrong object, or misspelt. Pure.

The author of such a key wanted something that does not happen; at times its opposite. Nothing is decided by
these keys, so that a warning is enough.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from kai import keys
from kai.kaishare_keys import GPU_MARK, GPU_SHARED, INJECT, POD_KEYS, PREFIX, SIZE, SIZE_PREFIX
from kai.key_classes import TABLE, KeyKind, is_of_kai
from kai.pod import PodView
from kai.releases import Version
from kai.share import run_ai_limit
from service.text import quoted, shorten
from webhook.policy.labels import LABELS, near_prefixes
from webhook.policy.reasons import Clipped, Finding, Reason

_A_LABEL, _AN_ANNOTATION = "a label", "an annotation"
_KINDS: Final[Mapping[str, str]] = {
    **POD_KEYS,
    **{row.key: _A_LABEL if row.kind is KeyKind.LABEL else _AN_ANNOTATION for row in TABLE},
    keys.PRIORITY_LABEL: _A_LABEL,
}
"""What a known key of a pod must be."""
_SHARE_KEYS: Final = (keys.GPU_FRACTION, keys.GPU_MEMORY, keys.NUM_DEVICES, keys.CONTAINER_NAME)
_NAMES: Final = {key.removeprefix(PREFIX): key for key in POD_KEYS}
_MOST_COMPARED: Final = 8
"""Misspelt keys of a pod that are compared with known ones. One comparison takes a tenth of a millisecond."""
_LONGEST_COMPARED: Final = 40


def key_findings(pod: PodView, *, has_size: bool, version: Version | None) -> Iterator[Finding]:
    """Yield a finding for each key of the pod without effect; `has_size` if a size decided its share.

    `version` is KAI's; None if it is not known.
    """
    first = (pod.containers[0].name if pod.containers else None) or "NAME"
    if of_run_ai := run_ai_limit(pod.annotations, first, version):
        yield Finding(Reason.RUN_AI_KEY, {"key": of_run_ai[0], "remedy": of_run_ai[1]})
    compared = 0
    for kind, texts in ((_A_LABEL, pod.labels), (_AN_ANNOTATION, pod.annotations)):
        word = kind.rpartition(" ")[2]
        for key in texts:
            if key == SIZE and (kind == _A_LABEL or has_size or SIZE in pod.labels):
                continue  # the annotation is what the webhook leaves on a pod
            remedy = _remedy(key, kind, may_compare=compared < _MOST_COMPARED)
            compared += remedy is not None
            if remedy:
                yield _finding(word, key, remedy)
        yield from _misspelt(word, texts)


def _finding(word: str, key: str, remedy: str) -> Finding:
    return Finding(
        Reason.KEY_WITHOUT_EFFECT, {"kind": word, "key": Clipped(shorten(key, 63)), "remedy": remedy}
    )


def _remedy(key: str, kind: str, *, may_compare: bool) -> str | None:
    """Return what to write instead; empty if no key is near, and None for a key of others, or a right one."""
    wanted = _AN_ANNOTATION if key.startswith(keys.CONTAINER_PREFIX) else _KINDS.get(key)
    if wanted is not None:
        return None if wanted == kind else f"it must be {wanted}"
    if key in (keys.RUN_AI_FRACTION_LIMIT, keys.RUN_AI_MEMORY_LIMIT):
        return None  # `run_ai_limit` tells of it
    if key in LABELS or key.startswith(SIZE_PREFIX):
        return "it belongs on the namespace, as a label"
    if not may_compare:
        return None
    if key.startswith(PREFIX):
        name = key.removeprefix(PREFIX)[:_LONGEST_COMPARED]
        near = difflib.get_close_matches(name, _NAMES, n=1)
        return f"the nearest is {_NAMES[near[0]]}" if near else f"known: {', '.join(_NAMES)}"
    if "/" in key or is_of_kai(key) or not key.startswith("gpu"):
        return None
    near = difflib.get_close_matches(key[:_LONGEST_COMPARED], _SHARE_KEYS, n=1, cutoff=0.8)
    return f"the nearest is the annotation {near[0]}" if near else ""


def namespace_key_findings(labels: Iterable[str], annotations: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each key of a namespace without effect: in the wrong map, or misspelt."""
    for key in annotations:
        if key in LABELS:
            yield _finding("annotation", key, "it must be a label")
        elif key.startswith(PREFIX) and key not in NAMESPACE_ANNOTATIONS:
            remedy = f"it belongs on pods, as {POD_KEYS[key]}" if key in POD_KEYS else "no such key is known"
            yield _finding("annotation", key, remedy)
    yield from _misspelt("label", labels)
    yield from _misspelt("annotation", annotations)


def _misspelt(word: str, texts: Iterable[str]) -> Iterator[Finding]:
    for key, prefix in near_prefixes(texts):
        yield Finding(Reason.MISSPELT_PREFIX, {"key": f"{word} {shorten(key)}", "prefix": prefix})


NAMESPACE_ANNOTATIONS: Final = (f"{PREFIX}queues",)
"""Annotations of namespaces below our prefix: the guard's, on the host namespace of a vCluster."""


def unknown_value_findings(pod: PodView) -> Iterator[Finding]:
    """Yield a finding for each kaishare pod label whose value has no effect."""
    for key, allowed in ((INJECT, ("false", "true")), (GPU_MARK, (GPU_SHARED,))):
        value = pod.labels.get(key)
        if value is not None and value not in allowed:
            yield Finding(
                Reason.UNKNOWN_VALUE,
                {"key": f"label {key}", "value": quoted(value), "allowed": " or ".join(allowed)},
            )
