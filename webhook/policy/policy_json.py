"""A policy as JSON, for the page `/policies` and for `kaishare policies`. Pure."""

from webhook.policy.labels import NamespacePolicy
from webhook.policy.sizes import Size


def _size_json(size: Size) -> dict[str, object]:
    """Return the JSON fields of a valid size; the share is null for a whole GPU."""
    return {
        "name": size.name,
        "share": {size.share.annotation: size.share.value} if size.share else None,
        "selector": size.selector.text if size.selector else None,
    }


def policy_json(policy: NamespacePolicy) -> dict[str, object]:
    """Return the JSON fields of a policy: the effective values and its problems."""
    return {
        "namespace": policy.namespace,
        "state": policy.state,
        "mode": policy.mode,
        "queue": policy.queue,
        "scheduler": policy.scheduler,
        "share": {policy.share.annotation: policy.share.value} if policy.share else None,
        "sizes": [_size_json(size) for size in policy.sizes.by_name.values() if size.problem is None],
        "shareFor": policy.share_for,
        "maxGpuFraction": policy.max_fraction,
        "maxGpuMemory": policy.max_memory_mib,
        "priority": policy.priority,
        "gpuToleration": policy.inject_toleration,
        "distributed": policy.distributed,
        "announce": policy.announce,
        "vcluster": policy.is_vcluster_host,
        "overShare": policy.over_share,
        "overShareGraceSeconds": policy.over_share_grace_seconds,
        "problems": [{"label": p.label, "value": p.value, "message": str(p)} for p in policy.problems],
    }
