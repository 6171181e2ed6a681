"""`explain --server` on the real API server: what refuses a pod, and who is named."""

import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest

from console.explain.explainer import ServerAnswer
from tests.support.administrator import Administrator
from tests.support.cluster_webhook import (
    bare_pod,
    ensure_namespaces,
)
from tests.support.server_answers import (
    ADMISSION,
    NAMESPACES,
    PLAIN,
    Json,
    ask,
    created,
    limit_range,
)
from tests.support.waiting import until


@pytest.fixture
async def namespaces(admin: Administrator) -> None:
    """Create the namespaces of these tests."""
    await ensure_namespaces(admin.client, *NAMESPACES)


async def test_a_quota_refuses(admin: Administrator, namespaces: None) -> None:
    hard = {"requests.nvidia.com/gpu": "1"}
    quota = {"kind": "ResourceQuota", "metadata": {"name": "gpu-quota"}, "spec": {"hard": hard}}
    path = await created(admin, f"/api/v1/namespaces/{PLAIN}/resourcequotas", quota)
    try:
        # The controller that counts does not run here.
        status = {"status": {"hard": hard, "used": {"requests.nvidia.com/gpu": "1"}}}
        await admin.merge(f"{path}/status", status)

        async def is_refused() -> ServerAnswer | None:
            answer = await ask(admin.client, bare_pod("p"), namespace=PLAIN)
            return answer if answer.is_admitted is False else None

        answer = await until(is_refused, "the quota is known")
    finally:
        await admin.delete(path)
    assert answer.refused_by == "quota gpu-quota"
    assert answer.refusal == (
        'pods "p" is forbidden: exceeded quota: gpu-quota, requested: requests.nvidia.com/gpu=1,'
        " used: requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1"
    )
    assert not answer.differences


async def test_pod_security_refuses_and_warns(admin: Administrator) -> None:
    level = "pod-security.kubernetes.io"
    name = "asked-secured"
    labels = {f"{level}/enforce": "baseline", f"{level}/warn": "restricted"}
    await ensure_namespaces(admin.client, {"kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    pod = bare_pod("p")
    answer = await ask(admin.client, pod, namespace=name)
    assert answer.is_admitted
    (warning,) = answer.warnings
    assert warning.startswith(
        'would violate PodSecurity "restricted:latest": allowPrivilegeEscalation != false'
    )
    assert warning.endswith('seccompProfile.type to "RuntimeDefault" or "Localhost")'), "it is whole"
    pod["spec"]["hostNetwork"] = True
    answer = await ask(admin.client, pod, namespace=name)
    assert (answer.is_admitted, answer.refused_by) == (False, "Pod Security baseline")
    assert answer.refusal.endswith(
        'violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)'
    )


async def test_a_limit_range_refuses(admin: Administrator, namespaces: None) -> None:
    item = limit_range("at-most", max={"cpu": "1"}, maxLimitRequestRatio={"memory": "1"})
    path = await created(admin, f"/api/v1/namespaces/{PLAIN}/limitranges", item)
    try:
        for resources, words in (
            ({"limits": {"cpu": "2"}}, "maximum cpu usage per Container is 1, but limit is 2"),
            (
                {"limits": {"cpu": "1", "memory": "2Gi"}, "requests": {"memory": "1Gi"}},
                "memory max limit to request ratio per Container is 1, but provided ratio is 2.000000",
            ),
        ):
            pod = bare_pod("p", gpus=0)
            pod["spec"]["containers"][0]["resources"] = resources

            async def refusal(pod: Json = pod) -> ServerAnswer | None:
                answer = await ask(admin.client, pod, namespace=PLAIN)
                return answer if answer.is_admitted is False else None

            answer = await until(refusal, "the LimitRange is known")
            assert answer.refused_by == "a LimitRange"
            assert words in answer.refusal
    finally:
        await admin.delete(path)


@contextlib.asynccontextmanager
async def admission_policy(admin: Administrator, name: str, actions: Sequence[str]) -> AsyncIterator[None]:
    """Refuse every pod of the plain namespace, or warn of it, by a ValidatingAdmissionPolicy."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    chosen = {"matchLabels": {"kubernetes.io/metadata.name": PLAIN}}
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": chosen},
        "validations": [{"expression": "false", "message": 'no "pods", please'}],
    }
    version = "admissionregistration.k8s.io/v1"
    policy = {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }
    binding = {
        "apiVersion": version,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": f"{name}-binding"},
        "spec": {"policyName": name, "validationActions": list(actions)},
    }
    paths = [
        await created(admin, f"{ADMISSION}/validatingadmissionpolicies", policy),
        await created(admin, f"{ADMISSION}/validatingadmissionpolicybindings", binding),
    ]
    try:
        yield
    finally:
        for path in reversed(paths):
            await admin.delete(path)

        async def is_gone() -> bool:
            answer = await ask(admin.client, bare_pod("p"), namespace=PLAIN)
            return bool(answer.is_admitted and not answer.warnings)

        await until(is_gone, "the policy has no effect any more")


@pytest.mark.parametrize("action", ["Deny", "Warn"])
async def test_an_admission_policy_refuses_or_warns(
    admin: Administrator, namespaces: None, action: str
) -> None:
    name = f"asked-{action.lower()}"
    async with admission_policy(admin, name, [action]):

        async def answered() -> ServerAnswer | None:
            answer = await ask(admin.client, bare_pod("p"), namespace=PLAIN)
            return answer if answer.refusal or answer.warnings else None

        answer = await until(answered, "the policy takes effect")
    message = f"ValidatingAdmissionPolicy '{name}' with binding '{name}-binding'"
    if action == "Deny":
        assert (answer.is_admitted, answer.refused_by) == (False, f"ValidatingAdmissionPolicy {name}")
        assert answer.refusal == f'pods "p" is forbidden: {message} denied request: no "pods", please'
    else:
        assert answer.is_admitted
        assert answer.warnings == (f'Validation failed for {message}: no "pods", please',)


# --- the guard, on for the rest of the file ----------------------------------------------------------------
