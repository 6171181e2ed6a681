"""The ConfigMap with a share of a container, which is requested for its pod."""

import asyncio

import pytest

from kube.client import KubeClient
from tests.support.api_server import (
    ApiServer,
)
from tests.support.cluster_pods import (
    CONFIG_MAPS,
    EVERYTHING,
    offer,
    running,
    versioned,
)
from tests.support.kube_objects import (
    config_map,
    fraction,
)
from tests.support.waiting import until


@pytest.mark.parametrize(
    ("annotations", "requested"),
    [
        ({}, ["half-7f6fbs6-shared-gpu-0"]),
        ({"gpu-fraction-container-name": "side"}, ["half-7f6fbs6-shared-gpu-1"]),
        (
            {"gpu-fraction-container-name": "prepare"},
            ["half-7f6fbs6-shared-gpu-i0", "half-7f6fbs6-shared-gpu-0"],
        ),
        ({"runai/shared-gpu-configmap": "../../../secrets/x"}, []),
        ({"runai/shared-gpu-configmap": "a/../b"}, []),
        ({"runai/shared-gpu-configmap": "a?watch=1"}, []),
        ({"runai/shared-gpu-configmap": "x" * 300}, []),
        ({"runai/shared-gpu-configmap": ""}, []),
    ],
)
async def test_config_maps_are_requested_for_the_container_with_the_share(
    server: ApiServer, client: KubeClient, annotations: dict[str, str], requested: list[str]
) -> None:
    made = fraction(
        containers=[{"name": "main"}, {"name": "side"}], init=[{"name": "prepare"}], annotations=annotations
    )
    offer(server, made, *(config_map(suffix=suffix, GPU_PORTION="0.50") for suffix in ("0", "1")))
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.pods.inventory)
        assert server.requested_paths("configmaps") == [f"{CONFIG_MAPS}/{name}" for name in requested]
        stored = {(("research"), name) for name in requested[-1:]}
        assert run.inventory.config_maps.keys() == stored
        assert not server.requested_paths("secrets")


async def test_of_several_config_maps_the_pods_own_counts(server: ApiServer, client: KubeClient) -> None:
    made = fraction(containers=[{"name": "main"}, {"name": "side"}])
    offer(server, made, config_map(number=9, GPU_PORTION="0.90"), config_map(suffix="1", GPU_PORTION="0.50"))
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.pods.inventory)
        assert run.inventory.config_maps == {
            ("research", "half-7f6fbs6-shared-gpu-1"): {"GPU_PORTION": "0.50"}
        }


async def test_an_edited_annotation_does_not_lead_to_another_config_map(
    server: ApiServer, client: KubeClient
) -> None:
    offer(server, fraction(), config_map(GPU_PORTION="0.50"))
    own = config_map("own", GPU_PORTION="0.90")
    offer(server, own)
    async with running(client, read_config_maps=True) as run:
        await until(lambda: run.pods.inventory)
        edited = fraction(annotations={"runai/shared-gpu-configmap": "own-7f6fbs6-shared-gpu"})
        server.change("MODIFIED", versioned(edited))
        await until(
            lambda: (
                run.inventory.pods[edited["metadata"]["uid"]].annotations == edited["metadata"]["annotations"]
            )
        )
        await asyncio.sleep(0.2)
        assert server.requested_paths("configmaps") == [f"{CONFIG_MAPS}/half-7f6fbs6-shared-gpu-0"]


async def test_config_maps_are_requested_only_with_the_option(server: ApiServer, client: KubeClient) -> None:
    offer(server, *EVERYTHING)
    async with running(client) as run:
        await until(lambda: run.pods.inventory)
        assert not server.requested_paths("configmaps")
        assert run.inventory.config_maps == {}
