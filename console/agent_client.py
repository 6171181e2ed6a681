"""A name of console.cluster.agents for tests of `doctor`, until they import that module."""

from console.cluster.agents import Received

__all__ = ["Received"]
