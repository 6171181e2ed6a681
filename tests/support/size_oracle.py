"""Sizes with a known meaning, valid and broken, and an independent rule for the size of a pod."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kai.kaishare_keys import SIZE, SIZE_PREFIX

Labels = Mapping[str, str]

VALUES: Final[Mapping[str, tuple[str, str] | None]] = {
    "0.5": ("gpu-fraction", "0.5"), "0.25": ("gpu-fraction", "0.25"), "0.02": ("gpu-fraction", "0.02"), "1": None,
    "2000Mi": ("gpu-memory", "2000"), "8Gi": ("gpu-memory", "8192"),
}  # fmt: skip
"""Allowed values, with the annotation that a pod gets; None for a whole GPU."""

BAD_VALUES: Final = ("1.0", "2000", "1Ti", "0.005", "0Mi", "", "½", "9223372036854775807Gi")
NAMES: Final = ("train", "serve", "s-2")
BAD_NAMES: Final = ("Train", "a.b", "x" * 41, "-a")
SELECTORS: Final[Mapping[str, Callable[[Labels], bool]]] = {
    "app=web": lambda labels: labels.get("app") == "web",
    "app in (web, api),!tier": lambda labels: labels.get("app") in ("web", "api") and "tier" not in labels,
    "app!=web": lambda labels: labels.get("app") != "web",
    "tier": lambda labels: "tier" in labels,
    "rank>1": lambda labels: labels.get("rank") in ("2", "10"),
}
BAD_SELECTORS: Final = ("", " ", "app in (web", "app=web=api", "a,", "kai.scheduler/queue=x", "é", "x" * 1025)
POD_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "app": ("web", "api", "other"), "tier": ("a", ""), "rank": ("1", "2", "10", "first"),
    SIZE: ("train", "serve", "none-such", "Train", ""),
}  # fmt: skip


def size_of(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    pod_labels: Mapping[str, Any],
    *,
    max_fraction: float | None,
    max_memory_mib: int | None,
) -> tuple[str, Any]:
    """Return what a namespace with at most sixteen sizes has for a pod: a kind, and a detail.
    The kinds are `share` (annotation and value), `whole` (the size's name), `doubt` (the reason's code) and `none`."""
    sizes = {
        key.removeprefix(SIZE_PREFIX): value for key, value in labels.items() if key.startswith(SIZE_PREFIX)
    }
    selectors = {name: annotations.get(SIZE_PREFIX + name) for name in sizes}

    def outcome(name: str) -> tuple[str, Any]:
        value = sizes[name]
        if name not in NAMES or value not in VALUES:
            return "doubt", "policy-invalid"
        share = VALUES[value]
        if share is not None and share[0] == "gpu-memory":
            bound: float | None = max_memory_mib
            amount, other = float(share[1]), max_fraction
        else:
            bound, amount, other = max_fraction, float(value), max_memory_mib
        if (bound is not None and amount > bound) or (bound is None and other is not None):
            return "doubt", "policy-invalid"
        return ("whole", name) if share is None else ("share", share)

    named = pod_labels.get(SIZE)
    if SIZE in pod_labels:
        return outcome(named or "") if (named or "") in sizes else ("doubt", "size-unknown")
    texts = {key: value or "" for key, value in pod_labels.items()}
    selected = [name for name, text in selectors.items() if text in SELECTORS and SELECTORS[text](texts)]
    if len(selected) > 1:
        return "doubt", "size-ambiguous"
    if selected:
        return outcome(selected[0])
    if any(text is not None and text not in SELECTORS for text in selectors.values()):
        return "doubt", "policy-invalid"
    return "none", None
