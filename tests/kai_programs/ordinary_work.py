"""Ordinary work that the guard must let through, as KAI's own programs run it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Work:
    """One row."""

    title: str
    steps: Callable[..., Awaitable[Any]]
    limit: float = -1
    quota: float = 1
    gpus: int = 2
    is_short: bool = False
    is_alone: bool = False
    """Whether the row runs alone, because it stops programs of KAI."""


WORK: list[Work] = []
