"""Steps of a tenant in a cluster with KAI, from which attacks and ordinary work are put together.

A step acts for the tenant; an effect is a step that returns what came of the ones before. In texts of steps `$name` is the
tenant's namespace and queue, `$other` the rival's. A target is the name of a pod, or KIND/NAME; an owner is the name of a
ConfigMap, or KIND/NAME.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

from tests.support.kai_tenant import Object, Tenant

Step = Callable[[Tenant], Awaitable[Any]]
NONE: Final = "."
"""No effect."""


async def take(steps: Iterable[Step], t: Tenant) -> Any:
    effect = None
    for step in steps:
        effect = await step(t)
    return effect


def filled(t: Tenant, value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("$other", t.other).replace("$name", t.name)
    if isinstance(value, dict):
        return {key: filled(t, inner) for key, inner in value.items()}
    return [filled(t, inner) for inner in value] if isinstance(value, list) else value


def _target(t: Tenant, target: str) -> tuple[str, str]:
    kind, _, name = filled(t, target).rpartition("/")
    return kind or "Pod", name


async def reference_to(t: Tenant, owner: str) -> Object:
    """Return the reference to an owner; a ConfigMap is created first if it does not exist."""
    kind, _, name = owner.rpartition("/")
    if not kind and not await t.get("ConfigMap", name):
        await t.create("ConfigMap", name)
    return await t.reference(kind or "ConfigMap", name)


def pod(name: str, gpus: float = 1, owners: Iterable[str] = (), **template: Any) -> Step:
    async def step(t: Tenant) -> None:
        references = [await reference_to(t, owner) for owner in owners]
        await t.pod(name, gpus, owners=references, **filled(t, template))

    return step


def run(name: str, gpus: float = 1, owners: Iterable[str] = (), seconds: float = 60, **template: Any) -> Step:
    """Create a pod, and wait until it runs."""
    return partial(take, (pod(name, gpus, owners, **template), until_run(name, seconds=seconds)))


def until_run(*pods: str, seconds: float = 60) -> Step:
    """Wait until the pods run, by default all."""

    async def step(t: Tenant) -> bool:
        return await t.runs(*(pods or await _all_pods(t)), seconds=seconds)

    return step


def all_run(*pods: str) -> Step:
    async def step(t: Tenant) -> None:
        assert await t.runs(*pods), f"{pods} must run before the attack"

    return step


async def _all_pods(t: Tenant) -> list[str]:
    return [item["metadata"]["name"] for item in await t.objects("Pod")]


def counts(**requested: float) -> Step:
    """Count GPUs that pods of alice request in other ways than `pod` knows, by default one of each."""

    async def step(t: Tenant) -> None:
        t.requested.update(requested or dict.fromkeys(await _all_pods(t), 1))

    return step


def create(target: str, owners: Iterable[str] = (), **content: Any) -> Step:
    async def step(t: Tenant) -> None:
        references = [await reference_to(t, owner) for owner in owners]
        await t.create(*_target(t, target), owners=references, **filled(t, content))

    return step


def owner(name: str, owners: Iterable[str] = (), **metadata: Any) -> Step:
    return create(f"ConfigMap/{name}", owners, **metadata)


def job(labels: dict[str, str] | None = None, **spec: Any) -> Step:
    async def step(t: Tenant) -> None:
        template = t.pod_template(1, restartPolicy="Never")
        await t.create("Job", "j", labels=filled(t, labels), spec={"template": template, **spec})

    return step


def replica_set(
    name: str, selected: dict[str, str], replicas: int = 1, labels: dict[str, str] | None = None
) -> Step:
    async def step(t: Tenant) -> None:
        template = t.pod_template(1, labels=selected)
        spec = {"selector": {"matchLabels": selected}, "replicas": replicas, "template": template}
        await t.create("ReplicaSet", name, labels=labels, spec=spec)

    return step


def patch(target: str, body: Any) -> Step:
    return lambda t: t.patch(*_target(t, target), filled(t, body))


def label(target: str, labels: Mapping[str, str | None]) -> Step:
    return patch(target, {"metadata": {"labels": labels}})


def annotate(target: str, annotations: Mapping[str, str | None]) -> Step:
    return patch(target, {"metadata": {"annotations": annotations}})


def delete(target: str, **options: Any) -> Step:
    return lambda t: t.delete(*_target(t, target), **options)


def own(name: str, *owners: str) -> Step:
    """Replace the owner references of a pod."""

    async def step(t: Tenant) -> None:
        await t.own(name, *[await reference_to(t, owner) for owner in owners])

    return step


def touch(*pods: str) -> Step:
    async def step(t: Tenant) -> None:
        await t.touch(*(pods or await _all_pods(t)))

    return step


def wait(seconds: float) -> Step:
    return lambda _: asyncio.sleep(seconds)


def grouped(name: str) -> Step:
    return lambda t: t.group_of(name)


def group_goes(name: str, *steps: Step) -> Step:
    """Take the steps, and wait until the PodGroup that a pod had before them is gone."""

    async def step(t: Tenant) -> None:
        group = await t.group_of(name)
        await take(steps, t)
        await t.is_gone("PodGroup", group)

    return step


def lose(name: str, owner: str = "o") -> Step:
    """Take the owner references of a running pod away, and delete the owner."""
    return group_goes(name, own(name), delete(f"ConfigMap/{owner}"))


def enforced(*, again: bool) -> Step:
    return lambda t: t.set_namespace(t.name, is_enforced=again and t.is_enforced)


def decided(pods: int, seconds: float = 20) -> Step:
    """Wait until KAI has decided about so many pods."""

    async def step(t: Tenant) -> bool:
        path = f"/apis/scheduling.run.ai/v1alpha2/namespaces/{t.name}/bindrequests"

        async def is_so() -> bool:
            return len((await t.asker.send("GET", path)).body["items"]) >= pods

        return await t.until(is_so, seconds)

    return step


# --- Effects ---------------------------------------------------------------------------------------------------------


def over(limit: float | None = None) -> Step:
    return lambda t: t.over(limit)


def more(gpus: float = 1) -> Step:
    """Ask for more, and measure what all pods use."""
    return partial(take, (pod("more", gpus), over()))


def queue_of(*pods: str) -> Step:
    async def step(t: Tenant) -> str:
        return await t.queue_of(*(pods or await _all_pods(t)))

    return step


def reclaimed() -> Step:
    return lambda t: t.reclaimed()


def stored(is_so: Callable[[Tenant], Awaitable[Any]]) -> Step:
    async def step(t: Tenant) -> str:
        return "stored" if await is_so(t) else NONE

    return step
