"""Removes the API server's own defaults from a pod that came back, so that other changes stand out. Pure.

Sources: Kubernetes 1.36 pkg/apis/core/v1/defaults.go, and in plugin/pkg/admission the plugins ServiceAccount,
DefaultTolerationSeconds and Priority. Checked with pods that came back from Kubernetes 1.30.14 and 1.36.3.

A default is removed only where the sent pod has no value. Everything else that differs stays.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from console.explain.document_parts import as_map
from console.explain.pod_defaults import (
    DEFAULT_TOLERATIONS,
    SERVER_METADATA,
    token_volumes,
    without_token_volumes,
)
from kai import keys
from kai.numbers import parse_quantity

_CONTAINERS: Final = frozenset({"containers", "initContainers", "ephemeralContainers"})
_MODE: Final = 0o644
_PROBE_DEFAULTS: Final[Mapping[str, Any]] = {
    "timeoutSeconds": 1,
    "periodSeconds": 10,
    "successThreshold": 1,
    "failureThreshold": 3,
}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "spec": {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "schedulerName": keys.DEFAULT_SCHEDULER,
        "enableServiceLinks": True,
        "volumeMode": "Filesystem",  # of an ephemeral volume's claim
    },
    "containers": {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"},
    "livenessProbe": _PROBE_DEFAULTS,
    "readinessProbe": _PROBE_DEFAULTS,
    "startupProbe": _PROBE_DEFAULTS,
    "httpGet": {"path": "/", "scheme": "HTTP"},
    "grpc": {"service": ""},
    "ports": {"protocol": "TCP"},
    "securityContext": {"procMount": "Default"},
    "fieldRef": {"apiVersion": "v1"},
    "resourceFieldRef": {"divisor": "0"},
    "configMap": {"defaultMode": _MODE},
    "secret": {"defaultMode": _MODE},
    "projected": {"defaultMode": _MODE},
    "downwardAPI": {"defaultMode": _MODE},
    "serviceAccountToken": {"expirationSeconds": 3600},
    "hostPath": {"type": ""},
    "iscsi": {"iscsiInterface": "default"},
    "rbd": {"pool": "rbd", "user": "admin", "keyring": "/etc/ceph/keyring"},
    "azureDisk": {"cachingMode": "ReadWrite", "kind": "Shared", "fsType": "ext4", "readOnly": False},
    "scaleIO": {"storageMode": "ThinProvisioned", "fsType": "xfs"},
}
"""Default values by the name of the object that has them, and field."""

_COMPUTED: Final = frozenset({"priority", "preemptionPolicy", "serviceAccount"})
"""Fields of a spec that the API server computes from `priorityClassName` and `serviceAccountName`."""
_NEVER_STORED: Final = frozenset(
    {
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "readOnly",
        "stdin",
        "stdinOnce",
        "tty",
        "hostPort",
        "initialDelaySeconds",
    }
)
"""Fields that the API server omits where they are false or 0."""
_AMOUNTS: Final = frozenset({"limits", "requests", "overhead"})
_IDENTITY: Final[Mapping[str, tuple[str, ...]]] = {
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "tolerations": ("key", "effect", "value"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "hostAliases": ("ip",),
}
"""Fields that identify an item of a list; `name` in other lists."""

_Place = tuple[str, ...]


def without_defaults(
    sent: Mapping[str, Any], stored: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `metadata` and `spec` of both pods, so that a diff shows what an admission changed.

    The second has the keys in the order of the first, equal quantities as the first spells them, and no
    defaults. The first lacks what the API server omits, such as empty maps.

    Args:
        sent: the pod that was sent.
        stored: the pod that came back.
    """
    before = {part: sent[part] for part in ("metadata", "spec") if sent.get(part)}
    after = {part: stored[part] for part in ("metadata", "spec") if stored.get(part)}
    if isinstance(after.get("metadata"), dict):
        after["metadata"] = _without_server_metadata(before.get("metadata"), after["metadata"])
        before["metadata"] = _without_server_metadata(after["metadata"], before.get("metadata") or {})
    spec = as_map(before.get("spec"))
    if isinstance(after.get("spec"), dict):
        tokens = token_volumes(after["spec"]) - token_volumes(spec)
        after["spec"] = without_token_volumes(after["spec"], tokens)
    aligned = _Alignment(is_on_host=spec.get("hostNetwork") is True).aligned(before, after, ())
    return _without_omitted(before, aligned, ""), aligned


class _Alignment:
    """Aligns a pod that came back with the one that was sent."""

    def __init__(self, *, is_on_host: bool) -> None:
        self._is_on_host = is_on_host

    def aligned(self, sent: Any, stored: Any, place: _Place) -> Any:
        if isinstance(stored, dict):
            return self._map(sent if isinstance(sent, dict) else None, stored, place)
        if isinstance(stored, list):
            return self._list(sent if isinstance(sent, list) else [], stored, place)
        return sent if _is_equal(sent, stored, place) else stored

    def _map(
        self, sent: Mapping[str, Any] | None, stored: Mapping[str, Any], place: _Place
    ) -> dict[str, Any]:
        if place[-1:] == ("resources",) and sent is not None:
            stored = _without_filled_requests(sent, stored)
        order = [key for key in sent or () if key in stored]
        order += [key for key in stored if key not in (sent or ())]
        result = {}
        for key in order:
            before = sent.get(key) if sent is not None else None
            if before is None and self._is_default(key, sent, stored, place):
                continue
            value = self.aligned(before, stored[key], (*place, key))
            if before is None and value in ({}, []) and stored[key]:
                continue  # only defaults
            result[key] = value
        return result

    def _list(self, sent: Sequence[Any], stored: Sequence[Any], place: _Place) -> list[Any]:
        name = place[-1]
        partners: dict[Hashable, Any] = {}
        for index, item in enumerate(sent):
            partners.setdefault(_identity(item, index, name), item)
        result = []
        for index, item in enumerate(stored):
            partner = partners.get(_identity(item, index, name))
            if partner is not None or name != "tolerations" or item not in DEFAULT_TOLERATIONS:
                result.append(self.aligned(partner, item, place))
        return result

    def _is_default(
        self, key: str, sent: Mapping[str, Any] | None, stored: Mapping[str, Any], place: _Place
    ) -> bool:
        """Whether a value that the sent pod does not have is a default."""
        value = stored[key]
        parent = place[-1] if place else ""
        if value is None or (value in ("", {}, []) and (sent is not None or parent in _CONTAINERS)):
            return True
        holder = "containers" if parent in _CONTAINERS else parent
        defaults = _DEFAULTS.get(holder, {})
        if key in defaults and _same(value, defaults[key]):
            return True
        if holder == "spec" and key in _COMPUTED:
            return True
        if holder == "containers" and key in ("imagePullPolicy", "resizePolicy"):
            return _is_pull_policy(value, sent, stored) if key == "imagePullPolicy" else _is_no_restart(value)
        if holder == "image" and key == "pullPolicy":
            return _same(value, _pull_policy(stored.get("reference")))
        if holder == "ports" and key == "hostPort":
            return self._is_on_host and value == stored.get("containerPort")
        return False


def _without_server_metadata(other: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without the API server's own fields, and without a name that only one pod has."""
    return {
        key: value
        for key, value in metadata.items()
        if key not in SERVER_METADATA and key != "namespace" and (key != "name" or as_map(other).get("name"))
    }


def _is_pull_policy(value: Any, sent: Mapping[str, Any] | None, stored: Mapping[str, Any]) -> bool:
    """Whether a policy is the default of an image. Defaults are set before webhooks may change the image."""
    images = ((sent or {}).get("image"), stored.get("image"))
    return value in [_pull_policy(image) for image in images]


def _pull_policy(image: Any) -> str:
    """Return the default policy of an image: Always for the tag latest, which an image without tag has."""
    if not isinstance(image, str):
        return ""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if tag == "latest" or not (tag or digest) else "IfNotPresent"


def _is_no_restart(policies: Any) -> bool:
    """Whether no resize restarts a container (the feature InPlacePodVerticalScaling sets the default)."""
    return isinstance(policies, list) and all(
        isinstance(policy, dict) and policy.get("restartPolicy") == "NotRequired" for policy in policies
    )


def _without_filled_requests(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return resources without requests that the API server copied from the limits that were sent."""
    given, limits, requests = sent.get("limits"), stored.get("limits"), stored.get("requests")
    if not (isinstance(given, dict) and isinstance(limits, dict) and isinstance(requests, dict)):
        return stored
    written = sent.get("requests") or {}
    kept = {
        name: amount
        for name, amount in requests.items()
        if name in written or name not in given or limits.get(name) != amount
    }
    return {**stored, "requests": kept}


def _identity(item: Any, index: int, name: str) -> Hashable:
    """Return what an item of a list has in common with its counterpart: names, or its place."""
    if not isinstance(item, dict):
        return index
    fields = _IDENTITY.get(name, ("name",))
    if fields[0] not in item:
        return index
    values = [item.get(field) or ("TCP" if field == "protocol" else "") for field in fields]
    return tuple(value for value in values if isinstance(value, Hashable))


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) is isinstance(other, bool)


def _is_equal(sent: Any, stored: Any, place: _Place) -> bool:
    """Whether two scalars mean the same; amounts are quantities."""
    if _same(sent, stored):
        return True
    if sent is None or isinstance(sent, bool) or isinstance(stored, bool) or len(place) < 2:
        return False
    if place[-2] not in _AMOUNTS and place[-1] not in ("sizeLimit", "divisor"):
        return False
    try:
        return parse_quantity(sent) == parse_quantity(stored)
    except ValueError:
        return False


def _without_omitted(sent: Any, aligned: Any, name: str) -> Any:
    """Return the sent value without what the API server omits: null, empty and zero values."""
    if isinstance(sent, dict) and isinstance(aligned, dict):
        return {
            key: _without_omitted(value, aligned.get(key), key)
            for key, value in sent.items()
            if key in aligned or not _is_omitted(key, value)
        }
    if isinstance(sent, list) and isinstance(aligned, list):
        partners = {_identity(item, index, name): item for index, item in enumerate(aligned)}
        return [
            _without_omitted(item, partners.get(_identity(item, index, name)), name)
            for index, item in enumerate(sent)
        ]
    return sent


def _is_omitted(key: str, value: Any) -> bool:
    return value in (None, "", {}, []) or (key in _NEVER_STORED and value in (False, 0))
