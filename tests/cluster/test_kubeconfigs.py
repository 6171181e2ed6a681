"""`kaishare policies` with right, odd and wrong kubeconfigs on a real API server, beside a real kubectl."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from console.cli import main
from kube.client import KubeClient
from kube.kubeconfig import KubeConfig
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.kubeconfigs import CASES, SECRET, Base, Case, write
from tests.support.markers import sampled


@pytest.fixture
def base(plane: ControlPlane, tmp_path: Path) -> Base:
    return Base(
        server=f"https://127.0.0.1:{plane.port}",
        ca_file=plane.folder / "ca.crt",
        token=ADMIN_TOKEN,
        folder=tmp_path,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_kubeconfig_works_or_is_refused_with_one_line_without_secrets(
    name: str, base: Base, capfd: pytest.CaptureFixture[str]
) -> None:
    case = CASES[name]
    status = main(["policies", "--kubeconfig", str(write(case, base)), *case.options])
    captured = capfd.readouterr()
    if not case.line:
        assert (status, captured.err.partition("kaishare: ")[1]) in ((0, ""), (1, "")), captured.err
        return
    assert status == 2, captured.out
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("kaishare: ")
    assert case.line in lines[0]
    assert SECRET not in lines[0]
    assert ADMIN_TOKEN not in lines[0]


def kubectl(base: Base, case: Case, *arguments: str) -> "subprocess.CompletedProcess[str]":
    program = shutil.which("kubectl")
    if program is None:
        pytest.skip("NOT VERIFIED: kubectl is not installed")
    return subprocess.run(
        [program, "--kubeconfig", str(write(case, base)), *case.options, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(base.folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", sampled(CASES, 4))
def test_kubectl_has_the_same_outcome(name: str, base: Base) -> None:
    done = kubectl(base, CASES[name], "get", "namespaces", "-o", "name")
    assert (done.returncode == 0) is (not CASES[name].line), done.stderr


EVERYTHING = Case(
    user={
        "as": "jürgen müller",
        "as-uid": "1234",
        "as-groups": ["second", "system:masters", "grüße"],
        "as-user-extra": {"Example.com/Reason %": ["a", "b"], "Ünderscore_x": ["c d"], "empty": []},
    }
)


async def test_the_api_server_sees_the_same_user_as_from_kubectl(base: Base) -> None:
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    async with KubeClient(await KubeConfig.load(str(write(EVERYTHING, base)))) as client:
        answer = json.loads(await client.request("POST", path, body=json.dumps(review).encode()))
    user = answer["status"]["userInfo"]
    assert (user["username"], user["uid"]) == ("jürgen müller", "1234")
    assert user["groups"] == ["second", "system:masters", "grüße", "system:authenticated"]
    assert user["extra"]["example.com/reason %"] == ["a", "b"]
    whoami = kubectl(base, EVERYTHING, "auth", "whoami", "-o", "json")
    assert json.loads(whoami.stdout)["status"]["userInfo"] == user, whoami.stderr
