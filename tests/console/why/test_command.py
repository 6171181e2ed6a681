"""The command `why`: its exit statuses, its output, and its errors in one line."""

import asyncio
import json

import pytest

from tests.console.why.test_reader import FAULTS
from tests.support.api_server import ObjectServer
from tests.support.forked_python import EndedProgram, run_forked, without_cluster
from tests.support.why_cluster import NAME, TEAM, cluster, make, make_event, make_pod


def run_why(*arguments: str, **settings: str) -> EndedProgram:
    return run_forked("-m", "console", "why", *arguments, environment=without_cluster(**settings))


async def why(server: ObjectServer, *arguments: str) -> EndedProgram:
    """Run the command in the namespace of the context, which is `team`."""
    config = json.loads(server.kubeconfig.read_text())
    config["contexts"][0]["context"]["namespace"] = TEAM
    path = server.folder / "of-team"
    path.write_text(json.dumps(config))
    ended = await asyncio.to_thread(run_why, *arguments, KUBECONFIG=str(path))
    assert "Traceback" not in ended.err
    return ended


async def test_the_namespace_is_that_of_the_option_first(server: ObjectServer) -> None:
    server.add(make("Namespace", "other", ""), make_pod("alone", "other", message=""))
    assert (await why(server, "alone", "-n", "other")).status == 1
    ended = await why(server, "alone")
    assert (ended.status, ended.out) == (2, "")


async def test_a_pod_that_is_gone_is_status_2_and_its_events_are_an_answer(server: ObjectServer) -> None:
    server.add(make("Namespace", TEAM, ""))
    line = f"kaishare: Pod gone does not exist in namespace {TEAM}, and no Event tells of it\n"
    ended = await why(server, "gone")
    assert (ended.status, ended.out, ended.err) == (2, "", line)
    server.forbidden = lambda path: path.endswith("/events")
    assert (await why(server, "gone")).err == line.replace(
        "no Event tells of it", "not all Events could be read"
    )
    server.forbidden = lambda _: False
    message = f"Pod {TEAM}/gone was preempted by higher priority workload {TEAM}/pg-b"
    group = "pg-gone-11111111-2222-4333-8444-555555555555"
    server.add(make_event(kind="PodGroup", about=group, reason="Evict", message=message))
    ended = await why(server, "gone")
    assert (ended.status, ended.err) == (2, "")
    assert ended.out.startswith("No pod: KAI evicted the pod")


@pytest.mark.parametrize("fault", ["failed", "no JSON", "cut", "forbidden", "gone", "nothing"])
@pytest.mark.parametrize("target", [NAME, "deploy/web"])
async def test_an_error_is_one_line(server: ObjectServer, fault: str, target: str) -> None:
    server.add(*cluster())
    server.refusals = {"/pods": FAULTS[fault]}
    ended = await why(server, target)
    assert (ended.status, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert ended.err.startswith("kaishare: ")
