"""The namespaces of a cluster, read once: for who looks, and does not serve."""

from kube.access import AccessError, find_access
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from webhook.namespaces.decode import LIST, PATH, NamespaceError, decode_labels
from webhook.namespaces.documents import Labels, PoliciesError


async def list_namespaces(kubeconfig: str | None) -> dict[str, Labels]:
    """Read the labels that are policy of every namespace, managed or not.

    Args:
        kubeconfig: how to reach the cluster, other than as kube.access.find_access would.

    Raises:
        PoliciesError: there is no way to it, or it says no.
    """
    try:
        async with (
            KubeClient(await find_access(kubeconfig)) as client,
            client.list_objects(PATH, accept=LIST) as namespaces,
        ):
            return dict([decode_labels(item) async for item in namespaces])
    except (AccessError, ApiError, Unreachable, NamespaceError) as error:
        raise PoliciesError(f"--policies cluster: {error}") from None
