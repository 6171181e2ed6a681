"""deploy/guard without a cluster: its lists are the code's, and its overlays differ only in their actions."""

import ast
import re
import shutil
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kai import gpu_resources, keys
from kai.key_classes import TABLE, KaiKey, KeyClass, KeyKind, On, is_written_by_kai_only
from kai.own_labels import EXCLUDED_NAMESPACES
from tests.support import yaml_text
from tests.support.guard import GUARD, QUEUES, rendered
from tests.support.pods import pod, view
from webhook.guard import manifests
from webhook.policy import checks
from webhook.policy.labels import MODE


@cache
def expressions(policy: str) -> dict[str, str]:
    """Return the variables of a policy."""
    document = yaml_text.load((GUARD / "policies" / f"{policy}.yaml").read_text())
    return {entry["name"]: entry["expression"] for entry in document["spec"]["variables"]}


def variable(name: str, *, policy: str = "keys") -> Any:
    """Return a constant of a policy; CEL's lists and strings read as Python's."""
    return ast.literal_eval(expressions(policy)[name])


def named(folder: Path) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in rendered(folder)}


def pattern(name: str) -> re.Pattern[str]:
    """Return a regular expression of the policy of keys; the first in the expression of a variable."""
    match = re.search(r"'(\^[^']+)'", expressions("keys")[name])
    assert match
    return re.compile(match[1])


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.kind} {row.key}")
def test_the_guard_treats_a_key_as_the_webhook_does(row: KaiKey) -> None:
    key = row.key + "x" if row.is_prefix else row.key
    own = pattern("watchedLabels").match(key) is not None
    named = variable("freeKeys") + variable("creationKeys")
    assert (own and key not in named) is is_written_by_kai_only(key)
    assert is_written_by_kai_only(key) is (row.is_own and row.rule is KeyClass.KAI_ONLY)
    pod_with_key = view(pod(**{f"{row.kind}s": {key: "x"}}))
    findings = list(checks.reserved_key_findings(pod_with_key))
    is_reserved = is_written_by_kai_only(key) or key == keys.SHARED_GPU_CONFIGMAP  # of no container
    assert bool(findings) is is_reserved


@pytest.mark.parametrize(
    "key",
    ["nvidia.com/mig", "gpu-type", "xkai.scheduler/queue", "kai-scheduler/x", "runai", "my/gpu-fraction"],
)
def test_keys_that_only_look_like_kais_are_not_protected(key: str) -> None:
    assert not pattern("watchedLabels").match(key)
    assert not is_written_by_kai_only(key)


def test_every_placeholder_is_filled_in() -> None:
    for file in manifests.FILES:
        assert "${" not in manifests.text_of(file)
        assert list(yaml_text.load_all(manifests.text_of(file)))


def test_keys_of_others_are_fixed_as_the_table_says() -> None:
    for row in TABLE:
        if row.rule is KeyClass.FIXED and not row.is_own and not row.is_prefix:
            kind = "Labels" if row.kind is KeyKind.LABEL else "Annotations"
            assert (row.key in variable(f"fixed{kind}OfPods")) is (On.POD in row.on)
            if row.kind is KeyKind.LABEL:
                assert (row.key in variable("fixedLabelsOfOwners")) is (On.OWNER in row.on)


def test_the_resources_that_name_a_gpu_are_those_the_webhook_knows() -> None:
    assert tuple(variable("otherDevices", policy="queues")) == gpu_resources.OTHER_DEVICES
    assert tuple(variable("gpuSuffixes", policy="queues")) == gpu_resources.GPU_SUFFIXES
    asks = (GUARD / "policies" / "queues.yaml").read_text()
    for prefix in (gpu_resources.NVIDIA_PREFIX, gpu_resources.DEVICE_CLASS_PREFIX):
        assert f"key.startsWith('{prefix}')" in asks


@pytest.mark.parametrize("policy", ["keys", "queues", "owners", "references"])
def test_the_code_knows_every_key_in_an_expression(policy: str) -> None:
    """Expressions name keys also outside of the constants above."""
    text = (GUARD / "policies" / f"{policy}.yaml").read_text()
    spec = yaml_text.load(text)["spec"]
    known = {value for name, value in vars(keys).items() if name.isupper()}
    known |= {
        QUEUES,
        "vcluster.loft.sh/managed-annotations",
        *(row.key for row in TABLE),
        "resource.kubernetes.io/pod-claim-name",
        "scheduling.run.ai/",
        "nvidia.com/",
        "deviceclass.resource.kubernetes.io/",
        *variable("otherDevices", policy="queues"),
        *variable("gpuSuffixes", policy="queues"),
        "/",
        "/v1",
        "kubernetes.io/config.mirror",
        MODE,
    }
    expressions = [entry["expression"] for entry in [*spec.get("variables", []), *spec["validations"]]]
    named_keys = {
        word
        for text in expressions
        for word in text.split("'")[1::2]
        if "/" in word and " " not in word and not word.startswith("^")
    }
    assert named_keys <= known


def test_the_bindings_leave_the_webhooks_namespaces_alone() -> None:
    documents = named(GUARD)
    for policy in ("keys", "owners", "references"):
        name = f"kaishare-guard-{policy}-enforce"
        selector = documents[name]["spec"]["matchResources"]["namespaceSelector"]
        [excluded] = [
            expression["values"]
            for expression in selector["matchExpressions"]
            if expression["operator"] == "NotIn"
        ]
        assert set(excluded) == EXCLUDED_NAMESPACES
        assert selector["matchLabels"] == {MODE: "enforce"}


def test_every_policy_is_bound_and_fails_closed() -> None:
    documents = named(GUARD).values()
    policies = {
        document["metadata"]["name"]: document
        for document in documents
        if document["kind"].endswith("Policy")
    }
    bindings = [document for document in documents if document["kind"].endswith("Binding")]
    assert {document["spec"]["policyName"] for document in bindings} == set(policies)
    assert {document["spec"]["failurePolicy"] for document in policies.values()} == {"Fail"}
    assert len(policies) + len(bindings) == len(documents)


def test_the_guard_folder_equals_the_audit_overlay() -> None:
    assert named(GUARD) == named(GUARD / "audit")


@pytest.mark.parametrize(
    ("overlay", "actions"), [("audit", ["Audit"]), ("warn", ["Warn", "Audit"]), ("deny", ["Deny"])]
)
def test_overlays_differ_only_in_their_actions(overlay: str, actions: list[str]) -> None:
    documents, audit = named(GUARD / overlay), named(GUARD / "audit")
    for name, item in documents.items():
        if item["kind"].endswith("Binding"):
            assert item["spec"].pop("validationActions") == actions, name
            del audit[name]["spec"]["validationActions"]
    assert documents == audit


def test_kais_namespace_is_set_in_one_place(tmp_path: Path) -> None:
    folder = tmp_path / "guard"
    shutil.copytree(GUARD, folder)
    settings = folder / "policies" / "settings.yaml"
    text = settings.read_text()
    settings.write_text(text.replace("'kai-scheduler'", "'kai-elsewhere'"))
    assert named(GUARD) != named(folder)
    for item in rendered(folder):
        names = [value for value in strings(item.get("spec", {}).get("variables", [])) if "kai-" in value]
        assert not [value for value in names if "'kai-scheduler'" in value], item["metadata"]["name"]


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for entry in value.values() for text in strings(entry)]
    if isinstance(value, list):
        return [text for entry in value for text in strings(entry)]
    return [value] if isinstance(value, str) else []


DOCUMENT = Path(__file__).parents[2] / "docs" / "guard.md"


def test_the_document_names_every_policy_and_no_other() -> None:
    names = set(re.findall(r"`(kaishare-guard-[a-z-]+)`", DOCUMENT.read_text()))
    assert names == {name for name, item in named(GUARD).items() if item["kind"].endswith("Policy")}
    assert f"{QUEUES}=" in DOCUMENT.read_text()


def test_the_documents_overlay_leaves_one_namespace_out(tmp_path: Path) -> None:
    shutil.copytree(GUARD, tmp_path / "kaishare" / "deploy" / "guard")
    blocks = re.findall(r"(?:^(?:    .*)?\n)+", DOCUMENT.read_text(), re.MULTILINE)
    [overlay] = [textwrap.dedent(block) for block in blocks if "resources: [" in block]
    (tmp_path / "kustomization.yaml").write_text(overlay)
    overlaid, plain = named(tmp_path), named(GUARD / "deny")
    for name, item in plain.items():
        if name.endswith("-vclusters"):
            selector = overlaid[name]["spec"]["matchResources"].pop("namespaceSelector")
            assert selector["matchExpressions"][0]["values"] == ["vcluster-team-b"]
        assert overlaid[name] == item
