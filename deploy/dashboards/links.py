"""Links between the dashboards, to an agent's page, and to the runbooks.

A link to a dashboard keeps the time range, the data source and `$cluster`. The value of `$cluster` is the
current selection and not the row's own label: series of a Prometheus for one cluster lack the label, and
Grafana leaves the text of a missing field in the address.
"""

from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.panels import Link

TAG: Final = "kaishare"

_KEPT: Final = "${__url_time_range}&${datasource:queryparam}&${cluster:queryparam}"


def to_node(*variables: str) -> Link:
    """Return a link from a node's name to its dashboard, which keeps further variables that both have."""
    kept = "".join(f"&${{{variable}:queryparam}}" for variable in variables)
    return Link(
        column="node",
        title="Node ${__value.raw}",
        url=f"/d/kaishare-node?{_KEPT}{kept}&var-node=${{__value.raw}}",
    )


def to_namespace(*kept: str, column: str = "namespace") -> Link:
    """Return a link from a namespace's name to its dashboard; `kept` are further variables of both."""
    variables = "".join(f"&${{{name}:queryparam}}" for name in kept)
    return Link(
        column=column,
        title="Namespace ${__value.raw}",
        url=f"/d/kaishare-namespace?{_KEPT}{variables}&var-namespace=${{__value.raw}}",
    )


def to_agent_page(column: str = "instance") -> Link:
    """Return a link from an agent's `instance`, which is its address, to its page."""
    return Link(
        column=column,
        title="Page of the agent at ${__value.raw}",
        url="${agent_scheme}://${__value.raw}/",
        new_tab=True,
    )


def to_runbook(column: str = "runbook") -> Link:
    """Return a link from the address of the runbooks to the alert's section."""
    return Link(
        column=column,
        title="Runbook of ${__data.fields.alertname}",
        url="${__value.raw}#${__data.fields.alertname}",
        new_tab=True,
    )


def with_runbook(alerts: str) -> str:
    """Add the label `runbook`, the address of docs/runbooks.md, to alerts, unless `$runbooks` is empty.

    A dead link is worse than none: with an empty `$runbooks`, `(.+)` does not match and the label is not set.
    """
    based = f'label_replace({alerts}, "base", "$runbooks", "alertname", ".*")'
    return f'sum without (base) (label_replace({based}, "runbook", "${{1}}docs/runbooks.md", "base", "(.+)"))'


def between_dashboards() -> build.DashboardLink:
    """Return the menu of all kaishare dashboards, which keeps variables and time."""
    return (
        build.DashboardLink("kaishare")
        .type(model.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
        .icon("external link")
        .tooltip("Dashboards of kaishare")
    )
