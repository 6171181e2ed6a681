"""The dashboard for the owner of a namespace's policy: its pods, their use of shares, flags, and waste."""

from typing import Final

from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards import advice, annotations, links, variables
from deploy.dashboards.board import Contents, Section
from deploy.dashboards.panels import (
    BYTES,
    RATIO,
    SECONDS,
    Column,
    Query,
    TableLayout,
    bars,
    largest,
    lines,
    number,
    orange_from,
    red_from,
    rows,
)
from deploy.dashboards.pods import pod_columns, use_of_share
from deploy.dashboards.queries import (
    CLUSTER,
    POD_ON_GPU,
    USED,
    UTILIZATION,
    flagged,
    join,
    known_or_zero,
    pod,
    ratio,
    share,
    used,
)
from deploy.dashboards.waste import judged, known_part, of_current_pods, peak, seen, unused

_NAMESPACE: Final = join(CLUSTER, 'namespace=~"$namespace"')
_PODS: Final = join(_NAMESPACE, 'vcluster=~"$vcluster", virtual_namespace=~"$virtual_namespace"')
_POD: Final = (
    "cluster",
    "namespace",
    "pod",
    "vcluster",
    "virtual_namespace",
    "virtual_pod",
    "queue",
    "node",
    "gpu",
)
_BY_POD: Final = "{{cluster}} {{namespace}}/{{pod}} GPU {{gpu}}"
_INFO: Final = f"topk by (cluster, uid) (1, kaishare_pod_info{{{_PODS}}})"
"""One series for each pod: two agents may describe a pod for a moment, while one replaces the other."""


def contents() -> Contents:
    """Return the namespace's dashboard."""
    return Contents(
        name="namespace",
        title="kaishare / Namespace",
        description="For the owner of a policy: pods with GPU shares, what they use, why they are flagged, "
        "and which shares could be smaller.",
        variables=[
            variables.datasource(),
            variables.cluster(),
            variables.some(
                "namespace",
                "Namespace",
                "Namespace of the host cluster. The pods of a vCluster are in the vCluster's namespace.",
                f"label_values(kaishare_pod_info{{{CLUSTER}}}, namespace)",
            ),
            variables.vcluster(_NAMESPACE),
            variables.several(
                "virtual_namespace",
                "Namespace in the vCluster",
                "Namespace as the tenant of the vCluster knows it. All also contains pods of the host.",
                f'label_values(kaishare_pod_info{{{_NAMESPACE}, vcluster=~"$vcluster"}}, virtual_namespace)',
            ),
            variables.agent_job(),
        ],
        annotations=[annotations.versions("webhook")],
        overview=_overview(),
        sections=[
            Section(title="Over time", panels=_over_time()),
            Section(title="Sizes and workloads", panels=_sizes()),
            Section(title="Advice: which shares would do", panels=advice.panels(_PODS)),
            Section(
                title="Waste: promised and not used for 7 days (reads 7 days of samples)", panels=_waste()
            ),
        ],
    )


def _overview() -> list[model.Panel]:
    return [
        number(
            "Pods",
            "How many pods have a share or are on a GPU?",
            f"count by (cluster) (count by (cluster, uid) (kaishare_pod_info{{{_PODS}}}))",
        ),
        number(
            "Promised",
            "How much GPU memory may these pods use in all? The sum of their shares.",
            f"sum by (cluster) ({share(_PODS)})",
            unit=BYTES,
        ),
        number(
            "Used",
            "How much GPU memory do these pods use? Pods whose use is unknown are left out.",
            f"sum by (cluster) ({used(_PODS)})",
            unit=BYTES,
        ),
        number(
            "Used of promised",
            "How well do the shares fit? Over the pods of which both figures are known. Far below 100 %: "
            "smaller shares would do; see the row Waste. Red above 105 %: pods hold memory of others.",
            ratio(used(_PODS), share(_PODS)),
            unit=RATIO,
            limits=red_from(1.05),
        ),
        number(
            "Flagged pods",
            "How many of these pods are flagged? unknown: none is evaluated. Red: the table Flags has the "
            "reasons, docs/runbooks.md what to do. A flagged pod is evicted only if the namespace asks for "
            "it.",
            known_or_zero(
                f"count by (cluster) (count by (cluster, uid) (kaishare_pod_flagged{{{_PODS}}} == 1))",
                f"kaishare_pod_flagged{{{_PODS}}}",
            ),
            limits=red_from(1),
        ),
        number(
            "Policy labels that are ignored",
            "How many labels of these namespaces have a value that is not allowed, and are ignored? Red: "
            "the table Ignored labels names them. 0 needs a running webhook.",
            known_or_zero(
                "count by (cluster) (count by (cluster, namespace, label) "
                f"(kaishare_webhook_policy_invalid{{{_NAMESPACE}}}))",
                f"kaishare_webhook_policies{{{CLUSTER}}}",
            ),
            limits=red_from(1),
        ),
        rows(
            "Pods and their shares",
            "What does each pod use of its share, and does it compute? use of share in red: above by more "
            "than 5 %. flagged is empty while the pod is not evaluated. utilisation is the part of the time "
            "with a kernel on the GPU, and empty where the driver does not report it. used is empty where it "
            "is unknown.",
            TableLayout(labels=_POD, sort_by="use of share", links=(links.to_node("agent_job"),)),
            *largest(
                100,
                *pod_columns(_PODS),
                rank=use_of_share(_PODS),
            ),
            height=10,
        ),
        rows(
            "Flags",
            "Which pods are flagged, and why? docs/flags.md has the reasons, docs/runbooks.md what to do "
            "about each.",
            TableLayout(labels=(*_POD, "reason"), links=(links.to_node("agent_job"),)),
            Column(title="flagged", expr=f"{flagged(_PODS)} == 1"),
            width=14,
            height=6,
        ),
        rows(
            "Ignored labels",
            "Which labels of these namespaces have a value that is not allowed? The webhook ignores them; "
            "docs/policy.md has the allowed values.",
            TableLayout(labels=("cluster", "namespace", "label")),
            Column(
                title="ignored",
                expr=f"max by (cluster, namespace, label) (kaishare_webhook_policy_invalid{{{_NAMESPACE}}})",
            ),
            width=10,
            height=6,
        ),
    ]


def _over_time() -> list[model.Panel]:
    return [
        lines(
            "Used and promised",
            "Do the shares follow the need? Pods whose use is unknown are left out of used.",
            Query(expr=f"sum by (cluster) ({share(_PODS)})", legend="promised {{cluster}}"),
            Query(expr=f"sum by (cluster) ({used(_PODS)})", legend="used {{cluster}}"),
            unit=BYTES,
        ),
        lines(
            "Use of share, by pod",
            "Which pods come close to their shares, or exceed them? The 20 highest.",
            Query(expr=f"topk by (cluster) (20, {used(_PODS)} / {share(_PODS)})", legend=_BY_POD),
            unit=RATIO,
            limits=red_from(1),
        ),
        lines(
            "Used, by pod",
            "Which pod grew, and when? The 20 largest.",
            Query(expr=f"topk by (cluster) (20, {used(_PODS)})", legend=_BY_POD),
            unit=BYTES,
            stacked=True,
        ),
        lines(
            "Utilisation, by pod",
            "Which pods compute with what they hold? Part of the time with a kernel on the GPU. No line: "
            "the driver does not report it.",
            Query(expr=f"topk by (cluster) (20, {pod(UTILIZATION, _PODS)})", legend=_BY_POD),
            unit=RATIO,
        ),
        lines(
            "Flagged, by reason",
            "When were how many pods flagged, and why?",
            Query(expr=f"sum by (cluster, reason) ({flagged(_PODS)})", legend="{{cluster}} {{reason}}"),
        ),
        lines(
            "Part of the time over the share, by pod",
            "How much of the time does a pod exceed its share plus slack? Above a third, the agent flags it.",
            Query(
                expr="topk by (cluster) (20, max by (cluster, namespace, pod, gpu) "
                f"(rate(kaishare_pod_over_share_seconds_total{{{_PODS}}}[$__rate_interval])))",
                legend=_BY_POD,
            ),
            unit=RATIO,
            limits=orange_from(0.33),
        ),
    ]


def _sizes() -> list[model.Panel]:
    def by(labels: str, figure: str) -> str:
        return f"sum by (cluster, {labels}) (({figure}) * on (cluster, uid) group_left ({labels}) {_INFO})"

    def of_share(labels: str) -> str:
        with_both = f"{used(_PODS)} and {share(_PODS)}", f"{share(_PODS)} and {used(_PODS)}"
        return f"{by(labels, with_both[0])} / {by(labels, with_both[1])}"

    # Workloads of two namespaces, or of two namespaces of a vCluster, may have one name.
    names = ("namespace", "vcluster", "virtual_namespace", "workload_kind", "workload")
    workload = ", ".join(names)
    return [
        rows(
            "Sizes in use",
            "Which named sizes do the pods have, and how much of them do they use? A row without a size: "
            "pods with a share of their own or the namespace's default.",
            TableLayout(labels=("cluster", "size"), sort_by="share"),
            Column(title="pods", expr=f"count by (cluster, size) ({_INFO})"),
            Column(title="share", expr=by("size", share(_PODS)), unit=BYTES),
            Column(title="used", expr=by("size", used(_PODS)), unit=BYTES),
            Column(title="use of share", expr=of_share("size"), unit=RATIO),
            width=12,
        ),
        rows(
            "Workloads",
            "Which Deployments, StatefulSets and Jobs hold how much? A row without a name: pods without a "
            "controller.",
            TableLayout(labels=("cluster", *names), sort_by="share"),
            Column(title="pods", expr=f"count by (cluster, {workload}) ({_INFO})"),
            Column(title="share", expr=by(workload, share(_PODS)), unit=BYTES),
            Column(title="used", expr=by(workload, used(_PODS)), unit=BYTES),
            Column(title="use of share", expr=of_share(workload), unit=RATIO),
            width=12,
        ),
        bars(
            "Memory in use, by queue",
            "Which queue do the pods belong to? KAI charges the queue for the share, not for the use.",
            Query(
                expr=f"sum by (cluster, vcluster, queue) ({used(_PODS)})",
                legend="{{cluster}} {{vcluster}} {{queue}}",
            ),
            unit=BYTES,
            height=6,
        ),
        bars(
            "Memory promised, by queue",
            "For how much does KAI charge the queues?",
            Query(
                expr=f"sum by (cluster, vcluster, queue) ({share(_PODS)})",
                legend="{{cluster}} {{vcluster}} {{queue}}",
            ),
            unit=BYTES,
            height=6,
        ),
    ]


def _waste() -> list[model.Panel]:
    identity = f"0 * {share(_PODS)} + on ({POD_ON_GPU}) group_left ()"
    highest = peak(USED, _PODS)
    return [
        number(
            "Unused for 7 days",
            "How much of the shares has no sample of the last 7 days shown in use? Only pods that are 7 "
            "days old, with their use known for 90 % of that time. Orange: the table names the pods; lower "
            "their share or size.",
            f"sum by (cluster) {judged(unused(_PODS), _PODS)}",
            unit=BYTES,
            limits=orange_from(1 << 30),
            no_value="no pod is 7 days old, or unknown",
            width=8,
        ),
        number(
            "Unused since the pods started, of their shares",
            "Which part of the shares has no sample shown in use, for pods of every age? Young pods count "
            "with all that they have not used yet: read it with Longest history.",
            f"sum by (cluster) ({unused(_PODS)}) "
            f"/ sum by (cluster) ({share(_PODS)} and on ({POD_ON_GPU}) {highest})",
            unit=RATIO,
            width=8,
        ),
        number(
            "Longest history",
            "How long at least does Prometheus know the oldest of these pods? In steps: 7 days, 3 days, 1 "
            "day, 6 hours, 1 hour, less.",
            f"max by (cluster) ({seen(_PODS)})",
            unit=SECONDS,
            width=8,
        ),
        rows(
            "Promised and never used",
            "Which pods could have a smaller share, and how small? highest use is the largest sample of 7 "
            "days; a share a little above it would have done. Trust a row as far as it was seen, and as its "
            "use was known in the samples. Hours without an agent have no samples.",
            TableLayout(labels=_POD, sort_by="unused", links=(links.to_node("agent_job"),)),
            *largest(
                50,
                Column(title="unused", expr=unused(_PODS), unit=BYTES),
                Column(title="share", expr=share(_PODS), unit=BYTES),
                Column(title="highest use", expr=of_current_pods(highest, _PODS), unit=BYTES),
                Column(
                    title="highest use of share",
                    expr=f"({of_current_pods(highest, _PODS)}) / {share(_PODS)}",
                    unit=RATIO,
                ),
                Column(title="seen for at least", expr=f"{identity} ({seen(_PODS)})", unit=SECONDS),
                Column(title="use known", expr=of_current_pods(known_part(_PODS), _PODS), unit=RATIO),
            ),
            height=10,
        ),
    ]
