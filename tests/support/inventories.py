"""Builds inventories for tests with the project's code."""

from typing import Any

from gpuagent.pods.assemble import AssembledInventory, build
from gpuagent.pods.inventory import Inventory
from gpuagent.pods.objects import Namespace, decode_object
from kai.kaishare_keys import VCLUSTER
from tests.support.kube_objects import NODE, RESERVATIONS, namespace_object


def built(*documents: dict[str, Any], node: str = NODE) -> AssembledInventory:
    """Return the result of `build` for documents.
    A namespace `vcluster-…` that has no document of its own is the labelled host namespace of a vCluster."""
    objects = [each for each in map(decode_object, documents) if each is not None]
    known = {each.metadata.name for each in objects if isinstance(each, Namespace)}
    used = {each.metadata.namespace or "" for each in objects}
    for name in sorted(used - known):
        if name.startswith("vcluster-"):
            host = decode_object(namespace_object(name, {VCLUSTER: "true"}))
            assert host is not None
            objects.append(host)
    return build(objects, node=node, reservation_namespace=RESERVATIONS)


def inventory(*documents: dict[str, Any]) -> Inventory:
    made = built(*documents)
    assert not made.lines
    return made.inventory
