"""`explain -o manifest`: the changed manifest keeps its comments, its order and its other content."""

import difflib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.documents import DocumentError, load_text
from tests.console.explain.conftest import Run
from tests.support.pods import folder_from

QUEUE = "--label=kai.scheduler/queue=q"
HALF = "--label=kaishare.dev/gpu-fraction=0.5"
ALL = "--label=kaishare.dev/share-for=all"
TOLERATION = "--label=kaishare.dev/gpu-toleration=inject"
MANIFEST = ("-o", "manifest")
EXAMPLES = Path(__file__).parents[3] / "examples"

DEPLOYMENT = """\
# The service
apiVersion: apps/v1
kind: Deployment
metadata: {name: web} # its name
spec:
  template:
    metadata:
      labels:
        app: web
        # the last label
    spec:
      containers:
        - name: main # the container
          image: 'i'
          resources:
            limits:
              # the GPU
              nvidia.com/gpu: 1 # one
              memory: 8Gi
      # a toleration
      tolerations:
      - {key: x, operator: Exists}   # of x
      # the end
"""
CHANGED = """\
# The service
apiVersion: apps/v1
kind: Deployment
metadata: {name: web} # its name
spec:
  template:
    metadata:
      labels:
        app: web
        # the last label
        kai.scheduler/queue: q
      annotations:
        gpu-fraction: '0.5'
        gpu-fraction-container-name: main
        kaishare.dev/reason: whole-gpu-converted
    spec:
      containers:
        - name: main # the container
          image: 'i'
          resources:
            limits:
              # the GPU
              memory: 8Gi
      # a toleration
      tolerations:
      - {key: x, operator: Exists}   # of x
      - key: nvidia.com/gpu
        operator: Exists
        effect: NoSchedule
      # the end
      schedulerName: kai-scheduler
"""


def test_only_the_changed_lines_change(run: Run) -> None:
    result = run(DEPLOYMENT, QUEUE, HALF, TOLERATION, *MANIFEST)
    assert (result.status, result.err) == (0, "")
    assert result.out == CHANGED


def test_new_metadata_stands_before_the_spec(run: Run) -> None:
    text = """\
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  template:
    # the pod
    spec:
      containers: [{name: c}]
"""
    metadata = """\
    metadata:
      labels:
        kai.scheduler/queue: q
      annotations:
        kaishare.dev/reason: no-gpu
"""
    scheduler = "      schedulerName: kai-scheduler\n"
    expected = text.replace("    spec:\n", f"{metadata}    spec:\n") + scheduler
    assert run(text, QUEUE, HALF, *MANIFEST).out == expected
    assert "metadata: {}" not in run(text, QUEUE, HALF).out


def test_windows_line_breaks_stay(run: Run) -> None:
    result = run(DEPLOYMENT.replace("\n", "\r\n"), QUEUE, HALF, TOLERATION, *MANIFEST)
    assert (result.status, result.err) == (0, "")
    assert result.out.replace("\r\n", "\n") == CHANGED
    assert result.out.count("\r\n") == CHANGED.count("\n")


def test_a_second_time_changes_nothing(run: Run) -> None:
    assert run(CHANGED, QUEUE, HALF, TOLERATION, *MANIFEST).out == CHANGED


def test_documents_without_changes_keep_every_character(run: Run) -> None:
    text = "%YAML 1.1\n---\nkind:   ConfigMap   # c\ndata: {a: 'yes',\n b: 0x1F}\n...\n---\n# nothing\n---\nkind: Secret\n"
    assert run(text, QUEUE, HALF, *MANIFEST).out == text
    assert run(DEPLOYMENT, "-n", "other", "--label=kaishare.dev/mode=off", *MANIFEST).out == DEPLOYMENT


def test_inputs_are_joined_to_one_stream(run: Run, tmp_path: Path) -> None:
    texts = ("kind: Secret", "---\nkind: ConfigMap\n", "%YAML 1.1\n---\nkind: Service\n")
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.yaml").write_text(text)
    out = run("", QUEUE, "-f", str(tmp_path), *MANIFEST).out
    assert [each["kind"] for each in yaml.safe_load_all(out)] == ["Secret", "ConfigMap", "Service"]
    (tmp_path / "3.yaml").write_text("# head\n\n%YAML 1.1\n---\nkind: Node\n")
    (tmp_path / "4.yaml").write_text("# head\n---\nkind: Event\n")
    out = run("", QUEUE, "-f", str(tmp_path), *MANIFEST).out
    kinds = ["Secret", "ConfigMap", "Service", "Node", "Event"]
    assert [each["kind"] for each in yaml.safe_load_all(out)] == kinds


@pytest.mark.parametrize("output", ["text", "table", "json", "patch", "manifest"])
def test_a_directive_belongs_to_the_document_after_it(run: Run, output: str) -> None:
    tag = "%TAG !y! tag:yaml.org,2002:\n---\n"
    pod = (
        "kind: Pod\nmetadata: {name: !y!str 7}\n"
        "spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpu: 1}}}]}\n"
    )
    result = run(
        f"{tag}{pod}...\n{tag}{pod}...\n---\n{pod.replace('!y!str 7', 'last')}", QUEUE, HALF, "-o", output
    )
    assert result.err == ""
    if output == "manifest":
        assert [each["metadata"]["name"] for each in yaml.safe_load_all(result.out)] == ["7", "7", "last"]
        assert run(result.out, QUEUE, HALF, *MANIFEST).out == result.out
    if output == "json":
        assert [each["line"] for each in json.loads(result.out)] == [3, 9, 14]


def test_json_stays_json(run: Run) -> None:
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}, "spec": {"containers": [
        {"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": 1, "nvidia.com/gpu": 1}}}]}}  # fmt: skip
    for indent in (None, 2):
        text = json.dumps(
            {"kind": "List", "apiVersion": "v1", "items": [pod, {"kind": "Service"}]}, indent=indent
        )
        result = run(text, QUEUE, HALF, *MANIFEST)
        assert (result.status, result.err) == (0, "")
        items = json.loads(result.out)["items"]
        assert items[0]["spec"]["schedulerName"] == "kai-scheduler"
        assert items[0]["spec"]["containers"][0]["resources"] == {"limits": {}, "requests": {"cpu": 1}}
        assert items[1] == {"kind": "Service"}


FORMS = {
    "aliases of one container": """
spec:
  containers:
  - &c {name: a, resources: &r {limits: {nvidia.com/gpu: 1}}} # first
  metadata: *r
""",
    "an alias as the resources": """
common:
  gpu: &gpu # shared
    limits:
      nvidia.com/gpu: 1
spec:
  containers:
  - name: a
    resources: *gpu
""",
    "an anchor with another user": """
spec:
  containers:
  - name: a
    resources: &gpu
      limits:
        nvidia.com/gpu: 1
  other: *gpu
""",
    "labels shared with another map": """
metadata:
  name: p
  labels: &labels
    app: a # of all
spec:
  selector: *labels
  containers: [{name: a}]
""",
    "a merged map": """
defaults: &defaults {image: i, tty: yes}
spec:
  containers:
  - <<: *defaults
    name: a # merged
""",
    "resources from a merge key": """
common: {gpu: &gpu {limits: {nvidia.com/gpu: 1}, requests: {cpu: 1}}}
spec:
  containers:
  - name: a # a comment
    resources: {<<: *gpu, requests: {cpu: 2}}
""",
    "several merge keys in blocks": """
defaults:
  - &tty {tty: yes, <<: &image {image: i}}
  - &gpu # of all
    limits:
      # one
      nvidia.com/gpu: 1
    requests: {cpu: 1}
spec:
  containers:
  - name: a
    <<: [*tty, *image] # merged
    resources:
      <<: *gpu
      requests:
        nvidia.com/gpu: 1
""",
    "a tagged map": """
spec:
  containers:
  - name: a
    resources: !!map
      limits: !!map {"nvidia.com/gpu": !!str 1}
""",
    "null maps": """
metadata:
  name: p
  labels:
  annotations: ~
spec:
  tolerations: null
  containers:
  - name: a
""",
    "the default scheduler": """
spec:
  schedulerName: default-scheduler # as written
  containers:
  - name: a
""",
    "an empty scheduler": """
spec:
  schedulerName:
  containers:
  - name: a
""",
    "a block of text at the end": """
spec:
  containers:
  - name: a
    args:
    - |
      --- not a document
      text

# the end
""",
    "a block that keeps its line breaks": """
spec:
  containers:
  - name: a
    args: [x]
    command:
    - |+
      text

""",
    "flow maps over several lines": """
spec: {
  containers: [ # the containers
    {name: a, resources: {limits: {nvidia.com/gpu: 1,}, requests: {cpu: 1, nvidia.com/gpu: 1}},}, # a
  ],
}
""",
    "quoted keys": """
"spec":
  'containers':
  - "name": "a"
    "resources":
      "limits":
        "nvidia.com/gpu": "1"
        "cpu": 1
""",
    "no line break at the end": "\nspec:\n  containers:\n  - name: a\n    resources:\n      limits:\n        nvidia.com/gpu: 1",
    "wide indentation": """
metadata:
        name: p
        annotations:
                a: b
spec:
        containers:
                -       name: a
                        resources:
                                requests: {cpu: 1}
                                limits:
                                        nvidia.com/gpu: 1
""",
    "sidecars": """
spec:
  initContainers:
  - name: i
    resources: {limits: {nvidia.com/gpu: 0}}
  containers:
  - name: a
    resources:
      limits:
        nvidia.com/gpu: 1
      requests:
        nvidia.com/gpu: 1
  - name: b
    resources:
      limits: {nvidia.com/gpu: 0, cpu: 1}
""",
    "an explicit document end": "\nspec:\n  containers:\n  - name: a\n...\n",
    "unusual scalars": """
metadata:
  name: p
  annotations: {a: "\\x41", b: 'it''s', c: "010", d: "2026-01-01"}
spec:
  activeDeadlineSeconds: 0x10
  containers:
  - name: a
    env: [{name: E, value: "yes"}, {name: 日本, value: "é"}]
""",
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize(
    "begins",
    [
        "",
        "# head\n---\n",
        "kind: Service\n--- # pod\n",
        "kind: Service\n... # end\n# head\n%YAML 1.1\n---\n",
        "{kind: Service, a: 'b\n%c'}\n%YAML 1.1\n---\n",
    ],
)
def test_every_form_of_yaml_is_edited_in_place(run: Run, name: str, begins: str) -> None:
    text = f"{begins}apiVersion: v1\nkind: Pod{FORMS[name]}"
    if "metadata:\n" not in text:
        text = text.replace("kind: Pod", "kind: Pod\nmetadata: {name: p}")
    policy = (QUEUE, HALF, ALL, TOLERATION)
    result = run(text, *policy, *MANIFEST)
    assert (result.status, result.err) == (0, ""), result.out
    expected = json.loads(run(text, *policy, "-o", "json").out)[-1]["pod"]
    changed = load_text(result.out, "output")
    pod = changed[-1]
    assert {key: pod[key] for key in ("metadata", "spec")} == expected
    original = load_text(text, "input")
    assert changed[:-1] == original[:-1]
    others = [{k: v for k, v in d.items() if k not in ("metadata", "spec")} for d in (original[-1], pod)]
    assert others[0] == others[1]
    for comment in [line[line.index("#") :] for line in text.splitlines() if "# " in line]:
        assert comment in result.out
    assert run(result.out, *policy, *MANIFEST).out == result.out, "a second time changes nothing"


def test_a_form_that_cannot_be_edited_is_written_without_comments_and_named(run: Run) -> None:
    text = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
gpu: &gpu {limits: {nvidia.com/gpu: 1}}
spec:
  containers:
  - name: a # a comment
    resources: *gpu
    env: &none {}
    ports: {<<: *none}
"""
    result = run(text, QUEUE, HALF, *MANIFEST)
    note = "kaishare: Pod p: written without comments and layout\n"
    assert (result.status, result.err) == (0, note)
    pod = yaml.safe_load(result.out)
    assert pod["spec"]["containers"][0]["resources"] == {"limits": {}}
    assert pod["gpu"] == {"limits": {"nvidia.com/gpu": 1}}
    after_another = run(f"kind: Service\n...\n%YAML 1.1\n---\n{text}", QUEUE, HALF, *MANIFEST)
    assert (after_another.err, list(yaml.safe_load_all(after_another.out))[1:]) == (note, [pod])


def test_nothing_is_written_if_a_pod_would_be_denied(run: Run) -> None:
    denied = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {kaishare.dev/inject: 'false'}}\nspec: {containers: [{name: c}]}\n"
    result = run(DEPLOYMENT + denied, QUEUE, "--label=kaishare.dev/mode=enforce", *MANIFEST)
    assert (result.status, result.out) == (1, "")
    assert "error: Pod p in namespace default: denied: the label kaishare.dev/inject" in result.err
    assert result.err.startswith("kaishare: no manifest is written, because of these errors:\n")


def test_nothing_is_written_for_an_invalid_label(run: Run) -> None:
    result = run(DEPLOYMENT, QUEUE, "--label=kaishare.dev/gpu-fraction=5", *MANIFEST)
    assert (result.status, result.out) == (1, "")
    assert 'error: namespace default: kaishare.dev/gpu-fraction: "5" is not allowed' in result.err


def test_mode_observe_writes_the_manifest_unchanged_and_says_so(run: Run) -> None:
    result = run(DEPLOYMENT, QUEUE, HALF, "--label=kaishare.dev/mode=observe", *MANIFEST)
    assert (result.status, result.out) == (0, DEPLOYMENT)
    assert (
        " ".join(result.err.split())
        == "kaishare: namespace default is in mode observe: its pods are written as they are"
    )


def test_objects_that_cannot_be_changed_are_named(run: Run) -> None:
    text = """\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: llm}
spec: {predictor: {model: {resources: {limits: {nvidia.com/gpu: 1}}}}}
---
apiVersion: serving.kserve.io/v1alpha1
kind: ServingRuntime
metadata: {name: runtime}
spec:
  containers:
  - name: c
    resources: {limits: {nvidia.com/gpu: 1}}
"""
    result = run(text, QUEUE, HALF, *MANIFEST)
    assert (result.status, result.out) == (0, text)
    notes = " ".join(result.err.split())
    assert "InferenceService llm is written as it is: its controller creates pods" in notes
    assert "ServingRuntime runtime, spec: left as it is" in notes
    assert max(map(len, result.err.splitlines())) <= 80


def corpus_files() -> list[Path]:
    return sorted(folder_from("KAISHARE_CORPUS", "manifests written by others").glob("*.yaml"))


def test_manifests_of_other_projects_keep_everything_else(run: Run) -> None:
    changed_files = 0
    for file in corpus_files():
        text = file.read_text()
        try:
            original = load_text(text, file.name)
        except DocumentError:
            continue  # a template of another tool
        policy = ("-n", "default", QUEUE, HALF, TOLERATION)
        result = run(text, *policy, "--kai-version=0.13.0", *MANIFEST)
        assert result.status == 0, (file.name, result.err)
        assert "written without" not in result.err, file.name
        documents = load_text(result.out, file.name)
        assert len(documents) == len(original)
        removed = removed_lines(text, result.out)
        allowed = (
            "nvidia.com/gpu:",
            '"nvidia.com/gpu":',
            "limits:",
            "requests:",
            "schedulerName:",
            "metadata:",
            "labels:",
            "annotations:",
        )
        assert all(line.strip().startswith(allowed) for line in removed), (file.name, removed)
        changed_files += documents != original
    assert changed_files >= 20


def removed_lines(before: str, after: str) -> list[str]:
    lines: Any = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:] for line in lines if line.startswith("- ")]


@pytest.mark.parametrize("output", ["manifest", "json", "yaml"])
def test_documents_are_utf_8_in_every_locale(output: str, tmp_path: Path) -> None:
    container = '{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}'
    pod = f'{{"kind": "Pod", "metadata": {{"name": "größe≥"}}, "spec": {{"containers": [{container}]}}}}'
    (tmp_path / "pod.json").write_text(pod, encoding="utf-8")
    options = (QUEUE, HALF, "-o", output, "-f", str(tmp_path / "pod.json"))
    result = subprocess.run(
        [sys.executable, "-m", "console", "explain", *options],
        cwd=EXAMPLES.parent, capture_output=True, check=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
    )  # fmt: skip
    assert "größe≥" in result.stdout.decode()
