"""What a user of one namespace sees of an agent: its pods, and nothing that tells about those of others."""

from typing import Final

import msgspec

from gpuagent.api_types import AgentResponse, ApiGpu, ApiHolding, ApiLostGpu, ApiPod, ApiProblem
from gpuagent.server.api import of_namespace

SECRET: Final = 987_654_321
RESPONSE: Final = AgentResponse(
    node="n",
    flag_transitions={"over-share": {"raised": SECRET}},
    fleet_url="https://secret.example.com",
    problems=[ApiProblem("process-list-cut", "GPU-1", "secret/pod has 1,000 processes")],
    lost_gpus=[ApiLostGpu(3, "GPU-secret")],
    gpus=[
        ApiGpu(
            "GPU-1", 0, "A10", total_bytes=24, used_bytes=SECRET, promised_bytes=SECRET, first_act="secret"
        ),
        ApiGpu("GPU-secret", 1, "A10", total_bytes=24),
    ],
    pods=[
        ApiPod("team-a", "mine", "u1", gpus=(ApiHolding("GPU-1", 0, used_bytes=7),)),
        ApiPod("secret", "theirs", "u2", gpus=(ApiHolding("GPU-1", 0, used_bytes=SECRET),)),
    ],
)


def test_nothing_of_other_namespaces_is_shown() -> None:
    part = of_namespace(RESPONSE, "team-a")
    assert [pod.name for pod in part.pods] == ["mine"]
    assert [(gpu.uuid, gpu.total_bytes, gpu.used_bytes) for gpu in part.gpus] == [("GPU-1", 24, None)]
    text = msgspec.json.encode(part).decode()
    assert "secret" not in text
    assert str(SECRET) not in text
    assert not of_namespace(RESPONSE, "other").gpus
