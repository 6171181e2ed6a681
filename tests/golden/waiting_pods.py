"""Records of `why` on the recorded states of three releases of KAI."""

import json
from collections.abc import Iterator
from typing import Any, Final

from tests.golden import product
from tests.golden.api_server import hold
from tests.golden.records import digest
from tests.support.object_server import ObjectServer
from tests.support.why_states import State, folder

_FILES: Final = [
    "pod",
    "podgroup",
    "bindrequest",
    "queue",
    "events",
    "reservation-pods",
    "owners",
    "other",
    "nodes",
]


def cases(server: ObjectServer, release: str) -> Iterator[tuple[str, Any]]:
    """Yield the answer about each pod and workload, to an administrator and to an account with the role edit."""
    root = folder()
    assert root is not None
    for path in sorted(each for each in (root / release).iterdir() if each.is_dir()):
        state = State(path)
        objects = {name: state.items(name) for name in _FILES}
        everything = [item for items in objects.values() for item in items if item["kind"] != "ResourceQuota"]
        namespace = state.namespace
        everything.append({"kind": "Namespace", "metadata": {"name": namespace}})
        gone = [item["metadata"]["name"] for item in state.items("pod-deleted")]
        names = dict.fromkeys([*(pod["metadata"]["name"] for pod in objects["pod"]), *gone])
        owners = [(each["kind"].lower(), each["metadata"]["name"]) for each in objects["owners"]]
        for is_edit in (False, True):
            hold(
                server,
                state.now,
                everything,
                forbidden=_beyond(namespace) if is_edit else lambda _: False,
                unserved=("kai.scheduler",),
            )
            for target in (*names, *("/".join(owner) for owner in owners)):
                case = f"{path.name} {target}{' edit' if is_edit else ''}"
                yield case, _answer(server, target, namespace, is_edit=is_edit)


def _answer(server: ObjectServer, target: str, namespace: str, *, is_edit: bool) -> Any:
    def why(*options: str) -> product.Ended:
        arguments = (target, "-n", namespace, "--kubeconfig", str(server.kubeconfig), *options)
        return product.run("why", *arguments, home=server.kubeconfig.parent, hide={server.server: "SERVER"})

    text = why()
    if is_edit:
        return {"text": digest("\n".join(text.lines)), "head": text.lines[:4]}
    document = why("-o", "json")
    answer = json.loads(document.out) if document.out else {}
    return {
        "codes": [each["code"] for each in answer.get("findings", [])],
        "json": digest(json.dumps(answer, sort_keys=True)),
        "text": text.lines,
    }


def _beyond(namespace: str) -> Any:
    """Return which paths the role edit in a namespace does not grant."""
    own = f"/api/v1/namespaces/{namespace}"

    def may_not(path: str) -> bool:
        is_own = path == own or f"/namespaces/{namespace}/" in path
        return ".run.ai/" in path or "kai.scheduler" in path or not is_own

    return may_not
