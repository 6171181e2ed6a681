"""Proves that the tests find faults: `python -m tests.project.seeded_faults`.

Each fault replaces one text of the source in a temporary copy of the repository. The tests that are named beside it
must then fail. The text is searched in all packages, so that it may move to another module.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.project.sources import ROOT, modules

_NOT_COPIED: Final = shutil.ignore_patterns(
    ".git", ".venv", ".newest-python", ".site", "__pycache__", ".*_cache", ".hypothesis", "build", "dist"
)
_SECONDS: Final = 600.0
"""Time limit of the tests of one fault."""
_FAILED: Final = 1
"""Exit status of pytest after a failed test."""


class SeedError(ValueError):
    """A fault does not fit the source."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule of kaishare, a change that breaks it, and the tests that prove it."""

    rule: str
    old: str
    """Occurs exactly once in the packages."""
    new: str
    tests: str
    """Folder or file below tests/."""


FAULTS: Final = (
    Fault("decide: the policy's priority does not overrule the pod's own PriorityClass",
          " and not _has_own_class(pod, settings)", "", "webhook/policy/test_decide.py"),
    Fault("decide: a converted pod loses each nvidia.com/gpu key", "removed_gpu_keys=share.removed,",
          "removed_gpu_keys=share.removed[:1],", "webhook/policy/test_properties.py"),
    Fault("decide: a toleration that the pod has is not added again",
          "toleration=bool(wants_toleration) and not _tolerates_gpu_taint(pod),", "toleration=bool(wants_toleration),",
          "webhook/policy/test_properties.py"),
    Fault("verify: a pod that claims to be a DaemonSet's comes from its controller",
          "if username not in DAEMON_SET_CONTROLLERS:", "if username in DAEMON_SET_CONTROLLERS:",
          "webhook/policy/test_verify.py"),
    Fault("verify: a fraction that is no number is above each cap", "elif not gpus <= policy.max_fraction + ROUNDING:",
          "elif gpus > policy.max_fraction + ROUNDING:", "webhook/policy/test_verify.py"),
    Fault("sizes: two sizes that select one pod are ambiguous", "if len(selected) > 1:", "if len(selected) > 2:",
          "webhook/policy/test_sizes.py"),
    Fault("sizes: a size above the cap is invalid", "if amount <= own[0]:", "if amount <= own[0] or is_memory:",
          "webhook/policy/test_sizes.py"),
    Fault("distributed: a rank without a number keeps its GPU", "if largest is not None and largest.ranks != 1:",
          "if largest is not None and (largest.ranks or 0) > 1:", "webhook/policy/test_distributed.py"),
    Fault("patch: ~ is escaped before /", "return key.replace(\"~\", \"~0\").replace(\"/\", \"~1\")",
          "return key.replace(\"/\", \"~1\").replace(\"~\", \"~0\")", "webhook/policy"),
    Fault("admission: /mutate fails open after an internal error",
          'never blocks a user."""\n        return Outcome.admit(review, Action.ERROR, finding)',
          'never blocks a user."""\n        return None', "webhook/policy/test_any_body.py"),
    Fault("admission: a review leaves nothing in memory", "        seconds = time.perf_counter() - started\n",
          "        seconds = time.perf_counter() - started\n        self.__dict__.setdefault(\"kept\", []).append(bytearray(64))\n",
          "webhook/test_endurance.py"),
    Fault("certificates: the next CA signs only after it has been in the bundle",
          "if following is not None and next_is_trusted and", "if following is not None and", "certs"),
    Fault("registration: pods are created while the webhook for mutations is down",
          "\"failurePolicy\": \"Ignore\",  # without the webhook, pods are admitted unchanged", "\"failurePolicy\": \"Fail\",",
          "webhook/registration"),
    Fault("registration: KAI's webhooks are called after kaishare's", "is_of_kai(each, of_kai) and sorts_behind(own, name)",
          "is_of_kai(each, of_kai) and sorts_behind(name, own)", "webhook/registration"),
    Fault("enforce: users may not write KAI's key of a pod's PodGroup", "return is_of_kai(key) and key not in _USERS",
          "return is_of_kai(key) and key in _USERS", "webhook"),
    Fault("doctor: a queue with one child queue cannot be used", "        if children := self.children(name):\n",
          "        if len(children := self.children(name)) > 1:\n", "console/cluster"),
    Fault("explain: an invalid label of a namespace is a refusal",
          "return int(is_refused or any(invalid.is_refused for invalid in answer.problems.values()))",
          "return int(is_refused)", "console/explain"),
    Fault("KAI's arithmetic: the memory of a GPU is rounded down to hundreds", "units = amount - amount % 100", "units = amount",
          "kai"),
    Fault("attribution: a pod inside a pod belongs to the outer one", "for uid in origin.pod_uids:",
          "for uid in reversed(origin.pod_uids):", "gpuagent/ledger"),
    Fault("attribution: ended processes leave nothing in memory",
          "        known: dict[int, _KnownProcess] = {}\n        problems: list[Problem] = []",
          "        known = dict(self._known)\n        problems: list[Problem] = []", "gpuagent/sampling/test_hidden_owners.py"),
    Fault("balance: time within the share cancels half as much time over it",
          "balance = max(balance - sample.counted // _RECOVERY, 0)", "balance = max(balance - sample.counted, 0)",
          "gpuagent/verdicts"),
    Fault("flags: a flag ends after two clean samples", "is_flagged = clean_samples < (1 if is_immediate else _CLEAN_SAMPLES)",
          "is_flagged = clean_samples < 1", "gpuagent/verdicts"),
    Fault("over-share: the mode off ends evictions", "== OverShare.EVICT and labels.get(MODE) != MODE_OFF", "== OverShare.EVICT",
          "gpuagent/verdicts"),
    Fault("pins: only KAI's own reservation pod binds a pod again", "if place.is_complete and place.is_kais:",
          "if place.is_complete:", "gpuagent/shares"),
    Fault("entitlement: an annotation counts only on a pod that KAI placed", " and not self.is_annotation_ignored:", ":",
          "gpuagent/shares"),
    Fault("consent: pods of a namespace that is being deleted are not evicted",
          "if namespace.deletion_timestamp or not _consents(", "if not _consents(", "gpuagent/actions"),
    Fault("consent: a pod that was edited after the sample is not evicted",
          "and not accepts_edits and _share_texts(fresh) != _share_texts(pod)",
          "and not accepts_edits and fresh.annotations.keys() != pod.annotations.keys()", "gpuagent/actions"),
    Fault("events: the end of a flag that was not reported is not reported",
          "transition.change is Change.CLEARED and not entry.is_flag_known", "False", "gpuagent/actions"),
    Fault("metrics: an unknown figure of a GPU has no sample",
          "                if value is not None:\n                    page.add_text(family, labels, value)",
          "                page.add_text(family, labels, value or 0)", "gpuagent/server"),
    Fault("page: the browser runs the page's own scripts alone", "default-src 'none'; script-src 'self'",
          "default-src 'none'; script-src 'self' 'unsafe-inline'", "gpuagent/server/test_page.py"),
    Fault("authentication: a token for another audience is refused",
          "is_for_audience = audience is None or audience in status.audiences", "is_for_audience = True",
          "cluster/test_token_authorizer.py"),
    Fault("authentication: several Authorization headers are no token", "if len(tokens) != 1 or not is_token(tokens[0]):",
          "if not is_token(tokens[0]):", "service/http"),
    Fault("connections: one above the limit closes another", "if len(self.table) > self._limits.max_connections:",
          "if len(self.table) > self._limits.max_connections + 1:", "service/http"),
    Fault("log: lines that cannot be written are counted", "self._lines_lost += lost", "self._lines_lost += lost > len(lines)",
          "webhook/test_standard_streams.py"),
    Fault("log: a full pipe does not stop the service",
          "fits = self._lines < self._queue_lines and self._bytes + len(line) <= self._queue_bytes",
          "while self._bytes > self._queue_bytes // 2: time.sleep(0.01)\n            fits = True",
          "webhook/test_standard_streams.py"),
    Fault("console: rows without a figure come last", "1 if row.used is None else -row.used",
          "-(row.used or 1 << 60)", "console/top/test_table.py"),
    Fault("watch: after 410 the whole state is read again",
          "                self._resource_version = \"\"\n                return \"gone\", str(error), 0.0",
          "                return \"gone\", str(error), 0.0", "kube"),
    Fault("risk: a figure that is unknown and decides makes the risk unknown",
          "    return 0 if most_unused_bytes <= available_bytes else None", "    return 0", "gpuagent/ledger/test_risk.py"),
    Fault("health: a sensor that hangs is awaited for a part of the GPU's deadline", "part = self._deadline * _PART_OF_DEADLINE",
          "part = self._deadline * 300", "gpuagent/gpus/test_sensors.py"),
    Fault("driver: processes that use more than the device reports suspend the verdicts of their GPU",
          "if left is not None and left < -DEFAULT_SLACK.of(self._gpu.used_bytes or 0):",
          "if left is not None and left > self._gpu.used_bytes:", "gpuagent/gpus/test_driver_faults.py"),
    Fault("driver: an impossible figure of a sensor is unknown",
          "return value if smallest <= value <= largest and value != _UNKNOWN else None", "return value",
          "gpuagent/gpus/test_driver_faults.py"),
    Fault("processes: a process that began after the reading is not the one that the driver listed",
          "if after.started_after(self._began):", "if not after.program[0]:", "gpuagent/sampling/test_processes.py"),
    Fault("watch: the head of an answer is no contact",
          "            self._opened_at = self._clock()\n",
          "            self._opened_at = self._clock()\n            self._record_contact()\n", "kube/test_watch_faults.py"),
)  # fmt: skip


def seed(folder: Path, fault: Fault) -> Path:
    """Apply a fault to a copy of the repository; return the changed file.

    Raises:
        SeedError: the text does not occur exactly once.
    """
    places = [path for path in modules(folder) if fault.old in path.read_text(encoding="utf-8")]
    texts = [path.read_text(encoding="utf-8") for path in places]
    count = sum(text.count(fault.old) for text in texts)
    if count != 1:
        raise SeedError(f"{fault.rule}: the text occurs {count} times in the packages: {fault.old!r}")
    places[0].write_text(texts[0].replace(fault.old, fault.new), encoding="utf-8")
    return places[0]


def is_found(fault: Fault) -> tuple[bool, str]:
    """Return whether the tests fail with the fault, and the first test that does, or why none may have.

    Raises:
        SeedError: the fault does not fit the source, its tests do not exist, or they cannot be run.
    """
    if not (ROOT / "tests" / fault.tests).exists():
        raise SeedError(f"{fault.rule}: there is no tests/{fault.tests}")
    with tempfile.TemporaryDirectory(prefix="kaishare-fault-") as name:
        folder = Path(name) / "copy"
        shutil.copytree(ROOT, folder, ignore=_NOT_COPIED)
        seed(folder, fault)
        command = [
            sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "--timeout", "0", "-p", "no:cacheprovider",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                [*command, f"tests/{fault.tests}"], cwd=folder, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                capture_output=True, text=True, check=False, timeout=_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return True, f"no end within {_SECONDS:g} s"
    if done.returncode not in (0, _FAILED):
        raise SeedError(f"{fault.rule}: pytest ends with {done.returncode}\n{done.stdout[-2000:]}")
    lines = done.stdout.splitlines()
    if done.returncode == 0 and "skipped" in lines[-1]:
        return False, "some of its tests are skipped: see CONTRIBUTING.md for what they need"
    first = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "")
    return done.returncode == _FAILED, first.partition(" - ")[0]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.project.seeded_faults", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("words", nargs="*", help="only faults whose rule contains one of these words")
    words = parser.parse_args(arguments).words
    faults = [fault for fault in FAULTS if not words or any(word in fault.rule for word in words)]
    missed = 0
    for fault in faults:
        began = time.monotonic()
        try:
            is_proven, first = is_found(fault)
        except SeedError as error:
            is_proven, first = False, str(error)
        missed += not is_proven
        seconds = time.monotonic() - began
        print(f"{'found' if is_proven else 'MISSED'} {seconds:5.0f} s  {fault.rule}  {first}", flush=True)  # noqa: T201
    print(f"{len(faults) - missed} of {len(faults)} faults are found")  # noqa: T201
    return int(bool(missed) or not faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
