"""Sentences for people about namespaces that they may not read, or that do not exist. Pure."""

from typing import Final

from kube.errors import ApiError
from service.text import one_line

VIEW_IS_ENOUGH: Final = "if it exists, the role view in that namespace is enough"
"""An API server answers 403 about a namespace that does not exist, too, unless the caller may get all."""


def may_not_get(namespace: str) -> str:
    """Say that the caller may not get a namespace."""
    return f"you may not get namespace {one_line(namespace)}"


def may_not_list(error: ApiError, instead: str) -> str:
    """Say that the caller may not list namespaces.

    Args:
        error: the refusal, which may name the user.
        instead: what needs fewer rights, as a clause.
    """
    user = f" as {one_line(error.user)}" if error.user else ""
    return f"you may not list namespaces{user}: {instead}"


def does_not_exist(namespace: str) -> str:
    """Say that a namespace does not exist."""
    return f"namespace {one_line(namespace)} does not exist in this cluster"
