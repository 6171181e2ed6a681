"""Time of creating a pod without admission, under the admission policies, the webhook, and a webhook in Go.

All four are on one real kube-apiserver at once, each for a namespace of its own. A round creates one pod in
each namespace by dry run, in another order; the differences are those within a round. The pods of one
template are alike, as those of a Deployment are for the webhook. The webhook in Go
(benchmarks/go_webhook) does the least that one can do for such a pod. Needs KUBEBUILDER_ASSETS (a folder with
etcd and kube-apiserver) and go. Run: `python -m benchmarks.admission_forms`.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.go_programs import build
from benchmarks.plane import on_a_control_plane
from console.render.policy_manifests import MUTATING, objects_of
from kube.client import KubeClient
from tests.support.cluster_webhook import (
    Canary,
    ca_of,
    configured,
    ensure_namespaces,
    from_cluster,
    managed_namespace,
    serving,
)
from tests.support.control_plane import ControlPlane
from tests.support.pods import GPU
from tests.support.registration import UrlTarget, mutating_configuration
from webhook.policy.decision_settings import DecisionSettings

Item = dict[str, Any]
NONE, POLICY, WEBHOOK, GO = FORMS = ("none", "policy", "webhook", "go")
_API: Final = "/apis/admissionregistration.k8s.io/v1"


def pod(containers: int, entries: int) -> Item:
    """Return a pod with a GPU in its first container."""
    keys = {f"example.com/some-key-{number}": "some-value" for number in range(entries)}
    made = [
        {
            "name": f"c{index}",
            "image": "example.invalid/image",
            "env": [{"name": f"SOME_VARIABLE_{number}", "value": "some value"} for number in range(8)],
            "resources": {
                "requests": {"cpu": "1", "memory": "1Gi"},
                "limits": {"memory": "1Gi", **({GPU: "1"} if index == 0 else {})},
            },
        }
        for index in range(containers)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "measured", "labels": keys, "annotations": keys},
        "spec": {"containers": made},
    }


PODS: Final = {"1 container, 5 labels": pod(1, 5), "50 containers, 200 labels": pod(50, 200)}
_OF_A_TEMPLATE, _DIFFERENT = "pods of one template", "each pod with a label of its own"


@contextmanager
def go_webhook(folder: Path) -> Iterator[UrlTarget]:
    """Build and run the webhook in Go."""
    program = build("go_webhook", folder)
    files = [f"-cert={folder / 'tls' / 'tls.crt'}", f"-key={folder / 'tls' / 'tls.key'}"]
    process = subprocess.Popen([program, *files], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield UrlTarget(f"https://{process.stdout.readline().strip()}")
    finally:
        process.kill()
        process.wait()


def only(name: str) -> Item:
    """Return a namespaceSelector for one namespace."""
    return {"matchLabels": {"kubernetes.io/metadata.name": name}}


@asynccontextmanager
async def policy(client: KubeClient) -> AsyncIterator[None]:
    """Install the MutatingAdmissionPolicy for its namespace."""
    made, binding = objects_of(MUTATING, DecisionSettings())
    made["spec"]["matchConstraints"]["namespaceSelector"] |= only(POLICY)
    plurals = ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings")
    for item, plural in zip((made, binding), plurals, strict=True):
        await client.request("POST", f"{_API}/{plural}", body=json.dumps(item).encode())
    yield


def configuration(name: str, target: UrlTarget, folder: Path) -> Item:
    """Return a configuration of kaishare for one namespace."""
    made = mutating_configuration(target, ca_bundle=ca_of(folder), name=f"measured-{name}")
    made["webhooks"][0]["namespaceSelector"] |= only(name)
    return made


async def measure(plane: ControlPlane, folder: Path, rounds: int) -> int:
    """Measure, and print a table; return 0."""
    async with KubeClient(plane.access()) as client:
        await ensure_namespaces(client, *(managed_namespace(name, gpu_fraction="0.5") for name in FORMS))
        async with serving(folder / "log", *from_cluster(plane, folder), is_forked=False) as webhook:
            with go_webhook(folder) as target:
                configurations = [
                    configuration(WEBHOOK, webhook.target, folder),
                    configuration(GO, target, folder),
                ]
                async with configured(client, *configurations), policy(client):
                    for name in FORMS[1:]:
                        await Canary(client, name).until_mutated()
                    for title, item in PODS.items():
                        for likeness in (_OF_A_TEMPLATE, _DIFFERENT):
                            taken = await times(client, item, rounds, are_alike=likeness == _OF_A_TEMPLATE)
                            report(f"{title}, {likeness}", taken, rounds)
    return 0


async def times(client: KubeClient, item: Item, rounds: int, *, are_alike: bool) -> dict[str, list[float]]:
    """Return milliseconds of creations by form, round by round.

    Args:
        client: for the API server.
        item: the pod.
        rounds: number of pods for each form.
        are_alike: whether the pods are of one template; if not, each one has a label of its own.
    """
    chance = random.Random(1)
    taken: dict[str, list[float]] = {name: [] for name in FORMS}
    for number in range(rounds + rounds // 10):
        if number == 0 or not are_alike:
            item["metadata"]["labels"]["example.com/of-this-pod"] = f"pod-{number}"
            body = json.dumps(item).encode()
        for name in chance.sample(FORMS, len(FORMS)):
            started = time.perf_counter()
            answer = await client.request(
                "POST", f"/api/v1/namespaces/{name}/pods", params={"dryRun": "All"}, body=body
            )
            elapsed = (time.perf_counter() - started) * 1000
            assert (b'"gpu-fraction":"0.5"' in answer) is (name != NONE)
            if number >= rounds // 10:  # the first ones warm up
                taken[name].append(elapsed)
    return taken


def report(title: str, taken: dict[str, list[float]], rounds: int) -> None:
    """Print the rows of one pod: p50, p99, and the difference to no admission within a round."""
    sys.stdout.write(
        f"{title}, {rounds} rounds\n{'':10}  p50 ms   p99 ms    added: median (middle half) ms\n"
    )
    added: dict[str, float] = {}
    for name, values in taken.items():
        cuts = statistics.quantiles(values, n=100)
        pairs = [value - base for value, base in zip(values, taken[NONE], strict=True)]
        low, added[name], high = statistics.quantiles(pairs, n=4) if name != NONE else (0.0, 0.0, 0.0)
        difference = "" if name == NONE else f"{added[name]:10.2f} ({low:.2f} to {high:.2f})"
        sys.stdout.write(f"{name:10} {cuts[49]:7.2f}  {cuts[98]:7.2f}   {difference}\n")
    sys.stdout.write(f"the webhook adds {added[WEBHOOK] / added[GO]:.2f} times as much as the one in Go\n")


def main() -> None:
    """Measure, and exit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission_forms", description=__doc__)
    parser.add_argument("--rounds", type=int, default=500, help="pods for each form (default %(default)s)")
    options = parser.parse_args()
    on_a_control_plane(parser, lambda plane, folder: measure(plane, folder, options.rounds))


if __name__ == "__main__":
    main()
