"""The rights that requests to an API server use, and the roles that contain them and nothing else."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.administrator import Administrator
from tests.support.hostile_api_server import SeenRequest
from tests.support.waiting import until

_GROUP = "rbac.authorization.k8s.io"
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True, order=True)
class UsedRight:
    """A right as the API server checks it (RequestInfo of k8s.io/apiserver)."""

    namespace: str
    """Empty for a right in the whole cluster."""
    group: str
    resource: str
    """With its subresource, such as `pods/proxy`."""
    verb: str
    name: str
    """Name of the object; empty where the path has none."""

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.verb} {self.resource}{group}"


def used_rights(requests: Iterable[SeenRequest]) -> set[UsedRight]:
    """Return the rights that requests use; discovery and `/version` need none beyond authentication."""
    return {right for request in requests for right in _right(request)}


def _right(request: SeenRequest) -> Iterator[UsedRight]:
    match request.path.strip("/").split("/"):
        case ["api", _, *rest]:
            group = ""
        case ["apis", group, _, *rest]:
            pass
        case _:
            return
    if not rest:
        return
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        rest = rest[2:] or rest
    resource, name, subresource, *_ = [*rest, "", "", ""]
    assert "metadata.name" not in request.query.get("fieldSelector", ""), "RBAC checks such a list by name"
    reading = "get" if name else "watch" if request.is_watch else "list"
    yield UsedRight(
        namespace=namespace, group=group, resource=f"{resource}/{subresource}" if subresource else resource,
        verb=_VERBS.get(request.method, reading), name=name,
    )  # fmt: skip


def roles(account: str, namespace: str, rights: Collection[UsedRight]) -> Iterator[dict[str, Any]]:
    """Yield roles with exactly these rights, and their bindings to an account."""
    rules = defaultdict(list)
    for right in sorted(rights):
        rule = {"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}
        rules[right.namespace].append(rule | ({"resourceNames": [right.name]} if right.name else {}))
    for place, own in rules.items():
        metadata = {"name": account} | ({"namespace": place} if place else {})
        kind = "Role" if place else "ClusterRole"
        yield {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": metadata, "rules": own}
        yield binding(account, namespace, role=account, kind=kind, place=place)


def binding(account: str, namespace: str, *, role: str, kind: str, place: str) -> dict[str, Any]:
    """Return the binding of a role to a service account."""
    return {
        "apiVersion": f"{_GROUP}/v1",
        "kind": "RoleBinding" if place else "ClusterRoleBinding",
        "metadata": {"name": account} | ({"namespace": place} if place else {}),
        "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


async def until_aggregated(admin: Administrator, role: str) -> None:
    """Wait until the controller has filled in the rules of one of Kubernetes' own roles."""

    async def has_rules() -> bool:
        stored = await admin.read(f"/apis/{_GROUP}/v1/clusterroles/{role}")
        return bool(stored.get("rules"))

    await until(has_rules, f"the role {role} has its rules")
