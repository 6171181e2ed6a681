"""Objects with deep managedFields, which the agent gets by name."""

import time

from gpuagent.pods.node_pods import decoder
from gpuagent.pods.objects import Namespace
from service.json_depth import HAS_FIXED_LIMIT
from tests.support.large_objects import object_with_deep_fields


def test_a_namespace_with_deep_managed_fields_costs_linear_time() -> None:
    item = object_with_deep_fields(b"[" * 8 + b"1" + b"]" * 8, 395)
    began = time.thread_time()
    assert decoder("Namespace", Namespace)(item).metadata.name == "a"
    seconds = 0.4 if HAS_FIXED_LIMIT else 0.05  # as service/json_depth.py says
    assert time.thread_time() - began < seconds * len(item) / (1 << 20)
