"""Namespaces whose pods run the cluster and not the work of its users."""

from typing import Final

EXCLUDED_NAMESPACES: Final = frozenset(
    {
        "kube-system",
        "kube-public",
        "kube-node-lease",
        "kai-scheduler",
        "kai-resource-reservation",
        "kai-scale-adjust",
        "gpu-operator",
        "kaishare",
        "kaishare-agent",
    }
)
"""Both services leave them alone; `--exclude-namespaces` replaces the list."""
