"""The comparison of a guard with that of this release, without a cluster."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import helm_chart
from tests.support.guard import GUARD, rendered
from tests.support.hollow_guards import HOLLOW, UNCHANGED_EFFECT, HollowGuard, variable
from webhook.doctor.guard.comparison import differences, weakening
from webhook.doctor.guard.objects import excluded_names, read_binding, read_policy, shipped_guard

Objects = list[dict[str, Any]]
SETTINGS = {
    "enabled": True,
    "action": "deny",
    "kaiNamespaces": ["kai", "kai-scheduler"],
    "schedulerName": "kai",
    "ownerKinds": [
        {"group": "kueue.x-k8s.io", "kind": "ClusterQueue"},
        {"group": "", "kind": "PersistentVolume"},
    ],
    "unguardedNamespaces": ["vcluster-b"],
}


def by_kustomize() -> Objects:
    return rendered(GUARD / "deny")


def by_helm() -> Objects:
    objects = helm_chart.rendered({"guard": SETTINGS, "excludedNamespaces": ["kube-system", "other"]})
    return [
        copy.deepcopy(item)
        for item in objects
        if item["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "guard"
    ]


def with_defaults(objects: Objects) -> Objects:
    """Fill in what the API servers of Kubernetes 1.30 to 1.36 fill in; tests/cluster/test_guard_doctor.py compares."""
    for item in objects:
        item["spec"].setdefault("failurePolicy", "Fail")
        for field in ("matchConstraints", "matchResources"):
            match = item["spec"].get(field)
            if match is not None:
                for selector in ("namespaceSelector", "objectSelector"):
                    match.setdefault(selector, {})
                match.setdefault("matchPolicy", "Equivalent")
                for rule in (*match.get("resourceRules", ()), *match.get("excludeResourceRules", ())):
                    rule.setdefault("scope", "*")
    return objects


def object_differences(objects: Objects) -> dict[str, list[str]]:
    """Return the differing fields of each object that has any."""
    shipped = {binding.name: binding for binding in shipped_guard().bindings}
    result = {}
    for item in objects:
        encoded = json.dumps(item).encode()
        policy, binding = read_policy(encoded), None
        if policy is not None:
            paths = differences(policy, shipped_guard().policies[policy.name])
        else:
            binding = read_binding(encoded)
            assert binding is not None
            paths = differences(binding, shipped[binding.name])
        if paths:
            result[item["metadata"]["name"]] = paths
    return result


@pytest.mark.parametrize("source", [by_kustomize, by_helm])
@pytest.mark.parametrize("stored", [list, with_defaults])
def test_the_manifests_equal_the_guard_of_this_release(
    source: Callable[[], Objects], stored: Callable[[Objects], Objects]
) -> None:
    objects = stored(source())
    assert len(objects) == 9
    assert object_differences(objects) == {}


@pytest.mark.parametrize("source", [by_kustomize, by_helm])
@pytest.mark.parametrize("hollow", HOLLOW.values(), ids=HOLLOW)
def test_each_hollow_guard_differs(source: Callable[[], Objects], hollow: HollowGuard) -> None:
    paths = object_differences(hollow.applied_to(with_defaults(source())))
    assert paths.keys() == {hollow.name}
    assert set(hollow.path.split(", ")) <= set(weakening(paths[hollow.name])), paths


@pytest.mark.parametrize("changed", UNCHANGED_EFFECT.values(), ids=UNCHANGED_EFFECT)
def test_changes_without_an_effect_on_refusals(changed: HollowGuard) -> None:
    paths = object_differences(changed.applied_to(with_defaults(by_kustomize())))
    assert paths == {changed.name: [changed.path]}
    assert weakening(paths[changed.name]) == []


def test_the_order_of_names_and_conditions_is_no_difference() -> None:
    objects = by_kustomize()
    for item in objects:
        item["spec"].get("matchConditions", []).reverse()
        for rule in item["spec"].get("matchConstraints", {}).get("resourceRules", []):
            rule["operations"].reverse()
    assert object_differences(objects) == {}


def test_a_parameter_that_a_policy_does_not_have_is_a_difference() -> None:
    objects = by_kustomize()
    for item in objects:
        if item["metadata"]["name"] == "kaishare-guard-keys":
            item["spec"]["variables"].append({"name": "schedulerName", "expression": "'kai'"})
            variable(item["spec"], "kaiNamespaces")["expression"] = "['kai']"
    assert object_differences(objects) == {"kaishare-guard-keys": ["spec.variables.schedulerName"]}


def test_objects_of_others_are_skipped() -> None:
    foreign = {"metadata": {"name": "other"}, "spec": {"policyName": "other", "validations": []}}
    assert read_policy(json.dumps(foreign).encode()) is None
    assert read_binding(json.dumps(foreign).encode()) is None


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ({}, frozenset()),
        (
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["a", "b"]},
            frozenset({"a", "b"}),
        ),
        ({"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a"]}, None),
        ({"key": "guarded", "operator": "Exists"}, None),
    ],
)
def test_namespaces_that_a_binding_excludes_by_name(
    selector: dict[str, Any], names: frozenset[str] | None
) -> None:
    match = {"namespaceSelector": {"matchExpressions": [selector]}} if selector else {}
    spec = {"policyName": "kaishare-guard-queues", "matchResources": match}
    binding = read_binding(json.dumps({"metadata": {"name": "any"}, "spec": spec}).encode())
    assert binding is not None
    assert excluded_names(binding) == names
