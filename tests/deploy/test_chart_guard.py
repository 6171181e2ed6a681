"""The chart's guard without a cluster: its digests, its parameters, and the lists and keys that the code has, too."""

import ast
import re
from typing import Any, Final

import pytest

from kai import gpu_resources, keys
from kai.kaishare_keys import EXCLUDED_NAMESPACES
from kai.key_classes import CREATION_KEYS, FREE_KEYS, KAI_KEYS, RESERVED_APPS, USER_PREFIXES, is_of_kai
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
        assert excluded == unguarded | (set() if name.endswith("-vclusters") else EXCLUDED_NAMESPACES), name
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


def alternatives(pattern: str) -> set[str]:
    """Return the texts that a regular expression of nested alternatives matches at the beginning of a text.

    One that must be the whole text ends in `$`.
    """

    def read(text: str) -> tuple[set[str], str]:
        """Return the texts of a group without its closing parenthesis, and what follows it."""
        done, heads = set[str](), {""}
        while text and text[0] != ")":
            if text[0] == "(":
                inner, text = read(text[1:])
                tails, text = inner, text[1:]
            elif text[0] == "|":
                done, heads, text = done | heads, {""}, text[1:]
                continue
            else:
                item = re.match(r"\[(.)\]|([\w/$-])", text)
                if item is None:
                    raise ValueError(f"not an alternative: {text}")
                tails, text = {item[1] or item[2]}, text[item.end() :]
            heads = {head + tail for head in heads for tail in tails}
        return done | heads, text

    return read(pattern.removeprefix("^"))[0]


@pytest.fixture(scope="module")
def policy() -> dict[str, str]:
    """Return the expressions of the policy's variables by name, and its validations as one text."""
    (policy_object,) = (
        item
        for item in rendered()
        if item["metadata"]["name"] == "kaishare-guard-pods" and "variables" in item["spec"]
    )
    expressions = {each["name"]: each["expression"] for each in policy_object["spec"]["variables"]}
    return {**expressions, "": " ".join(each["expression"] for each in policy_object["spec"]["validations"])}


def quoted(text: str) -> set[str]:
    return set(re.findall(r"'([^']+)'", text))


def prefixes(expression: str) -> set[str]:
    return set(re.findall(r"key\.startsWith\('([^']+)'\)", expression))


def test_the_policy_reserves_the_keys_of_the_table(policy: dict[str, str]) -> None:
    (pattern,) = re.findall(r"key\.matches\('([^']+)'\)", policy["own"])
    beginnings = alternatives(pattern)
    assert quoted(policy["names"]) | beginnings == {*KAI_KEYS, keys.VCLUSTER_MANAGED_BY}
    assert all(text.endswith(("/", "-", ".")) for text in beginnings)


def test_the_policy_lets_users_write_the_keys_of_the_table(policy: dict[str, str]) -> None:
    free, _, at_creation = policy["free"].partition("variables.isNew")
    assert quoted(free) == set(FREE_KEYS)
    assert quoted(at_creation) == {*CREATION_KEYS, keys.VCLUSTER_MANAGED_BY}
    _, _, users = policy["reserved"].partition("variables.isNew")
    assert prefixes(users) == set(USER_PREFIXES)


def test_the_policy_reserves_the_same_values_of_app(policy: dict[str, str]) -> None:
    (values,) = re.findall(r"value in (\[[^]]+\])", policy[""])
    assert quoted(values) == set(RESERVED_APPS)


@pytest.mark.parametrize("key", KAI_KEYS)
def test_a_key_and_what_begins_like_it(key: str) -> None:
    """A name is reserved as it is, a prefix with anything behind it."""
    is_prefix = key[-1] in "/-."
    assert is_of_kai(key + "note") is is_prefix
    assert is_of_kai(key)
    assert not is_of_kai("x" + key)
