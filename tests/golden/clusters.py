"""Records of the commands that read a cluster: a whole one, and the same cluster with one thing changed."""

import datetime
import itertools
import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import jsonpatch
import yaml

from tests.golden import product, reviews
from tests.golden.api_server import hold
from tests.golden.records import changed_lines
from tests.support.api_server import ObjectServer

Json = Any
_STATES: Final = Path(__file__).parent / "states"
_DATE: Final = datetime.datetime(2026, 11, 21, 1, tzinfo=datetime.UTC)
_TRIAL: Final = (
    "--label", "kai.scheduler/queue=q", "--label", "kaishare.dev/gpu-fraction=0.5", "--label",
    "kaishare.dev/share-for=all",
)  # fmt: skip
_PROXY: Final = "/api/v1/namespaces/kaishare-agent/pods/kaishare-agent-{}:9445/proxy/api/v1/shares"


def doctor_cases(server: ObjectServer) -> Iterator[tuple[str, Json]]:
    """Yield what the `doctor` says about the cluster and each of its faults; only differences for a fault."""
    whole: list[str] = []
    for name, state in _states(server):
        hold(server, **state)
        text = _run(server, "doctor")
        findings = _findings(text)
        yield f"doctor {name}", changed_lines(whole, findings) if whole else text
        whole = whole or findings
        if name in ("whole", "webhook-gone", "developer", "guard-changed"):
            yield f"doctor json {name}", _document(_run(server, "doctor", "-o", "json"))
        if name in ("whole", "webhook-gone", "kai-gone", "developer"):
            yield f"doctor --pre {name}", _run(server, "doctor", "--pre")
            yield f"doctor -n team-a {name}", _run(server, "doctor", "-n", "team-a")
            yield f"doctor -n team-b {name}", _run(server, "doctor", "-n", "team-b")


def command_cases(server: ObjectServer) -> Iterator[tuple[str, Json]]:
    states = dict(_states(server))
    for name in ("whole", "label-wrong", "developer", "settings-gone", "agent-silent"):
        hold(server, **states[name])
        for output in ("table", "wide", "json", "yaml"):
            yield f"policies {output} {name}", _run(server, "policies", "-o", output)
        yield f"policies -n {name}", _run(server, "policies", "-n", "team-b")
        for options in (
            [],
            ["-o", "json"],
            ["--flagged"],
            ["--group", "namespace"],
            ["--node", "gpu-node-1"],
        ):
            yield f"top {' '.join(options)} {name}", _run(server, "top", *(options or ["--once"]))
        for options in (
            ["-A"],
            ["-n", "team-b", "-o", "text"],
            ["-A", "--label", "kaishare.dev/gpu-fraction=0.25", "-n", "plain"],
        ):
            yield f"explain --live {' '.join(options)} {name}", _run(server, "explain", "--live", *options)
        for target, space in (
            ("train-x", "team-b"),
            ("deploy/web", "team-a"),
            ("legacy", "team-a"),
            ("own", "plain"),
            ("no", "plain"),
        ):
            yield f"why {target} {name}", _run(server, "why", target, "-n", space)
        for manifest, option in itertools.product(
            ("train-resnet", "vllm", "own-share"), ("--policies=cluster", "--server")
        ):
            text = (product.ROOT / "examples" / "workloads" / f"{manifest}.yaml").read_text()
            path = server.kubeconfig.parent / f"{manifest}.yaml"
            path.write_text(re.sub(r"\n  namespace: \S+", "", text))
            for output in ("text", "json") if name == "whole" else ("text",):
                case = f"explain {option} {manifest} {output} {name}"
                yield case, _run(server, "explain", option, "-f", str(path), "-n", "team-a", "-o", output)


def explain_cases(folder: Path) -> Iterator[tuple[str, Json]]:
    workloads = sorted((product.ROOT / "examples" / "workloads").glob("*.yaml"))
    policies = ("--policies", str(product.ROOT / "examples" / "namespaces.yaml"))
    for path, (name, options), output in itertools.product(
        workloads, (("examples", policies), ("trial", _TRIAL)), ("text", "table", "json")
    ):
        ended = product.run("explain", *options, "-f", str(path), "-o", output, home=folder)
        yield (
            f"explain {path.stem} {name} {output}",
            _document(ended.lines) if output == "json" else ended.lines,
        )
    wrong = (*_TRIAL[:-1], "kaishare.dev/share-for=some", "-f", str(workloads[0]))
    for name, options in (
        ("all", (*policies, "-f", str(workloads[0].parent))),
        ("wrong", wrong),
        ("nothing", ()),
        ("no file", (*_TRIAL, "-f", "none")),
    ):
        yield f"explain {name}", product.run("explain", *options, home=folder).lines
    for scene in sorted((product.ROOT / "examples" / "scenes").iterdir()):
        files = ("--policies", str(scene / "namespace.yaml"), "-f", str(scene / "workloads.yaml"))
        yield f"explain scene {scene.name}", product.run("explain", *files, home=folder).lines
    yield "render", reviews.shortened(product.run("render", home=folder).lines)


def corpus() -> list[Path]:
    """Return the manifests of other projects; none without KAISHARE_CORPUS."""
    return sorted(Path(os.environ.get("KAISHARE_CORPUS", "/nowhere")).glob("*.yaml"))


def corpus_cases(folder: Path) -> Iterator[tuple[str, Json]]:
    for path in corpus():
        for output in ("text", "json"):
            ended = product.run(
                "explain", *_TRIAL, "-f", str(path), "-o", output, home=folder, hide={f"{path.parent}/": ""}
            )
            yield f"explain corpus {path.name} {output}", reviews.shortened(ended.lines)


def _run(server: ObjectServer, command: str, *options: str) -> list[str]:
    arguments = (*options, "--kubeconfig", str(server.kubeconfig))
    hide = {server.server: "SERVER", f"{server.kubeconfig.parent}/": ""}
    ended = product.run(command, *arguments, home=server.kubeconfig.parent, hide=hide)
    return ended.lines


def _findings(lines: list[str]) -> list[str]:
    """Return each finding of a doctor as one line, whatever the width of its columns."""
    text = re.sub(r"\n +", " ", "\n".join(lines))
    return [" ".join(line.split()) for line in text.splitlines()]


def _document(lines: list[str]) -> Json:
    try:
        return [lines[0], json.loads("\n".join(lines[1:]))]
    except ValueError:
        return lines


def _states(server: ObjectServer) -> Iterator[tuple[str, dict[str, Json]]]:
    text = (_STATES / "cluster.jsonl").read_text().replace("VERSION", product.VERSION)
    objects = {_key(each): each for each in [*map(json.loads, text.splitlines()), *product.guard()]}
    agents = {
        _PROXY.format(number): (
            200,
            json.loads((_STATES / f"agent-{name}.json").read_text().replace("VERSION", product.VERSION)),
        )
        for number, name in enumerate(("incident", "node"))
    }
    for name, fault in {"whole": {}, **yaml.safe_load((_STATES / "faults.yaml").read_text())}.items():
        changed = dict(objects)
        for key, patch in fault.get("objects", {}).items():
            matched = (
                [each for each in objects if each.startswith(key.removesuffix("*"))]
                if key.endswith("*")
                else [key]
            )
            for each in matched:
                changed[each] = None if patch is None else _merged(changed.get(each, {}), patch)
        items = [each for each in changed.values() if each is not None]
        answers = {
            **agents,
            **{path: (code, body) for path, (code, body) in fault.get("answers", {}).items()},
        }
        denied, unserved = tuple(fault.get("denied", ())), tuple(fault.get("unserved", ()))
        yield name, {
            "date": _DATE, "items": items, "unserved": unserved, "answers": answers,
            "forbidden": lambda path, denied=denied: any(re.search(each, path) for each in denied),
            "create": _Creation(server.kubeconfig.parent, items, refusal=fault.get("refusal", "")),
        }  # fmt: skip


class _Creation:
    """Answers the creation of a pod as an API server with the webhook does."""

    def __init__(self, folder: Path, items: list[Json], *, refusal: str) -> None:
        self._policies, self._refusal = folder / "namespaces.json", refusal
        self._namespaces = [each for each in items if each["kind"] == "Namespace"]
        self._lock = threading.Lock()

    def __call__(self, path: str, sent: Json) -> tuple[int, Json]:
        if self._refusal:
            return 403, {"kind": "Status", "code": 403, "reason": "Forbidden", "message": self._refusal}
        if not path.endswith("/pods"):
            return 201, sent
        with self._lock:
            self._policies.write_text(json.dumps({"kind": "List", "items": self._namespaces}))
            ((answer, _),) = product.Webhooks(self._policies).answers(
                [("/mutate", reviews.review(sent, path.split("/")[4]))]
            )
        patch = reviews.patch_of(json.loads(answer)["response"])
        return 201, jsonpatch.apply_patch(sent, patch)


def _key(item: Json) -> str:
    return "/".join(filter(None, (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])))


def _merged(value: Json, patch: Json) -> Json:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, inner in patch.items():
        if inner is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), inner)
    return merged
