"""Time of `kaishare explain` for many documents of many kinds, in every output format.

Run: `python -m benchmarks.explain`. It fails if a format needs more than `MOST_SECONDS`, start included.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

MOST_SECONDS = 5.0
DOCUMENTS = 1000
OUTPUTS = ("text", "json")

POLICY = """\
apiVersion: v1
kind: Namespace
metadata:
  name: default
  labels:
    kai.scheduler/queue: vision
    kaishare.dev/gpu-fraction: "0.4"
    kaishare.dev/gpu-toleration: inject
    size.kaishare.dev/train: "0.5"
    size.kaishare.dev/serve: "0.25"
  annotations:
    size.kaishare.dev/train: batch.kubernetes.io/job-name
    size.kaishare.dev/serve: app in (web)
"""

_POD_SPEC = """\
# the first container has the GPU
containers:
- name: main # {number}
  image: example.invalid/image:{number}
  command: ["python", "-m", "http.server"]
  env:
  - {{name: NUMBER, value: "{number}"}}
  ports:
  - containerPort: 8080
    protocol: TCP
  readinessProbe:
    httpGet: {{path: /healthz, port: 8080}}
    periodSeconds: 5
  resources:
    limits:
      nvidia.com/gpu: 1 # a whole one
      memory: 8Gi
    requests:
      cpu: "2"
  volumeMounts:
  - name: data
    mountPath: /data
- name: sidecar
  image: example.invalid/sidecar
volumes:
- name: data
  emptyDir: {{}}
tolerations: []
"""


def _indented(text: str, columns: int) -> str:
    return "".join(f"{' ' * columns}{line}\n" for line in text.splitlines())


def _workload(kind: str, api_version: str, path: tuple[str, ...]) -> Callable[[int], str]:
    def build(number: int) -> str:
        head = f"apiVersion: {api_version}\nkind: {kind}\nmetadata:\n  name: {kind.lower()}-{number}\n"
        levels = "".join(f"{'  ' * depth}{key}:\n" for depth, key in enumerate(path))
        labels = "metadata:\n  labels:\n    app: web\nspec:\n" if path else "spec:\n"
        body = labels + _indented(_POD_SPEC.format(number=number), 2)
        return head + levels + _indented(body, 2 * len(path))

    return build


def _object(kind: str, api_version: str, body: str) -> Callable[[int], str]:
    def build(number: int) -> str:
        return (
            f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {kind.lower()}-{number}}}\n{body}\n"
        )

    return build


_TEMPLATE = ("spec", "template")
_BUILDERS = (
    _workload("Pod", "v1", ()),
    _workload("Deployment", "apps/v1", _TEMPLATE),
    _workload("StatefulSet", "apps/v1", _TEMPLATE),
    _workload("DaemonSet", "apps/v1", _TEMPLATE),
    _workload("Job", "batch/v1", _TEMPLATE),
    _workload("CronJob", "batch/v1", ("spec", "jobTemplate", "spec", "template")),
    _workload("JobSet", "jobset.x-k8s.io/v1alpha2", ("spec", "jobs", "template", "spec", "template")),
    _workload("Service", "serving.knative.dev/v1", _TEMPLATE),
    _object("InferenceService", "serving.kserve.io/v1beta1", "spec: {model: {limits: {nvidia.com/gpu: 1}}}"),
    _object("Service", "v1", "spec: {ports: [{port: 80}]}"),
    _object("ConfigMap", "v1", "data: {a: b}"),
)


def documents(count: int) -> Iterator[str]:
    """Yield documents, kind after kind."""
    return (build(number) for number, build in enumerate(islice(cycle(_BUILDERS), count)))


def write_input(folder: Path, count: int) -> list[str]:
    """Write policies and manifests into a folder; return the arguments of `explain` without an output."""
    (folder / "policies.yaml").write_text(POLICY)
    (folder / "manifests.yaml").write_text("---\n".join(documents(count)))
    return ["explain", "--policies", f"{folder}/policies.yaml", "-f", f"{folder}/manifests.yaml"]


def measure(arguments: list[str], output: str) -> tuple[float, int]:
    """Run the command once; return its seconds and the size of its output in bytes.

    Raises:
        subprocess.CalledProcessError: the command failed.
    """
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "console", *arguments, "-o", output], check=True, capture_output=True
    )
    return time.monotonic() - began, len(done.stdout)


def main() -> int:
    """Measure every format; return 1 if one takes too long."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--documents", type=int, default=DOCUMENTS, help="number of documents (default %(default)s)"
    )
    count = parser.parse_args().documents
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        arguments = write_input(Path(folder), count)
        for output in OUTPUTS:
            seconds, size = measure(arguments, output)
            print(f"{output:8}  {seconds:5.2f} s  {size / 1e6:5.1f} MB for {count} documents")
            slow = slow or seconds > MOST_SECONDS
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
