"""Writes what is made of the chart and for it: `python deploy/render.py`. Needs helm on the PATH or as $HELM.

- deploy/helm/kaishare/files: what other folders of deploy/ hold, since helm reads nothing outside of a chart.
- deploy/manifests: the chart's objects for `kubectl apply -k`, a kustomize base for each service.
- The tables of docs/security.md: what each service account may do, and why, from comments in the roles.

`--check` writes nothing, names what is out of date, and exits 1 if there is something.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "kaishare"
FILES: Final = CHART / "files"
MANIFESTS: Final = ROOT / "deploy" / "manifests"
SECURITY: Final = ROOT / "docs" / "security.md"

OLDEST_KUBERNETES: Final = "1.30.0"
EVERY_RIGHT: Final[Mapping[str, Any]] = {"agent": {"readKaiConfigMaps": True, "eviction": {"mode": "on"}}}
"""Values with which the chart grants all that it can grant."""

_COPIED: Final = (
    "alerts/rules.yaml",
    "dashboard/kaishare.json",
    "guard/bindings/enforce.yaml",
    "guard/bindings/vclusters.yaml",
    "guard/policies/keys.yaml",
    "guard/policies/owners.yaml",
    "guard/policies/queues.yaml",
    "guard/policies/references.yaml",
)
"""What of deploy/ is also in the chart's files."""

_PARTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "webhook": (
        "The webhook, as the chart makes it with its own values.",
        {"webhook": {"createNamespace": True}, "agent": {"enabled": False}},
    ),
    "agent": (
        "The agent, as the chart makes it with its own values. How it gets at the driver may need a patch.",
        {"webhook": {"enabled": False}},
    ),
}
_OF_HELM: Final = re.compile(r"^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n", re.MULTILINE)
_PLACE: Final = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def outputs() -> dict[Path, str]:
    """Every file that this program writes, as it should be."""
    files = dict(copies())
    for part, (title, values) in _PARTS.items():
        files |= {MANIFESTS / part / name: text for name, text in _manifests(title, values).items()}
    files[SECURITY] = _PLACE.sub(
        lambda place: f"{place[1]}{rights_table(place[2])}{place[3]}", SECURITY.read_text(encoding="utf-8")
    )
    return files


def copies() -> Iterator[tuple[Path, str]]:
    """What the chart holds a copy of."""
    for name in _COPIED:
        yield FILES / name, (ROOT / "deploy" / name).read_text(encoding="utf-8")


def rendered(values: Mapping[str, Any]) -> str:
    """The chart as helm prints it.

    Raises:
        SystemExit: helm fails, with what it says.
    """
    command = [os.environ.get("HELM", "helm"), "template", "kaishare", str(CHART), "--namespace", "kaishare"]
    command += ["--kube-version", OLDEST_KUBERNETES, "--skip-tests"]
    for key, value in values.items():
        command += ["--set-json", f"{key}={json.dumps(value)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip())
    return done.stdout


def _manifests(title: str, values: Mapping[str, Any]) -> dict[str, str]:
    """File names and texts: one for each template, and the kustomization."""
    files: dict[str, str] = {}
    for document in rendered(values).split("---\n# Source: ")[1:]:
        source, _, text = document.partition("\n")
        name = Path(source).name
        text = _OF_HELM.sub("", text).strip() + "\n"
        files[name] = f"{files[name]}---\n{text}" if name in files else text
    resources = "".join(f"  - {name}\n" for name in sorted(files))
    files["kustomization.yaml"] = (
        f"# {title}\n# Written by deploy/render.py; change it with an overlay of your own.\n"
        f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}"
    )
    return files


def rights_table(account: str) -> str:
    """The rules of one service account as a table, each with what it is for."""
    head = ("may", "of", "where", "what for", "only with")
    lines = [head, ("---",) * len(head), *_rights(account)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _rights(account: str) -> Iterator[tuple[str, ...]]:
    for text in rendered(EVERY_RIGHT).split("\n---\n"):
        if "\nrules:\n" not in text:
            continue
        role = yaml.safe_load(text)
        if role["metadata"]["name"] != account:
            continue
        reasons = _reasons(text)
        if len(reasons) != len(role["rules"]):
            raise SystemExit(f"{role['kind']} {account}: not every rule has a comment `# why:`")
        namespace = role["metadata"].get("namespace")
        where = f"namespace `{namespace}`" if namespace else "the cluster"
        for rule, (why, only) in zip(role["rules"], reasons, strict=True):
            groups = [f".{group}" if group else "" for group in rule["apiGroups"]]
            of = ", ".join(f"`{resource}{group}`" for group in groups for resource in rule["resources"])
            names = ", ".join(f"`{name}`" for name in rule.get("resourceNames", ()))
            place = f"{where}, named {names}" if names else where
            yield ", ".join(rule["verbs"]), of, place, why, f"`{only}`" if only else ""


def _reasons(text: str) -> list[tuple[str, str]]:
    """Each rule's comments `# why:` and, where it is not always there, `# only:`."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        key, _, said = line.strip().partition(": ")
        if key == "# why":
            found.append((said, ""))
        elif key == "# only":
            found[-1] = (found[-1][0], said)
    return found


def stale() -> list[Path]:
    """Files that are not as they should be, or should not be there."""
    wanted = outputs()
    there = {path for folder in (FILES, MANIFESTS) for path in folder.rglob("*") if path.is_file()}
    return sorted(
        path
        for path in there | set(wanted)
        if path not in wanted or not path.exists() or path.read_text(encoding="utf-8") != wanted[path]
    )


def write() -> None:
    """Bring every file up to date."""
    for path, text in copies():  # helm reads them for all that follows
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    wanted = outputs()
    for path in stale():
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        else:
            path.unlink()


def main(arguments: list[str]) -> int:
    """Run the program; return its exit status."""
    if arguments not in ([], ["--check"]):
        print("usage: render.py [--check]", file=sys.stderr)  # noqa: T201
        return 2
    if not arguments:
        write()
        return 0
    found = stale()
    for path in found:
        print(f"out of date: {path.relative_to(ROOT)}; run python deploy/render.py")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
