"""Builds inventories for tests with the project's code."""

from typing import Any

from gpuagent.pods.assemble import AssembledInventory, build
from gpuagent.pods.inventory import Inventory
from gpuagent.pods.objects import decode_object
from kai.own_labels import VCLUSTER
from tests.support.kube_objects import NODE, RESERVATIONS, namespace_object


def built(*documents: dict[str, Any], node: str = NODE) -> AssembledInventory:
    """Return the result of `build` for documents.

    A namespace `vcluster-…` that has no document of its own is the labelled host namespace of a vCluster.
    """
    known = {each["metadata"]["name"] for each in documents if each["kind"] == "Namespace"}
    used = {(each["metadata"].get("namespace") or "") for each in documents}
    hosts = sorted(name for name in used - known if name.startswith("vcluster-"))
    labelled = [namespace_object(name, {VCLUSTER: "true"}) for name in hosts]
    objects = [each for each in map(decode_object, (*documents, *labelled)) if each is not None]
    return build(objects, node=node, reservation_namespace=RESERVATIONS)


def inventory(*documents: dict[str, Any]) -> Inventory:
    """Return the inventory of valid documents."""
    made = built(*documents)
    assert not made.lines
    return made.inventory
