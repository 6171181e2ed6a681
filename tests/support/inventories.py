"""Builds inventories for tests with the project's code."""

from typing import Any

from gpuagent.pods.assemble import AssembledInventory, build
from gpuagent.pods.inventory import Inventory
from gpuagent.pods.objects import decode_object
from tests.support.kube_objects import NODE, RESERVATIONS


def built(*documents: dict[str, Any], node: str = NODE) -> AssembledInventory:
    """Return the result of `build` for documents."""
    objects = [each for each in map(decode_object, documents) if each is not None]
    return build(objects, node=node, reservation_namespace=RESERVATIONS)


def inventory(*documents: dict[str, Any]) -> Inventory:
    """Return the inventory of valid documents."""
    made = built(*documents)
    assert not made.lines
    return made.inventory
