"""The adapter: everything of the product that the records import, so that a move touches this file alone."""

import asyncio
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from console.cli import main as console_main
from gpuagent.cli import main as agent_main
from kai.version import Version
from service.log import JsonLog
from service.version import version
from webhook.admission.handler import ReviewFailed, ReviewHandler
from webhook.admission.mutating import MutatingWebhook
from webhook.admission.review import BadReview
from webhook.admission.validating import NamespaceValidator, PodValidator
from webhook.cli import main as webhook_main
from webhook.metrics import Metrics
from webhook.namespaces.files import FilePolicies
from webhook.policy.labels import Mode
from webhook.policy.rules import Rules

ROOT: Final = Path(__file__).parents[2]
WEBHOOK: Final = (sys.executable, "-m", "webhook", "serve")
AGENT: Final = (sys.executable, "-m", "gpuagent", "serve")

_MAINS: Final[Mapping[str, Callable[[Sequence[str]], int]]] = {
    "explain": console_main,
    "why": console_main,
    "doctor": console_main,
    "policies": console_main,
    "top": console_main,
    "advise": console_main,
    "report": console_main,
    "render": webhook_main,
    "webhook-doctor": webhook_main,
    "agent-doctor": agent_main,
    "agent-top": agent_main,
}
"""Program by command. The commands with a prefix are those of the services; the others are those of `kaishare`."""


@dataclass(frozen=True)
class Ended:
    """What a command wrote, and how it ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        """Everything as lines, for a record."""
        errors = [f"stderr: {line}" for line in self.err.splitlines()]
        return [f"exit {self.status}", *self.out.splitlines(), *errors]


def run(command: str, *arguments: str, home: Path, hide: Mapping[str, str] | None = None) -> Ended:
    """Run a command in this process, without a terminal and without the caller's environment.

    `hide` maps texts that differ from run to run to what is recorded.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({"HOME": str(home), "PATH": before.get("PATH", ""), "TMPDIR": str(home), "TZ": "UTC", "LC_ALL": "C.UTF-8"})
    name = command.rpartition("-")[2]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(ROOT):
            try:
                status = _MAINS[command]([name, *arguments])
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else 1
    finally:
        os.environ.clear()
        os.environ.update(before)
    texts = [hidden(stream.buffer.getvalue().decode(), {str(home): "HOME", **(hide or {})}) for stream in (out, err)]  # type: ignore[attr-defined]
    return Ended(int(status or 0), *texts)


def hidden(text: str, hide: Mapping[str, str]) -> str:
    """Replace the texts that differ from run to run or from release to release."""
    for what, shown in hide.items():
        text = text.replace(what, shown)
    text = text.replace(f"{ROOT}/", "").replace("kaishare-webhook:", "kaishare:").replace("kaishare-agent:", "kaishare:")
    return re.sub(rf"\b{re.escape(version())}\b", "VERSION", text)


SETTINGS: Final[Mapping[str, Rules]] = {
    "usual": Rules(),
    "newest KAI": Rules(kai_version=Version.parse("0.17.0"), default_priority_class="usual"),
    "oldest KAI": Rules(kai_version=Version.parse("0.7.11"), default_mode=Mode.OBSERVE),
    "without shares": Rules(inject_shares=False),
}
"""The administrator's settings for the reviews."""


class Webhooks:
    """The three webhooks without HTTP: bytes in, bytes out."""

    def __init__(self, policies: Path, rules: Rules = SETTINGS["usual"]) -> None:
        """Read Namespace objects from a file."""
        self._log = io.BytesIO()
        self._metrics = Metrics()
        source = FilePolicies(policies, default_mode=rules.default_mode)
        webhooks = {
            "/mutate": MutatingWebhook(policies=source, rules=lambda: rules, metrics=self._metrics),
            "/validate/pods": PodValidator(policies=source, rules=lambda: rules),
            "/validate/namespaces": NamespaceValidator(rules=lambda: rules),
        }
        log = JsonLog(self._log)
        self._handlers = {path: ReviewHandler(each, metrics=self._metrics, log=log) for path, each in webhooks.items()}

    def answers(self, reviews: Sequence[tuple[str, bytes]]) -> list[tuple[bytes | str, dict[str, Any]]]:
        """Return the answer to each review, or one line if it is refused, and the fields of its log line."""
        return asyncio.run(self._answers(reviews))

    async def _answers(self, reviews: Sequence[tuple[str, bytes]]) -> list[tuple[bytes | str, dict[str, Any]]]:
        made = []
        for path, body in reviews:
            self._log.seek(0)
            self._log.truncate()
            answer: bytes | str
            try:
                answer = await self._handlers[path].answer(body, "id")
            except (BadReview, ReviewFailed) as error:
                answer = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0)
            lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
            made.append((answer, next((line for line in lines if line["message"] == "decision"), {})))
        return made
