"""KAI's version and sharing mode, by its pods."""

import pytest

from console.doctor.agent_cluster import inside_finding, sharing_finding, version_finding
from console.doctor.check_results import State
from kai.installation import Installation, ProgramContainer, ProgramPod, ProgramSpec
from kai.releases import Version

VERSION, SHARING = "KAI's version", "KAI's GPU sharing"
PREFIX = "example.invalid/kai-scheduler"


def pod(image: str | None, *args: str, command: list[str] | None = None) -> ProgramPod:
    return ProgramPod(
        spec=ProgramSpec(containers=[ProgramContainer(image=image, args=list(args), command=command)])
    )


def results(*pods: ProgramPod, configured: str = "") -> dict[str, tuple[State, str]]:
    installed = Installation.seen_in(pods)
    version = version_finding(installed, Version.parse(configured) if configured else None)
    findings = (version, sharing_finding(installed))
    return {finding.check: (finding.state, finding.what) for finding in findings}


ON = "--gpu-sharing-enabled=true"


def admission(*args: str, tag: str = "v0.13.4") -> ProgramPod:
    return pod(f"{PREFIX}/admission:{tag}", "--scheduler-name", "kai-scheduler", *args)


@pytest.mark.parametrize(
    ("pods", "configured", "state", "what"),
    [
        ((admission(), pod(f"{PREFIX}/scheduler:v0.13.4")), "", State.OK, "v0.13.4"),
        ((admission(tag="v0.13.4@sha256:" + "a" * 64),), "0.13.4", State.OK, "v0.13.4"),
        ((pod("binder:0.9.8"),), "", State.OK, "v0.9.8"),
        ((pod("example.invalid:5000/binder:0.9.8"),), "", State.OK, "v0.9.8"),
        ((admission(),), "0.9.8", State.PROBLEM, "v0.13.4, but --kai-version is v0.9.8"),
        ((pod(f"{PREFIX}/binder:v0.7.11"),), "", State.PROBLEM, "v0.7.11, which counts GPU memory in units of 10^6"),
        ((pod(f"{PREFIX}/binder:v0.7.11"),), "0.7.11", State.OK, "v0.7.11"),
        ((admission(), pod(f"{PREFIX}/binder:v0.9.8")), "", State.PROBLEM, "v0.9.8 and v0.13.4 are installed together"),
        ((admission(tag="latest"),), "", State.UNKNOWN, f"version not found in image tags: {PREFIX}/admission:latest"),
        ((pod("prometheus:v3.1.0"),), "", State.UNKNOWN, "no KAI pods found in namespace kai-scheduler"),
        ((pod(None), pod("admission"), ProgramPod(spec=ProgramSpec())), "", State.UNKNOWN, "no KAI pods found in namespace kai-scheduler"),
        ((), "", State.UNKNOWN, "no KAI pods found in namespace kai-scheduler"),
    ],
)  # fmt: skip
def test_the_version(pods: tuple[ProgramPod, ...], configured: str, state: State, what: str) -> None:
    result = results(*pods, configured=configured)[VERSION]
    assert result[0] is state
    assert result[1].startswith(what)


@pytest.mark.parametrize(
    ("pods", "state", "what"),
    [
        ((admission(ON),), State.OK, "on, without memory limits (NonMemoryEnforced)"),
        ((admission("--gpu-sharing-enabled"),), State.OK, "on, without memory limits"),
        ((admission(ON, "--hami-core-enabled=true"),), State.OK, "on, with limits enforced by HAMi-core (HamiCore)"),
        ((admission(ON, "--hami-core-enabled=false"),), State.OK, "on, without memory limits"),
        ((admission(),), State.PROBLEM, "off: KAI refuses every pod with a share"),
        ((admission("--gpu-sharing-enabled=false"),), State.PROBLEM, "off"),
        ((pod(f"{PREFIX}/binder:v0.7.11", ON),), State.OK, "on, without memory limits"),
        ((pod(f"{PREFIX}/binder:v0.7.11", command=["/workspace/app", ON]),), State.OK, "on, without memory limits"),
        ((admission(), pod(f"{PREFIX}/binder:v0.13.4", ON)), State.PROBLEM, "off"),
        ((pod(f"{PREFIX}/scheduler:v0.13.4"),), State.UNKNOWN, "no pod of KAI's admission found in kai-scheduler"),
        ((), State.UNKNOWN, "no pod of KAI's admission found in kai-scheduler"),
    ],
)  # fmt: skip
def test_the_sharing_mode(pods: tuple[ProgramPod, ...], state: State, what: str) -> None:
    result = results(*pods)[SHARING]
    assert result[0] is state
    assert result[1].startswith(what)


@pytest.mark.parametrize(
    ("is_served", "state"), [(True, State.WARNING), (False, State.OK), (None, State.UNKNOWN)]
)
def test_pods_that_a_tenant_can_forge_are_no_problem_of_the_host(
    is_served: bool | None, state: State
) -> None:
    finding = inside_finding({"red in team-b": "team-b/x"}, is_served=is_served)
    assert finding.state is state
    assert "red in team-b" in finding.what
    assert "uninstall" not in finding.advice
    if is_served:
        assert "pod team-b/x" in finding.what
        assert finding.advice.startswith("ask the owner of the pod first")
