"""The names of `console.cluster.webhook` at their earlier place."""

from console.cluster.webhook import (
    VIEW_IS_ENOUGH,
    does_not_exist,
    fetch_namespaces,
    may_not_get,
    may_not_list,
    read_settings,
)

__all__ = (
    "VIEW_IS_ENOUGH",
    "does_not_exist",
    "fetch_namespaces",
    "may_not_get",
    "may_not_list",
    "read_settings",
)
