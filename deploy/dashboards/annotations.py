"""Events as marks in all panels over time. A mark ends 5 minutes after its event."""

from typing import Final

from grafana_foundation_sdk.builders import dashboard as build

from deploy.dashboards.panels import DATASOURCE
from deploy.dashboards.queries import CLUSTER, began_or_grew, join

_WINDOW: Final = "5m"
_WINDOW_SECONDS: Final = "300"


def _annotation(name: str, color: str, expr: str) -> build.AnnotationQuery:
    return build.AnnotationQuery().name(name).datasource(DATASOURCE).enable(True).icon_color(color).expr(expr)


def flags_raised(agents: str = "") -> build.AnnotationQuery:
    """Return marks where agents flagged pods; `agents` selects agents by a set operation."""
    raised = f'kaishare_agent_flag_transitions_total{{{CLUSTER}, change="raised"}}'
    return _annotation(
        "Flags raised", "red", f"sum by (cluster, reason) (increase({raised}[{_WINDOW}]){agents}) > 0"
    )


def evictions() -> build.AnnotationQuery:
    """Return marks where agents evicted pods."""
    where = join(CLUSTER, 'result="evicted"')
    evicted = began_or_grew("kaishare_agent_evictions_total", where, _WINDOW, _WINDOW_SECONDS)
    return _annotation("Evictions", "orange", f"sum by (cluster) ({evicted}) > 0")


def versions(component: str) -> build.AnnotationQuery:
    """Return marks where a version of the agent or webhook first runs in a cluster that ran another before.

    A pause of Prometheus gives no mark, because then nothing ran before.
    """
    series = f'kaishare_build_info{{{CLUSTER}, component="{component}"}}'
    now = f"group by (cluster, component, version) ({series})"
    before = f"group by (cluster, component, version) ({series} offset {_WINDOW})"
    return _annotation(
        f"New version of the {component}",
        "blue",
        f"({now} unless {before}) and on (cluster) ({series} offset {_WINDOW})",
    )
