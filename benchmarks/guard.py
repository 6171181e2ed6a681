"""Time of requests with the guard, beside requests without one.

The guard is on a real kube-apiserver, in one of two namespaces. Requests alternate between these, and are dry
runs. Needs KUBEBUILDER_ASSETS: a folder with etcd, kube-apiserver, helm. Run: `python -m benchmarks.guard`.
With `--against FILE`, another guard as `helm template` prints it is on the other namespace.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.plane import on_a_control_plane
from tests.support import yaml_text
from tests.support.control_plane import ControlPlane
from tests.support.guard import POD_GROUPER, define_pod_groups, rendered
from tests.support.guard_pod_groups import RUNNING, pod_group
from tests.support.guard_pod_groups import count as count_pods
from tests.support.kube_user import Answer, Asker, where

MOST_MS: Final = 50.0
"""A request may take this much longer than without a guard."""
PLACES: Final = ("other", "this")
LARGE: Final = 1000
Item = dict[str, Any]


def bound_to(place: str, objects: list[Item]) -> list[Item]:
    """Return the part of a guard for enforced namespaces, for the namespace `place` only."""
    made = [item for item in objects if not item["metadata"]["name"].endswith("-vclusters")]
    for item in made:
        item["metadata"]["name"] += f"-{place}"
        if item["kind"].endswith("Binding"):
            item["spec"]["policyName"] += f"-{place}"
            item["spec"]["matchResources"]["namespaceSelector"] = {
                "matchLabels": {"kubernetes.io/metadata.name": place}
            }
    return made


def keys(count: int) -> dict[str, str]:
    """Return labels or annotations of a realistic length."""
    return {f"example.com/some-key-of-a-user-{number}": "x" for number in range(count)}


def item(kind: str, place: str, count: int, **more: Any) -> Item:
    """Build an object with this many labels and annotations."""
    api = {"Deployment": "apps/v1"}.get(kind, "v1")
    metadata = {"name": f"measured-{count}", "namespace": place}
    return {
        "apiVersion": api,
        "kind": kind,
        "metadata": {**metadata, "labels": keys(count) | more.pop("labels", {}), "annotations": keys(count)},
        **more,
    }


def pod_spec() -> Item:
    """Return the spec of a pod with one container."""
    return {"containers": [{"name": "main", "image": "example.invalid/image"}]}


def objects(place: str) -> list[Item]:
    """Return the objects that are stored, and then changed."""
    queue = {"kai.scheduler/queue": "team"}
    made = []
    for count in (3, LARGE - 2):
        made.append(item("Pod", place, count, labels=queue, spec=pod_spec()))
        template = {"metadata": {"labels": {"app": "a"}}, "spec": pod_spec()}
        spec = {"selector": {"matchLabels": {"app": "a"}}, "template": template}
        made.append(item("Deployment", place, count, spec=spec))
        made.append(item("ConfigMap", place, count, data={"a": "b"}))
        made.append(
            pod_group(
                f"measured-{count}",
                namespace=place,
                queue="team",
                labels=keys(count),
                annotations=keys(count),
            )
        )
    return made


CHANGED_CONTENT: Final[dict[str, Item]] = {
    "Deployment": {"spec": {"replicas": 3}},
    "ConfigMap": {"data": {"a": "c"}},
    "PodGroup": {"spec": {"minMember": 2}},
    "Pod": {"spec": {"activeDeadlineSeconds": 100}},
}
MEASURED: Final[dict[str, Callable[[Item], tuple[str, Item] | None]]] = {
    "created": lambda stored: (
        "POST",
        {**stored, "metadata": {**stored["metadata"], "name": f"new-{name_end(stored)}"}},
    ),
    "labelled": lambda _: ("PATCH", {"metadata": {"labels": {"app": "b"}}}),
    "relabelled": lambda stored: (
        ("PATCH", {"metadata": {"labels": dict.fromkeys(keys(LARGE - 2), "y"), "annotations": {"a": "b"}}})
        if len(stored["metadata"]["labels"]) >= LARGE - 2
        else None
    ),
    "content changed": lambda stored: ("PATCH", CHANGED_CONTENT[stored["kind"]]),
}
"""What is measured: the method and body of a request for a stored object, or None."""


def name_end(stored: Item) -> str:
    """Return the part of a PodGroup's name that the guard reads: the UID of its owner."""
    return str(stored["metadata"].get("ownerReferences", [{"uid": "a"}])[0]["uid"])


async def measure(other: list[Item], count: int, plane: ControlPlane) -> int:
    """Print the times; return 1 if a kind of request takes too long under this guard."""
    async with Asker(plane) as asker:
        await define_pod_groups(asker)
        for place, guard in zip(PLACES, (other, rendered()), strict=True):
            labels = {"kai.scheduler/queue": "team", "kaishare.dev/mode": "enforce"}
            await asker.apply(
                {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place, "labels": labels}}
            )
            for stored in objects(place):
                answer = await asker.create(stored)
                if answer.status != 201:
                    raise SystemExit(f"{stored['kind']} is not created: {answer.message}")
                if stored["kind"] == "PodGroup":
                    await count_pods(asker, where(stored), RUNNING)
            for made in bound_to(place, guard):
                await asker.apply(made)
        await refusing(asker, PLACES if other else PLACES[1:])
        print(f"{'median of ' + str(count) + ' dry runs':44} {'other ms':>9} {'this ms':>9} {'more':>6}")
        slow = 0
        for title, request in MEASURED.items():
            for mine, theirs in zip(objects("this"), objects("other"), strict=True):
                if request(mine) is None:
                    continue
                times = await alternate(asker, [(theirs, request(theirs)), (mine, request(mine))], count)
                before, now = map(statistics.median, times)
                name = f"{mine['kind']}, {len(mine['metadata']['labels'])} labels, {title}"
                print(f"{name:44} {before:9.2f} {now:9.2f} {now - before:6.2f}", flush=True)
                slow += now - before > MOST_MS
        await at_the_limit(asker)
    print(f"{slow} kinds of request take more than {MOST_MS:g} ms longer")
    return int(slow > 0)


async def refusing(asker: Asker, places: Sequence[str]) -> None:
    """Wait until a guard refuses a change of a pod's share in these namespaces."""
    change = {"metadata": {"annotations": {"gpu-fraction": "0.5"}}}
    for place in places:
        path = f"/api/v1/namespaces/{place}/pods/measured-3"
        ends = time.monotonic() + 20
        while (await asker.merge(path, change, dry_run=True)).status != 403:
            if time.monotonic() > ends:
                raise SystemExit(f"the guard of namespace {place} does not refuse")
            await asyncio.sleep(0.1)


async def alternate(
    asker: Asker, requests: list[tuple[Item, tuple[str, Item] | None]], count: int
) -> list[list[float]]:
    """Send the requests in turn, and return the milliseconds of each."""
    times: list[list[float]] = [[] for _ in requests]
    for turn in range(count + 3):
        for spent, (stored, request) in zip(times, requests, strict=True):
            assert request is not None
            began = time.perf_counter()
            answer = await send(asker, stored, *request)
            if answer.status >= 300:
                raise SystemExit(f"{stored['kind']} is refused: {answer.message}")
            if turn >= 3:
                spent.append(1000 * (time.perf_counter() - began))
    return times


async def send(asker: Asker, stored: Item, method: str, body: Item) -> Answer:
    """Send a dry run, as KAI's pod-grouper for a PodGroup."""
    user = POD_GROUPER if stored["kind"] == "PodGroup" else "alice"
    if method == "POST":
        return await asker.create(body, dry_run=True, user=user)
    return await asker.merge(where(stored), body, dry_run=True, user=user)


async def at_the_limit(asker: Asker) -> None:
    """Replace 1000 labels and annotations by keys of KAI: the costliest request that the guard reads."""
    own = {f"kai.scheduler/key-{number:04}-{'k' * 54}": "x" for number in range(LARGE)}
    change: Item = {
        "metadata": {
            "labels": {**dict.fromkeys(keys(LARGE)), "kai.scheduler/queue": None, **own},
            "annotations": {**dict.fromkeys(keys(LARGE)), **own},
        }
    }
    began = time.perf_counter()
    answer = await asker.merge(f"/api/v1/namespaces/this/pods/measured-{LARGE - 2}", change, dry_run=True)
    took = 1000 * (time.perf_counter() - began)
    print(f"1000 labels and annotations become KAI's: {answer.status} after {took:.0f} ms")
    print(answer.message[:200])
    if answer.status != 403 or "only KAI" not in answer.message:
        raise SystemExit("the request is not refused for its keys")


def main() -> None:
    """Parse the options and run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="objects of another guard, on deny; without it, none")
    parser.add_argument("--count", type=int, default=100, help="requests of each kind")
    options = parser.parse_args()
    other: list[Item] = []
    if options.against:
        other = [item for item in yaml_text.load_all(options.against.read_text()) if item]
    on_a_control_plane(parser, lambda plane, _: measure(other, options.count, plane))


if __name__ == "__main__":
    main()
