"""The webhook's pods: their release, and why one is not ready."""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

from kube.objects import FullMeta
from kube.pod_status import PodStatus
from service.check_results import CheckResult, ok, problem, warning
from service.text import MOST_LINES, counted
from webhook.doctor.api_reader import ApiReader, ListResult, ListSpec
from webhook.doctor.deployment import WEBHOOK_LABELS

_CHECK: Final = "webhook pods"
_VERSION_LABEL: Final = "app.kubernetes.io/version"


class WebhookPod(Struct, frozen=True):
    """A pod of the webhook."""

    metadata: FullMeta
    status: PodStatus = PodStatus()

    @property
    def version(self) -> str:
        """The release in the pod's label; empty if absent."""
        return self.metadata.labels.get(_VERSION_LABEL, "")


_pod = msgspec.json.Decoder(WebhookPod)


async def list_webhook_pods(reader: ApiReader, namespace: str) -> ListResult[WebhookPod]:
    """List the webhook's pods in a namespace; a failed request is recorded in the reader."""
    spec = ListSpec(
        resource="pods",
        namespace=namespace,
        params={"labelSelector": WEBHOOK_LABELS},
        without="the webhook's pods and their release are not known",
    )
    return await reader.list(spec, _pod.decode)


def webhook_pod_findings(pods: ListResult[WebhookPod]) -> Iterator[CheckResult]:
    """Yield a finding about each pod that is not ready, with the scheduler's or the kubelet's words. Pure.

    A pod that is not ready is a problem if no other pod is ready.
    """
    live = [pod for pod in pods.items if not pod.metadata.deletion_timestamp]
    unready = [pod for pod in live if not pod.status.is_ready]
    ready = len(live) - len(unready)
    for pod in unready[:MOST_LINES]:
        make = warning if ready else problem
        metadata = pod.metadata
        yield make(
            _CHECK,
            f"{metadata.name} is not ready: {pod.status.trouble}; {counted(ready, 'pod')} ready",
            f"kubectl -n {metadata.namespace} describe pod {metadata.name}, and its log",
        )
    if len(unready) > MOST_LINES:
        yield warning(_CHECK, f"and {counted(len(unready) - MOST_LINES, 'more pod')} not ready")
    if live and not unready:
        yield ok(_CHECK, f"{counted(ready, 'pod')} ready")
