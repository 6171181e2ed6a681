"""Writes the generated files of the chart: `python deploy/render.py`. Needs helm on the PATH or as $HELM.

- deploy/alerts, and the chart's rules: rendered from deploy/mixin, with the README's table of alerts.
- deploy/helm/kaishare/files/policies: the admission policies, from console/render.
- deploy/helm/kaishare/files: copies of files in deploy/, because helm cannot read files outside of a chart.
- deploy/manifests: the chart's objects for `kubectl apply -k`, one kustomize base for each service.
- deploy/helm/kaishare/README.md: the table of values, from values.yaml.
- deploy/helm/kaishare/Chart.yaml: the icon, from docs/icon.svg.
- The tables in docs/security.md: rights of each service account with their reasons, from comments in roles.

With `--check` nothing is written: the command names outdated files, and exits 1 if there are any.
"""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))
from console.render import policy_manifests as policies
from deploy.alerts import rendering
from webhook.policy.decision_settings import DecisionSettings

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy" / "helm" / "kaishare"
FILES: Final = CHART / "files"
MANIFESTS: Final = ROOT / "deploy" / "manifests"
README: Final = CHART / "README.md"
ICON: Final = ROOT / "docs" / "icon.svg"
SECURITY: Final = ROOT / "docs" / "security.md"
ALERTS_README: Final = rendering.ALERTS / "README.md"

OLDEST_KUBERNETES: Final = "1.30.0"
EVERY_RIGHT: Final[Mapping[str, Any]] = {
    "agent": {"eviction": {"mode": "on"}},
    "authentication": {"enabled": True},
}
"""Values with which the chart grants all optional rights."""

_COPIED: Final = (
    "dashboards/fleet.json",
    "dashboards/namespace.json",
    "dashboards/node.json",
    "dashboards/webhook.json",
)
"""Files of deploy/ that are copied into the chart."""

_POLICIES: Final = "# Generated from console/render/policies/{} by `make manifests`.\n"

_PARTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "webhook": (
        "The webhook, rendered from the chart with its default values.",
        {"webhook": {"createNamespace": True}, "agent": {"enabled": False}},
    ),
    "agent": (
        "The agent, rendered from the chart with its default values. Access to the driver may need a patch.",
        {"webhook": {"enabled": False}},
    ),
}
_OF_HELM: Final = re.compile(r"^ *(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n", re.MULTILINE)
_PLACE: Final = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

_ICON: Final = re.compile(r"^(icon: data:image/svg\+xml;base64,).*$", re.MULTILINE)
_VALUE_LINE: Final = re.compile(r"(?P<indent> *)(?:(?P<item>- .*)|# ?(?P<comment>.*)|(?P<key>[\w./-]+):.*)")
_LINE_BREAK: Final = "<br>"


def outputs() -> dict[Path, str]:
    """Return the expected text of every generated file, by path."""
    files = dict(copies())
    for part, (title, values) in _PARTS.items():
        files |= {MANIFESTS / part / name: text for name, text in _manifests(title, values).items()}
    table = values_table((CHART / "values.yaml").read_text(encoding="utf-8"))
    files[README] = _PLACE.sub(
        lambda place: f"{place[1]}{table}{place[3]}", README.read_text(encoding="utf-8")
    )
    about = CHART / "Chart.yaml"
    icon = base64.b64encode(ICON.read_bytes()).decode()
    files[about] = _ICON.sub(lambda place: f"{place[1]}{icon}", about.read_text(encoding="utf-8"))
    files[SECURITY] = _PLACE.sub(
        lambda place: f"{place[1]}{rights_table(place[2])}{place[3]}", SECURITY.read_text(encoding="utf-8")
    )
    alerts = rendering.alerts_table()
    files[ALERTS_README] = _PLACE.sub(
        lambda place: f"{place[1]}{alerts}{place[3]}", ALERTS_README.read_text(encoding="utf-8")
    )
    return files


def copies() -> Iterator[tuple[Path, str]]:
    """Yield path and text of the rendered rules, and of the chart's copies."""
    yield from rendering.files().items()
    for name in _COPIED:
        yield FILES / name, (ROOT / "deploy" / name).read_text(encoding="utf-8")
    for name in (policies.MUTATING, policies.VALIDATING):
        text = f"{_POLICIES.format(name)}{policies.text_of(name, DecisionSettings())}"
        yield FILES / "policies" / name, text
    releases = {
        name: [".".join(map(str, each)) for each in since] for name, since in policies.RELEASES.items()
    }
    yield FILES / "policies" / "releases.json", json.dumps(releases, indent=2) + "\n"


def rendered(values: Mapping[str, Any]) -> str:
    """Return the output of `helm template` with these values.

    Raises:
        SystemExit: helm is missing or fails; the message is one line or helm's.
    """
    command = [os.environ.get("HELM", "helm"), "template", "kaishare", str(CHART), "--namespace", "kaishare"]
    command += ["--kube-version", OLDEST_KUBERNETES, "--skip-tests"]
    for key, value in values.items():
        command += ["--set-json", f"{key}={json.dumps(value)}"]
    try:
        helm = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except OSError as error:
        raise SystemExit(f"{command[0]}: {error.strerror}; install helm or set $HELM to its path") from None
    if helm.returncode != 0:
        raise SystemExit(helm.stderr.strip())
    return helm.stdout


def _manifests(title: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return a kustomize base, texts by file name: one file for each template, and the kustomization."""
    files: dict[str, str] = {}
    for document in rendered(values).split("---\n# Source: ")[1:]:
        source, _, text = document.partition("\n")
        name = Path(source).name
        text = _OF_HELM.sub("", text).strip() + "\n"
        files[name] = f"{files[name]}---\n{text}" if name in files else text
    resources = "".join(f"  - {name}\n" for name in sorted(files))
    files["kustomization.yaml"] = (
        f"# {title}\n# Generated by deploy/render.py; use an overlay to change it.\n"
        f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{resources}"
    )
    return files


def rights_table(account: str) -> str:
    """Return the rules of one service account as a Markdown table with the reason of each rule."""
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
            raise SystemExit(f"{role['kind']} {account}: a rule has no comment `# why:`")
        namespace = role["metadata"].get("namespace")
        where = f"namespace `{namespace}`" if namespace else "the cluster"
        for rule, (why, only) in zip(role["rules"], reasons, strict=True):
            groups = [f".{group}" if group else "" for group in rule["apiGroups"]]
            of = ", ".join(f"`{resource}{group}`" for group in groups for resource in rule["resources"])
            names = ", ".join(f"`{name}`" for name in rule.get("resourceNames", ()))
            place = f"{where}, named {names}" if names else where
            yield ", ".join(rule["verbs"]), of, place, why, f"`{only}`" if only else ""


def _reasons(text: str) -> list[tuple[str, str]]:
    """Return each rule's comments `# why:` and `# only:`; the latter names the value of an optional rule."""
    reasons: list[tuple[str, str]] = []
    for line in text.splitlines():
        key, _, comment = line.strip().partition(": ")
        if key == "# why":
            reasons.append((comment, ""))
        elif key == "# only":
            reasons[-1] = (reasons[-1][0], comment)
    return reasons


def values_table(text: str) -> str:
    """Return the values of a values.yaml as a Markdown table.

    A comment above a key explains it. A key with a block of further keys has a row of its own only if it is
    explained.
    """
    rows = [("value", "default", "what it is"), ("---", "---", "---"), *_value_rows(text)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _value_rows(text: str) -> Iterator[tuple[str, str, str]]:
    values = yaml.safe_load(text)
    path: list[tuple[int, str]] = []
    comments: list[str] = []
    list_indent: int | None = None
    for line in text.splitlines():
        match = _VALUE_LINE.fullmatch(line)
        if match is None:
            comments = []  # a comment before an empty line is about the file
            continue
        indent = len(match["indent"])
        if list_indent is not None and indent > list_indent:
            continue  # the rest of an item of a list
        list_indent = indent if match["item"] else None
        if match["comment"] is not None:
            comments.append(match["comment"])
        elif match["key"]:
            path = [*(step for step in path if step[0] < indent), (indent, match["key"])]
            keys = [key for _, key in path]
            default = _value(values, keys)
            is_block = isinstance(default, dict) and bool(default)
            if comments or not is_block:
                cell = "" if is_block else f"`{json.dumps(default, ensure_ascii=False)}`"
                yield f"`{'.'.join(keys)}`", cell, _cell(comments)
            comments = []


def _value(values: Any, keys: list[str]) -> Any:
    for key in keys:
        values = values[key]
    return values


def _cell(comments: list[str]) -> str:
    """Join the lines of a comment; lines of a list within it, such as modes, stay apart."""
    joined = ""
    for line in comments:
        is_entry = re.match(r"\S+ {2,}\S", line) is not None
        joined += (_LINE_BREAK if is_entry else " ") + " ".join(line.split())
    return joined.strip().removeprefix(_LINE_BREAK).replace("|", "\\|")


def stale() -> list[Path]:
    """Return the generated files that are outdated, missing, or superfluous."""
    wanted = outputs()
    existing = {path for folder in (FILES, MANIFESTS) for path in folder.rglob("*") if path.is_file()}
    return sorted(
        path
        for path in existing | set(wanted)
        if path not in wanted or not path.exists() or path.read_text(encoding="utf-8") != wanted[path]
    )


def write() -> None:
    """Update every generated file."""
    for path, text in copies():  # first, since helm reads the copies
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
    outdated = stale()
    for path in outdated:
        print(f"out of date: {path.relative_to(ROOT)}; run python deploy/render.py")  # noqa: T201
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
