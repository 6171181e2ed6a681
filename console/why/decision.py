"""What the webhook decided about a pod, and what it would decide about a new one like it."""

import asyncio
from typing import Final

from console.why.evidence import PolicyDecision
from console.why.objects import Pod
from console.why.requests import Requests
from console.why.target import POD
from kai.own_labels import REASON
from service.text import one_line
from webhook.explain.decision.explainer import ExplainedPod, Explainer
from webhook.explain.live.objects import explain_object
from webhook.explain.live.owners import OwnedMetadata
from webhook.explain.output.words import headline, reason_code
from webhook.policy.labels import PolicyMetadata
from webhook.policy.sizes import Source
from webhook.settings.document import SettingsError
from webhook.settings.reader import read_settings

_LONGEST_REASON: Final = 40
_SOMETHING_ELSE: Final = "something else, because the policy or the pod has changed since"


async def read_decision(
    requests: Requests, pod: Pod, policy: PolicyMetadata, *, settings_namespace: str
) -> PolicyDecision:
    """Decide about a new pod like this one, with the settings of the cluster's webhook.

    Without the settings, a preview would be a guess and is left out. LimitRanges are not read.

    Args:
        requests: for the API server.
        pod: the pod as it is.
        policy: labels and annotations of its namespace, which is managed.
        settings_namespace: the namespace of the ConfigMap with the webhook's settings.
    """
    reason = one_line(pod.metadata.annotations.get(REASON, ""), _LONGEST_REASON)
    unknown = PolicyDecision(reason=reason, now_reason="", now="")
    try:
        published = await read_settings(requests.client, settings_namespace)
    except SettingsError as error:
        requests.note(f"what a new pod would get is not known: {error}")
        return unknown
    if published.policies != "cluster":
        return unknown
    namespace = pod.metadata.namespace
    own = policy.policy(namespace, published.rules.default_mode)
    explainer = Explainer(namespace, {} if own is None else {namespace: own}, published.rules)
    # A large pod takes longer than 100 ms.
    items = await asyncio.to_thread(
        explain_object, explainer, POD, OwnedMetadata(pod.name, namespace), pod.document, ""
    )
    explained = next((item for item in items if isinstance(item, ExplainedPod)), None)
    if explained is None:
        return unknown
    if _is_outdated(explained):
        return PolicyDecision(reason=reason, now_reason="", now=_SOMETHING_ELSE)
    return PolicyDecision(reason=reason, now_reason=reason_code(explained), now=headline(explained))


def _is_outdated(pod: ExplainedPod) -> bool:
    """Whether the pod has a share that the webhook gave it, and that the policy does not give any more.

    The pod does not tell any more what its author requested, so that the new share cannot be computed.
    """
    earlier, decision = pod.earlier, pod.mutation.decision
    if earlier is None or earlier.is_current or decision.source is not Source.OWN_SHARE:
        return False
    return earlier.reason != decision.reason.code
