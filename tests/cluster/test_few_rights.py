"""Every command of `kaishare` on a real API server with few rights.

Accounts with the role `view` or `edit` of one namespace get an answer, or one line about what they may not see.
An account with exactly the rights of the requests that an administrator's command sends gets the same answer,
and the table of rights in docs/commands.md has these rights.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import yaml

from kai.releases import Version
from kube.client import KubeClient
from service.text import width
from service.version import version
from tests.cluster.test_console import served_status
from tests.support.administrator import Administrator
from tests.support.agent_fleet import NAMESPACE as AGENTS
from tests.support.agent_fleet import agent_fleet, agent_pod, gpu_node, pod_name, pod_status
from tests.support.cluster_webhook import bare_pod, installed, managed_namespace
from tests.support.control_plane import ADMIN_TOKEN, ControlPlane
from tests.support.doc_blocks import ROOT
from tests.support.doc_tables import table_under
from tests.support.forked_python import EndedProgram, run_forked, without_cluster
from tests.support.helm_chart import NAMESPACE as RELEASE
from tests.support.helm_chart import rendered
from tests.support.helm_release import token_of
from tests.support.hostile_api_server import HostileApiServer, hostile_api_server
from tests.support.pod_network import pod_network
from tests.support.published_settings import settings_object
from tests.support.used_rights import UsedRight, binding, roles, until_aggregated, used_rights
from webhook.policy.decision_settings import DecisionSettings
from webhook.settings.published_settings import NAME as SETTINGS

TEAM, OTHER, NOWHERE = "few-team", "few-other", "few-nowhere"
HALF = managed_namespace(TEAM, gpu_fraction="0.5")
QUARTER = managed_namespace(OTHER, gpu_fraction="0.25")
ACCOUNTS = "few-accounts"
"""The namespace of the service accounts, which have no rights in it."""
ROLES = ("view", "edit")
MANIFESTS = {
    "pod.yaml": bare_pod("mine"),
    "elsewhere.yaml": bare_pod("theirs", namespace=OTHER),
    "nowhere.yaml": bare_pod("lost", namespace=NOWHERE),
}


@pytest.fixture(scope="module")
def plane(own_proxied_plane: ControlPlane) -> ControlPlane:
    return own_proxied_plane


@dataclass(kw_only=True)
class Site:
    """The cluster with kaishare in it, a proxy that records requests, and a place to run commands."""

    admin: Administrator
    proxy: HostileApiServer
    folder: Path
    """Folder of the manifests and kubeconfigs."""

    async def account(self, name: str) -> str:
        """Create a service account; return a token of it."""
        await self.admin.create({"kind": "ServiceAccount", "metadata": {"name": name, "namespace": ACCOUNTS}})
        return await token_of(self.admin.client, name, ACCOUNTS)

    async def kaishare(self, token: str, command: str) -> EndedProgram:
        """Run a command, whose kubeconfig has the context's namespace `few-team`."""
        config = json.loads(self.proxy.kubeconfig(token).read_text())
        config["contexts"][0]["context"]["namespace"] = TEAM
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(config))
        environment = without_cluster(KUBECONFIG=str(path), COLUMNS="300")
        return await asyncio.to_thread(
            run_forked, "-m", "console", *command.split(), folder=self.folder, environment=environment
        )


@contextlib.asynccontextmanager
async def site(plane: ControlPlane, folder: Path) -> AsyncIterator[Site]:
    """Put the webhook, its settings, an agent and the workloads of a team into the cluster, which keeps them."""
    for name in ("webhook", "proxy", "files"):
        (folder / name).mkdir()
    for name, manifest in MANIFESTS.items():
        (folder / "files" / name).write_text(yaml.safe_dump(manifest))
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(plane.access()))
        admin = Administrator(client)
        for item in (HALF, QUARTER):
            await admin.ensure(item)
        for name in (RELEASE, AGENTS, ACCOUNTS, "kai-scheduler"):
            await admin.ensure({"kind": "Namespace", "metadata": {"name": name}})
        await publish_settings(admin)
        await admin.post("/api/v1/nodes", gpu_node(0))
        pods = f"/api/v1/namespaces/{AGENTS}/pods"
        await admin.post(pods, agent_pod(0))
        await admin.merge(f"{pods}/{pod_name(0)}/status", {"status": pod_status(0)})
        fleet = await stack.enter_async_context(agent_fleet(1, served_status()))
        await stack.enter_async_context(pod_network(plane.folder / "egress.sock", fleet.addresses))
        await stack.enter_async_context(installed(plane, client, folder / "webhook", HALF))
        template = {"metadata": {"labels": {"app": "web"}}, "spec": bare_pod("")["spec"]}
        spec = {"selector": {"matchLabels": {"app": "web"}}, "template": template}
        web = {"kind": "Deployment", "metadata": {"name": "web", "namespace": TEAM}, "spec": spec}
        await admin.create({"apiVersion": "apps/v1", **web})
        await admin.create(bare_pod("alone", namespace=TEAM))
        proxy = await stack.enter_async_context(hostile_api_server(plane.upstream, folder / "proxy"))
        yield Site(admin=admin, proxy=proxy, folder=folder / "files")


async def publish_settings(admin: Administrator) -> None:
    """Create the chart's ConfigMap, Role and RoleBinding, and write the settings as the webhook does."""
    chart = [item for item in rendered() if item["metadata"]["name"] == SETTINGS]
    assert {item["kind"] for item in chart} == {"ConfigMap", "Role", "RoleBinding"}
    for item in chart:
        await admin.create(item)
    published = settings_object(DecisionSettings(kai_version=Version(0, 13, 0)))
    path = f"/api/v1/namespaces/{RELEASE}/configmaps/{SETTINGS}"
    await admin.merge(path, {"data": published["data"]})


@dataclass(frozen=True, slots=True)
class Expected:
    """The end of a command."""

    status: int
    says: tuple[str, ...]
    """Parts of its output and its errors, with single blanks."""
    is_error: bool = False
    """Whether the only output is one line on standard error."""


def answer(*says: str, status: int = 0) -> Expected:
    return Expected(status, says)


def error(line: str) -> Expected:
    return Expected(2, (f"kaishare: {line}\n",), is_error=True)


USER = "system:serviceaccount:few-accounts:{role}"


def no_list(instead: str) -> Expected:
    return error(f"you may not list namespaces as {USER}: {instead} with your rights")


def no_get(namespace: str) -> Expected:
    return error(
        f"you may not get namespace {namespace}: if it exists, the role view in that namespace is enough"
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A command and its ends with the roles."""

    command: str
    view: Expected
    edit: Expected | None = None
    """None if it ends as with `view`."""

    def expected(self, role: str) -> Expected:
        """Return the end with a role."""
        return self.edit if self.edit is not None and role == "edit" else self.view

    @property
    def has_long_lines(self) -> bool:
        """Whether the output is a document or a script, or names the API server's answer in a table."""
        return bool(re.search(r"-o (json|patch)|--server.* -o table|^completion", self.command))


CHANGED = answer("container main: one whole GPU became gpu-fraction 0.5 by namespace few-team")
NOT_OTHER, NOT_NOWHERE = no_get(OTHER), no_get(NOWHERE)
NO_PODS = f"server: no answer: you may not create pods in namespace {TEAM}"
NO_PODS_THERE = f"server: no answer: you may not create pods in namespace {OTHER}"
UNKNOWN_SETTINGS = (
    "KAI's release is not known: the answer holds for every release; give --kai-version",
    "whether the webhook injects shares is not known: assumed true; give --inject-shares",
    "the excluded namespaces are not known: assumed the default; give --exclude-namespaces",
    "the default mode is not known: assumed default; give --default-mode",
    "the default PriorityClass is not known: assumed none; give --default-priority-class",
)
LIVE = answer(
    "Deployment web, spec.template in namespace few-team changed:",
    "Pod alone in namespace few-team unchanged: changed at its creation (whole-gpu-converted);",
    "2 workloads with 1 pod:",
)
ROW = f"{TEAM} queue-a default 0.5 - - 1/1 0"
OF_TEAM = f"explain --policies cluster -n {TEAM} -f pod.yaml"
SERVER = f"explain --server -n {TEAM} -f pod.yaml"
CASES = [
    Case(OF_TEAM, CHANGED),
    Case(f"{OF_TEAM} -o table", answer(f"Pod/mine pod.yaml:1 {TEAM} changed 0.5 whole-gpu-converted 1 1 pod: 1 changed; 1 with warnings.")),
    Case(f"{OF_TEAM} -o json", answer('"reason": "whole-gpu-converted"')),
    Case(f"explain -n {TEAM} -f pod.yaml", CHANGED),
    Case("explain --policies cluster -f pod.yaml", CHANGED),
    Case(f"explain --policies cluster -n {TEAM} -f pod.yaml -f elsewhere.yaml", NOT_OTHER),
    Case(f"explain --policies cluster -n {NOWHERE} -f pod.yaml", NOT_NOWHERE),
    Case(
        f"{OF_TEAM} --settings-namespace {TEAM}",
        answer(
            f"note: the webhook's settings are not known: ConfigMap kaishare-settings in namespace {TEAM}: it"
            " does not exist; --settings-namespace names another",
            *UNKNOWN_SETTINGS,
        ),
    ),
    Case(
        f"{OF_TEAM} --settings-namespace default",
        answer("ConfigMap kaishare-settings in namespace default: you may not get it;", *UNKNOWN_SETTINGS),
    ),
    Case(f"explain --live -n {TEAM}", LIVE),
    Case("explain --live", LIVE),
    Case(f"explain --live -n {OTHER}", NOT_OTHER),
    Case(f"explain --live -n {NOWHERE}", NOT_NOWHERE),
    Case("explain --live -A", no_list("explain --live -n NAMESPACE explains one namespace")),
    Case(SERVER, answer(*CHANGED.says, NO_PODS, status=2), answer(*CHANGED.says, "server: admitted")),
    Case(
        f"{SERVER} -o json",
        answer('"isAdmitted": null', f"{NO_PODS}\n", status=2),
        answer('"isAdmitted": true'),
    ),
    Case(
        "explain --server -f pod.yaml -f elsewhere.yaml",
        answer(NO_PODS, f"you may not get namespace {OTHER} (policy-unknown)", NO_PODS_THERE, status=2),
        answer("server: admitted", f"you may not get namespace {OTHER} (policy-unknown)", NO_PODS_THERE, status=2),
    ),
    Case(f"policies -n {TEAM}", answer(ROW)),
    Case(f"policies -n {OTHER}", NOT_OTHER),
    Case(f"policies -n {NOWHERE}", NOT_NOWHERE),
    Case("policies", no_list("policies -n NAMESPACE shows one namespace")),
    Case(f"why -n {TEAM} alone", answer("Pending: KAI has said nothing about the pod", status=1)),
    Case("why deploy/web", answer("No pod: ", status=1)),
    Case("why nothing", error(f"Pod nothing does not exist in namespace {TEAM}, and no Event tells of it")),
    Case(f"why -n {OTHER} theirs", error(f"you may not get pods in namespace {OTHER}")),
    Case(f"why -n {NOWHERE} deploy/web", error(f"you may not list pods in namespace {NOWHERE}")),
    Case(
        f"doctor -n {TEAM}",
        answer(
            "ok settings published by the webhook",
            "ok policies all labels are valid",
            f"not tried in {TEAM}: the caller may not create pods there",
            "unknown rights not visible to you: ",
            "no problem",
        ),
        answer(
            f"ok dry run of a pod in {TEAM} the pod gets queue queue-a",
            "problem dry run of a share",  # no KAI runs here
            "unknown rights not visible to you: ",
            status=1,
        ),
    ),
    Case(f"doctor -n {OTHER}", answer("ok settings", "unknown rights not visible to you: ", "no problem")),
    Case("doctor", answer("-> kaishare doctor -n NAMESPACE checks one namespace with your rights", "no problem")),
    Case("doctor --pre", answer("problem rights the caller may not create mutatingwebhookconfigurations", "1 problem", status=1)),
    Case("top --once", error(f"the agents are not visible to you: you may not list pods in {AGENTS} as {USER}")),
    Case("completion bash", answer("_shtab_kaishare")),
    Case("--version", answer(f"kaishare {version()}")),
]  # fmt: skip

RUNS = [(role, each) for role in ROLES for each in CASES if role == "view" or each.edit is not None]
"""Roles with their commands: `view` with all, `edit` with those that end otherwise."""

MAY_INSTALL = [
    UsedRight("", "admissionregistration.k8s.io", f"{kind}webhookconfigurations", "create", "")
    for kind in ("mutating", "validating")
]
"""The rights that `doctor --pre` asks about, and does not use."""
RECORDED = {
    OF_TEAM: "explain --policies cluster",
    "explain --policies cluster -f pod.yaml": "explain --policies cluster",
    "explain --policies cluster -f pod.yaml -f elsewhere.yaml": "explain --policies cluster",
    SERVER: "explain --server",
    f"explain --live -n {TEAM}": "explain --live -n NAMESPACE",
    "explain --live -A": "explain --live -A",
    f"policies -n {TEAM}": "policies -n NAMESPACE",
    "policies": "policies",
    f"doctor -n {TEAM}": "doctor -n NAMESPACE",
    "doctor": "doctor",
    "doctor --pre": "doctor --pre",
    "top --once": "top",
    "why alone": "why",
    "completion bash": "completion",
    "--version": "--version",
}
"""Commands, with their names in the table of the documentation."""
PLACES = {
    RELEASE: "the webhook's namespace",
    AGENTS: "`kaishare-agent`",
    "kai-scheduler": "`kai-scheduler`",
    "": "cluster",
}
"""Namespaces, with their names in the table; the others are those of the team."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What an administrator's command requested, its end for an account with exactly these rights, and what that requested."""

    rights: set[UsedRight]
    administrator: EndedProgram
    account: EndedProgram
    of_account: set[UsedRight]


async def recorded(site: Site, number: int, command: str) -> Recorded:
    """Run a command as an administrator, then as an account with the rights that it used."""
    site.proxy.requests.clear()
    administrator = await site.kaishare(ADMIN_TOKEN, command)
    rights = used_rights(site.proxy.requests)
    site.proxy.requests.clear()
    name = f"exactly-{number}"
    token = await site.account(name)
    reviewed = MAY_INSTALL if command == "doctor --pre" else []
    for item in roles(name, ACCOUNTS, {*rights, *reviewed}):
        await site.admin.create(item)
    account = await site.kaishare(token, command)
    used = used_rights(site.proxy.requests)
    return Recorded(rights=rights, administrator=administrator, account=account, of_account=used)


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The ends of all commands."""

    ends: Mapping[tuple[str, str], EndedProgram]
    """By role and command."""
    recorded: Mapping[str, Recorded]


@pytest.fixture(scope="module")
def results(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Results:
    async def run() -> Results:
        async with site(plane, tmp_path_factory.mktemp("site")) as running:
            ends = {}
            for role in ROLES:
                token = await running.account(role)
                await running.admin.create(binding(role, ACCOUNTS, role=role, kind="ClusterRole", place=TEAM))
                await until_aggregated(running.admin, role)
                for each in (case for case_role, case in RUNS if case_role == role):
                    ends[role, each.command] = await running.kaishare(token, each.command)
            records = {
                command: await recorded(running, number, command) for number, command in enumerate(RECORDED)
            }
            return Results(ends=ends, recorded=records)

    return asyncio.run(run())


def words(text: str) -> str:
    """Return a text on one line with single blanks."""
    return " ".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize(("role", "each"), RUNS, ids=[f"{each.command}-{role}" for role, each in RUNS])
def test_a_role_in_one_namespace_gets_an_answer_or_one_line(results: Results, role: str, each: Case) -> None:
    ended, expected = results.ends[role, each.command], each.expected(role)
    text = ended.out + ended.err
    assert "Traceback" not in text
    assert ended.status == expected.status, text
    if expected.is_error:
        assert (ended.out, ended.err) == ("", expected.says[0].format(role=role))
    else:
        assert [part for part in expected.says if words(part) not in words(text)] == [], text
        long = [] if each.has_long_lines else ended.out.splitlines()
        long += [line for line in ended.err.splitlines() if ": error: " not in line]
        assert [line for line in long if width(line) > 80] == []
    assert re.search("(?i)grant|cluster-admin|clusterrole", text) is None, "no advice for an administrator"


def without_ages(end: EndedProgram) -> EndedProgram:
    """Return an end without the durations in its texts, which grow from one run to the next."""
    out, err = (re.sub(r"\b[0-9]+ (s|min|h)\b", "N s", text) for text in (end.out, end.err))
    return replace(end, out=out, err=err)


@pytest.mark.slow
@pytest.mark.parametrize("command", RECORDED)
def test_no_command_needs_more_rights_than_it_uses(results: Results, command: str) -> None:
    record = results.recorded[command]
    assert record.administrator.status in (0, 1), record.administrator
    assert without_ages(record.account) == without_ages(record.administrator)
    assert record.of_account <= record.rights


def recorded_rights(results: Results) -> set[tuple[str, str, str]]:
    """Return what was recorded, as name of the command, right and place."""
    return {
        (name, doc_name(right), PLACES.get(right.namespace, "the namespace"))
        for command, name in RECORDED.items()
        for right in results.recorded[command].rights
    }


def doc_name(right: UsedRight) -> str:
    """Return a right as the documentation names it: kinds of Kubernetes without their group."""
    is_built_in = "." not in right.group or right.group.endswith(".k8s.io")
    named = f" {right.name}" if right.name == SETTINGS else ""
    return f"{right.verb} {right.resource}{named}" if is_built_in else f"{right}{named}"


def documented_rights() -> set[tuple[str, str, str]]:
    """Return the rows of the table, as name of the command, right and place."""
    documented = set()
    for commands, rights, place in table_under(ROOT / "docs" / "commands.md", "### Rights"):
        verb = ""
        for right in rights.replace("`", "").split(", "):
            words = right.split(" ")
            if words[0] in ("get", "list", "create"):
                verb, *words = words
            for command in re.findall(r"`([^`]+)`", commands):
                documented.add((command, f"{verb} {' '.join(words)}", place))
    return documented


@pytest.mark.slow
def test_the_documented_rights_are_those_that_the_commands_use(results: Results) -> None:
    documented = documented_rights()
    of_ui = {row for row in documented if row[0] == "ui"}
    assert documented - of_ui == recorded_rights(results)
    # `ui` serves until it is interrupted; it reads the agents with the code of `top`.
    assert {row[1:] for row in of_ui} == {row[1:] for row in documented if row[0] == "top"}
