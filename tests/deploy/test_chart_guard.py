"""The chart's guard without a cluster: its digests, its parameters, and the lists that the code has, too."""

import ast
import re
from typing import Any, Final

import pytest

from kai import gpu_resources
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from tests.support.guard import PARAMETERS, QUEUES, digest, rendered
from tests.support.helm_chart import CHART, DEPLOY, helm, options
from webhook.policy.labels import MODE

ALL: Final[dict[str, Any]] = {
    "optional": {"subgroups": True, "configMap": True, "members": True, "maxGraceSeconds": 3600}
}
OTHERS: Final[dict[str, Any]] = {
    "optional": {**ALL["optional"], "maxGraceSeconds": 60},
    "kaiNamespaces": ["kai", "kai-two"],
    "schedulerName": "kai",
    "preemptibleClasses": ["batch"],
    "unguardedNamespaces": ["vcluster-b"],
}
DOCUMENT: Final = DEPLOY.parent / "docs" / "guard.md"


def policies(kind: str = "Policy", **values: Any) -> dict[str, dict[str, Any]]:
    """Return the policies, or their bindings, by name."""
    return {item["metadata"]["name"]: item for item in rendered(**values) if item["kind"].endswith(kind)}


def variable(policy: str, name: str, **values: Any) -> Any:
    """Return a constant of a policy; CEL's lists and strings read as Python's."""
    spec = policies(**values)[f"kaishare-guard-{policy}"]["spec"]
    (expression,) = (each["expression"] for each in spec["variables"] if each["name"] == name)
    return ast.literal_eval(expression)


def test_each_policy_has_the_digest_of_what_the_chart_does_not_set() -> None:
    wrong = {}
    for values in (ALL, OTHERS, {**ALL, "action": "audit"}):
        for name, policy in policies(**values).items():
            right = digest(policy)
            if policy["metadata"]["annotations"]["kaishare.dev/digest"] != right:
                wrong[f"templates/guard/{name.removeprefix('kaishare-guard-')}.yaml"] = f'"digest" "{right}"'
    assert wrong == {}, "write these digests into the templates"


def test_what_the_digest_leaves_out_is_a_value_of_the_chart() -> None:
    plain, other = policies(**ALL), policies(**OTHERS)
    differing = {
        mine["name"]
        for name, policy in plain.items()
        for mine, theirs in zip(
            policy["spec"].get("variables", []), other[name]["spec"].get("variables", []), strict=True
        )
        if mine != theirs
    }
    assert differing == PARAMETERS


def test_without_values_no_optional_policy_is_rendered() -> None:
    names = {f"kaishare-guard-{name}" for name in ("podgroups", "pods", "objects", "gpus")}
    optional = {f"kaishare-guard-{name}" for name in ("subgroups", "configmap", "grace", "members")}
    for values, expected in (({}, names), (ALL, names | optional)):
        assert set(policies(**values)) == expected
        assert {item["spec"]["policyName"] for item in policies("Binding", **values).values()} == expected
        assert {item["spec"]["failurePolicy"] for item in policies(**values).values()} == {"Fail"}


@pytest.mark.parametrize(
    ("action", "actions"), [("audit", ["Audit"]), ("warn", ["Warn", "Audit"]), ("deny", ["Deny"])]
)
def test_every_binding_has_the_guards_action(action: str, actions: list[str]) -> None:
    for item in policies("Binding", action=action).values():
        assert item["spec"]["validationActions"] == actions


def test_the_values_are_the_parameters() -> None:
    assert variable("podgroups", "kaiNamespaces", **OTHERS) == ["kai", "kai-two"]
    assert variable("podgroups", "preemptibleClasses", **OTHERS) == ["batch"]
    assert variable("gpus", "schedulerName", **OTHERS) == "kai"
    assert variable("grace", "longest", **OTHERS) == 60
    assert variable("podgroups", "preemptibleClasses", preemptibleClasses=[]) == []


def test_the_bindings_leave_namespaces_out() -> None:
    own = EXCLUDED_NAMESPACES - {"nvidia-gpu-operator"}
    for name, binding in policies("Binding", **OTHERS).items():
        selector = binding["spec"]["matchResources"].get("namespaceSelector", {})
        excluded = {
            value
            for each in selector.get("matchExpressions", [])
            if each["key"] == "kubernetes.io/metadata.name"
            for value in each["values"]
        }
        is_enforced = name.endswith("-enforce")
        unguarded = set() if is_enforced else {"vcluster-b"}
        assert excluded == unguarded | (set() if name.endswith("-vclusters") else own), name
        assert selector.get("matchLabels") == ({MODE: "enforce"} if is_enforced else None)


def refusal(values: dict[str, Any], *arguments: str) -> str:
    done = helm("template", "kaishare", str(CHART), "--kube-version", "1.36.0", *arguments, *options(values))
    assert done.returncode == 1
    return done.stderr


def test_values_that_cannot_work_are_refused_with_what_to_do() -> None:
    enabled = {"enabled": True}
    owners = {"guard": {**enabled, "ownerKinds": [{"group": "a.b", "kind": "C"}]}}
    assert "guard.ownerKinds was removed: delete it from your values" in refusal(owners)
    subgroups = {"guard": {**enabled, "optional": {"subgroups": True}}}
    for version in ("", "0.13.4", "0.17.0-rc1"):
        text = refusal({**subgroups, "kaiVersion": version})
        assert f'needs kaiVersion 0.17.0 or later, and it is "{version}"' in text
    served = "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy"
    for name in ("subgroups", "configMap"):
        guard = {**enabled, "optional": {name: True}}
        values = {"kaiVersion": "0.17.0", "webhook": {"enabled": False}, "guard": guard}
        text = refusal(values, "--api-versions", "v1/Pod", "--api-versions", served)
        missing = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
        assert f"does not serve {missing}, which guard.optional.{name}=true needs" in text


def test_the_resources_that_name_a_gpu_are_those_the_webhook_knows() -> None:
    assert tuple(variable("gpus", "otherDevices")) == gpu_resources.OTHER_DEVICES
    assert tuple(variable("gpus", "gpuSuffixes")) == gpu_resources.GPU_SUFFIXES
    text = (CHART / "templates" / "guard" / "gpus.yaml").read_text()
    for prefix in (gpu_resources.NVIDIA_PREFIX, gpu_resources.DEVICE_CLASS_PREFIX):
        assert f"key.startsWith('{prefix}')" in text


def test_the_document_names_every_policy_and_no_other() -> None:
    names = set(re.findall(r"`(kaishare-guard-[a-z-]+)`", DOCUMENT.read_text()))
    assert names == set(policies(**ALL))
    assert f"{QUEUES}=" in DOCUMENT.read_text()


def test_the_source_of_the_guard_is_short() -> None:
    optional = ("subgroups", "configmap", "grace", "members")
    files = [file for file in (CHART / "templates" / "guard").iterdir() if file.stem not in optional]
    assert sum(len(file.read_text().splitlines()) for file in files) <= 400
