"""Lists the cluster's namespaces once, for `explain`."""

from kube.access import AccessError, find_access
from kube.client import KubeClient
from kube.errors import ApiError, Unreachable
from webhook.namespaces.decode import LIST, PATH, NamespaceError, decode_metadata
from webhook.namespaces.documents import PoliciesError
from webhook.policy.labels import PolicyMetadata


async def list_namespaces(kubeconfig: str | None, context: str | None = None) -> dict[str, PolicyMetadata]:
    """Read the policy's metadata of every namespace, managed or not.

    Args:
        kubeconfig: kubeconfig of the cluster; None uses the default of kube.access.find_access.
        context: context of the kubeconfig; None uses the current one.

    Raises:
        PoliciesError: the API server cannot be reached, or it refuses the request.
    """
    try:
        async with (
            KubeClient(await find_access(kubeconfig, context)) as client,
            client.list_objects(PATH, accept=LIST) as namespaces,
        ):
            return dict([decode_metadata(item) async for item in namespaces])
    except (AccessError, ApiError, Unreachable, NamespaceError) as error:
        raise PoliciesError(f"--policies cluster: {error}") from None
