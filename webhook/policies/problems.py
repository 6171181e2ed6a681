"""Saying what is wrong with policies, each thing once."""

from collections.abc import Mapping

from service.log import WARNING, JsonLog
from service.turns import Turns
from webhook.policy import LabelProblem, NamespacePolicy


class ProblemLog:
    """Says once what is wrong with policies, and once more when a different thing is."""

    def __init__(self, log: JsonLog) -> None:
        self._log = log
        self._said: set[tuple[str, LabelProblem]] = set()

    async def report(self, policies: Mapping[str, NamespacePolicy]) -> None:
        """Say what is wrong now and was not before."""
        turns = Turns()
        found: set[tuple[str, LabelProblem]] = set()
        for name, policy in sorted(policies.items()):
            for problem in policy.problems:
                found.add((name, problem))
                if (name, problem) not in self._said:
                    self._log(
                        "policy invalid",
                        WARNING,
                        namespace=name,
                        label=problem.label,
                        problem=str(problem),
                    )
            await turns.give()
        self._said = found
