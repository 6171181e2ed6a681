"""Variables of the dashboards. `$datasource` and `$cluster` come first, in every dashboard."""

from collections.abc import Sequence
from typing import Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as model

from deploy.dashboards.panels import DATASOURCE
from deploy.dashboards.queries import CLUSTER

_ALL: Final = model.VariableOption(selected=True, text=["All"], value=["$__all"])

Variable = build.QueryVariable | build.DatasourceVariable | build.CustomVariable | build.TextBoxVariable


def datasource() -> build.DatasourceVariable:
    """Return the choice of a Prometheus; at first Grafana's default."""
    return (
        build.DatasourceVariable("datasource")
        .label("Data source")
        .description("Prometheus with kaishare's metrics and recorded figures.")
        .type("prometheus")
        .current(model.VariableOption(selected=True, text="default", value="default"))
    )


def _query(name: str, label: str, description: str, query: str) -> build.QueryVariable:
    return (
        build.QueryVariable(name)
        .label(label)
        .description(description)
        .datasource(DATASOURCE)
        .query({"query": query, "refId": f"variable-{name}"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
    )


def several(name: str, label: str, description: str, query: str) -> build.QueryVariable:
    """Return a variable of several values. All is `.*`, which also selects series without the label."""
    return _query(name, label, description, query).multi(True).include_all(True).all_value(".*").current(_ALL)


def some(name: str, label: str, description: str, query: str) -> build.QueryVariable:
    """Return a variable of several values without All, for figures that would overload the browser at All."""
    return _query(name, label, description, query).multi(True).include_all(False)


def single(name: str, label: str, description: str, query: str) -> build.QueryVariable:
    """Return a variable of one value, for matchers with `=`; at first the first value."""
    return _query(name, label, description, query).multi(False).include_all(False)


def cluster() -> build.QueryVariable:
    """Return the choice of clusters."""
    return several(
        "cluster",
        "Cluster",
        "Label `cluster` of the series. Keep All where one Prometheus serves one cluster without the label.",
        "label_values(kaishare_build_info, cluster)",
    )


def vcluster(where: str = CLUSTER) -> build.QueryVariable:
    """Return the choice of vClusters."""
    return several(
        "vcluster",
        "vCluster",
        "Pods of these vClusters. All also contains pods of the host, which have no vCluster.",
        f"label_values(kaishare_pod_info{{{where}}}, vcluster)",
    )


def choice(
    name: str, label: str, description: str, options: Sequence[tuple[str, str]], selected: int = 0
) -> build.CustomVariable:
    """Return a variable with fixed options: pairs of text and value."""
    text, value = options[selected]
    return (
        build.CustomVariable(name)
        .label(label)
        .description(description)
        .values(", ".join(f"{text} : {value}" for text, value in options))
        .options(
            [
                model.VariableOption(selected=index == selected, text=option_text, value=option_value)
                for index, (option_text, option_value) in enumerate(options)
            ]
        )
        .current(model.VariableOption(selected=True, text=text, value=value))
        .multi(False)
        .include_all(False)
        .allow_custom_value(False)
    )


def origin() -> build.CustomVariable:
    """Return the choice between pods of the host and of vClusters, as a regular expression for `vcluster`."""
    return choice(
        "origin",
        "Pods of",
        "Pods of the host have no vCluster.",
        [("host and vClusters", ".*"), ("host", "^$"), ("vClusters", ".+")],
    )


def hidden_text(name: str, description: str, value: str) -> build.TextBoxVariable:
    """Return a hidden variable, which the address `?var-NAME=` or the dashboard's settings change."""
    return (
        build.TextBoxVariable(name)
        .description(description)
        .hide(model.VariableHide.HIDE_VARIABLE)
        .default_value(value)
        .current(model.VariableOption(selected=True, text=value, value=value))
    )


def agent_job() -> build.TextBoxVariable:
    """Return the regular expression for the agent's job."""
    return hidden_text(
        "agent_job",
        "Regular expression for the job of the agents. The Prometheus operator names it "
        "NAMESPACE/kaishare-agent, by the namespace of its PodMonitor.",
        "(kaishare-agent/)?kaishare-agent",
    )


def webhook_job() -> build.TextBoxVariable:
    """Return the regular expression for the webhook's job."""
    return hidden_text(
        "webhook_job",
        "Regular expression for the job of the webhook. The Prometheus operator names it "
        "NAMESPACE/kaishare-webhook, by the namespace of its PodMonitor.",
        "(kaishare/)?kaishare-webhook",
    )


def kai_scheduler() -> build.TextBoxVariable:
    """Return the regular expression for the names of KAI's schedulers."""
    return hidden_text(
        "kai_scheduler",
        "Regular expression for the schedulerName of pods that KAI places.",
        "kai-scheduler",
    )


def agent_scheme() -> build.CustomVariable:
    """Return the scheme of links to an agent's page."""
    return choice(
        "agent_scheme",
        "Agent page",
        "Scheme of links to an agent's page; https with agent.tlsSecret. The address is the label "
        "`instance`.",
        [("http", "http"), ("https", "https")],
    )


def runbooks() -> build.TextBoxVariable:
    """Return the base address of the runbooks."""
    return hidden_text(
        "runbooks",
        "Address of the folder that has docs/runbooks.md, with a slash at its end. Empty: no links to "
        "runbooks.",
        "",
    )
