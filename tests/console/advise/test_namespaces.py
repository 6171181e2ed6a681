import pytest

from console.advise.namespaces import read_namespaces
from console.advise.shares import ShareValue
from kube.client import KubeClient
from kube.errors import ApiError
from tests.support.api_server import ApiServer, refuses

PATH = "/api/v1/namespaces"
VISION = {
    "metadata": {
        "name": "vision",
        "labels": {
            "kai.scheduler/queue": "team",
            "size.kaishare.dev/small": "0.25",
            "kaishare.dev/gpu-memory": "8192",
        },
    }
}


async def test_all_namespaces_are_read(server: ApiServer, client: KubeClient) -> None:
    server.path = PATH
    server.pods = {"vision": VISION, "plain": {"metadata": {"name": "plain"}}}
    known = await read_namespaces(client, None)
    assert known is not None
    assert known["vision"].share_of("small") == ShareValue(hundredths=25)
    assert known["vision"].share_of("") == ShareValue(mib=8192)
    assert known["vision"].share_of("absent") is None
    assert known["plain"].policy is None


async def test_one_namespace_is_read(server: ApiServer, client: KubeClient) -> None:
    server.named = {f"{PATH}/vision": VISION}
    assert list(await read_namespaces(client, "vision") or ()) == ["vision"]
    assert await read_namespaces(client, "absent") == {}


@pytest.mark.parametrize("namespace", [None, "vision"])
async def test_without_the_right_the_labels_are_unknown(
    server: ApiServer, client: KubeClient, namespace: str | None
) -> None:
    server.refusals = {PATH: refuses(403, "Forbidden")}
    assert await read_namespaces(client, namespace) is None


async def test_other_errors_are_raised(server: ApiServer, client: KubeClient) -> None:
    server.refusals = {PATH: refuses(500, "InternalError")}
    with pytest.raises(ApiError, match="500"):
        await read_namespaces(client, None)
