"""Runs programs of Prometheus."""

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.render import evaluated

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy" / "alerts"


@functools.cache
def _default_rules() -> str:
    return json.dumps(evaluated("import 'alerts/rules.jsonnet'"))


def default_rules() -> dict[str, Any]:
    """Return the rules of the mixin without settings, as Prometheus loads them."""
    rules: dict[str, Any] = json.loads(_default_rules())
    return rules


def needed(program: str, package: str = "prometheus") -> str:
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is needed: apt-get install {package}")
    return path


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(
        [needed("promtool"), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def case_of(
    query: str,
    series: Mapping[str, str],
    samples: Sequence[Mapping[str, Any]],
    *,
    name: str = "",
    interval: str = "1m",
    at: str = "100m",
) -> dict[str, Any]:
    """Return a case of `assert_cases`: the samples of a query at a time, of series with a value in each interval."""
    return {
        "name": name,
        "interval": interval,
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": at, "exp_samples": [*samples]}],
    }


def assert_cases(folder: Path, *cases: Mapping[str, Any]) -> None:
    """Let one promtool evaluate all cases; it names those that fail."""
    (folder / "rules.yaml").write_text("groups: []\n")
    proof = folder / "proof.yaml"
    proof.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [*cases]}))
    promtool("test", "rules", proof)
