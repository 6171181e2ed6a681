"""The time that KAI's programs take, and the finding for one that has done nothing about a pod. Pure."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from console.why.answer import PodFinding, Remedy
from console.why.codes import Code
from service.units import duration

SETTLED: Final = timedelta(seconds=20)
"""Time after which a program of KAI that has done nothing for a pod is probably down.

Pod-grouper, scheduler and binder were done within 3 s each (v0.9.8, v0.13.4, v0.17.0).
"""


KAI_PODS: Final = "kubectl get pods --namespace kai-scheduler"
"""Shows whether KAI's programs run."""


def waited(age: timedelta | None) -> str:
    """Return how long something has lasted, such as ` for 3 min`; empty if unknown."""
    return f" for {duration(age.total_seconds())}" if age else ""


def silence(
    code: Code, age: timedelta | None, remedies: Sequence[Remedy], *, at_first: str, later: str
) -> PodFinding:
    """Return the finding for a program of KAI that has done nothing; before `SETTLED` it is too early to act.

    Args:
        code: of the finding.
        age: time for which the program could have acted; None if unknown.
        remedies: what to do after `SETTLED`.
        at_first: sentence before `SETTLED`, with `{}` for the age.
        later: sentence after it, with `{}` for ` for ` and the age.
    """
    if age is not None and age < SETTLED:
        sentence = at_first.format(duration(age.total_seconds()))
        return PodFinding(code, sentence, [Remedy("Wait some seconds.")])
    return PodFinding(code, later.format(waited(age)), remedies)
