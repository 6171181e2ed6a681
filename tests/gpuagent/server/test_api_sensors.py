"""Sensors and idleness in the JSON API, from the driver or the past to `/api/v1/shares`."""

import json
from dataclasses import replace
from typing import Any

from gpuagent.evaluation.history import History
from gpuagent.evaluation.status import Evaluation
from gpuagent.gpus.gpu_reading import LostGpu, Sensors, Xid
from gpuagent.ledger.snapshot import Snapshot
from gpuagent.server.api import shares_json
from tests.support.samples import GIB, gpu, in_pod, pod_share, sample, snapshot_of
from tests.support.scenarios import node
from tests.support.scenarios.loading import parse_scenario
from tests.support.scenarios.source import ScenarioGpus

NONE = {
    "utilizationRatio": None, "temperatureCelsius": None, "powerWatts": None, "powerLimitWatts": None, "xid": None,
}  # fmt: skip


def status_of(*snapshots: Snapshot) -> Evaluation:
    """Return the status after these samples."""
    history = History(interval=5)
    for snapshot in snapshots:
        history.record(snapshot)
    newest = snapshots[-1]
    evaluation = Evaluation(snapshot=newest, history=history, good_at=newest.taken_at)
    return evaluation.at(newest.taken_at, started_at=0, interval=5, pods_silent_for=0)


def api(status: Evaluation) -> Any:
    return json.loads(shares_json(status, node="n", is_simulated=False))


def test_a_gpu_has_its_sensors_or_null() -> None:
    sensors = Sensors(
        utilization_ratio=0.5,
        temperature_celsius=-3,
        power_watts=70.25,
        power_limit_watts=150.0,
        xid=Xid(79, 1_800_000_000.5),
    )
    known, unknown = gpu(sensors=sensors), gpu(uuid="GPU-other", index=1)
    first, second = api(status_of(snapshot_of(sample(known, unknown))))["gpus"]
    assert {key: first[key] for key in NONE} == {
        "utilizationRatio": 0.5,
        "temperatureCelsius": -3,
        "powerWatts": 70.25,
        "powerLimitWatts": 150.0,
        "xid": {"code": 79, "time": 1_800_000_000.5},
    }
    assert {key: second[key] for key in NONE} == NONE


def test_a_lost_gpu_has_its_newest_error_or_null() -> None:
    lost = LostGpu(1, "GPU-b", "NVIDIA A10", Xid(79, 1_800_000_000.5)), LostGpu(2)
    response = api(status_of(replace(snapshot_of(sample(gpu())), lost_gpus=lost)))
    assert [gpu["xid"] for gpu in response["lostGpus"]] == [{"code": 79, "time": 1_800_000_000.5}, None]


def test_a_holding_has_its_idle_time() -> None:
    share = pod_share("train", GIB)
    idle = [snapshot_of(sample(gpu(), at=at), share) for at in (0, 5, 15)]
    (train,) = api(status_of(*idle))["pods"]
    assert train["gpus"][0]["idleSeconds"] == 15
    busy = snapshot_of(sample(gpu((10, GIB)), origins={10: in_pod("train")}, at=20), share)
    (train,) = api(status_of(*idle, busy))["pods"]
    assert train["gpus"][0]["idleSeconds"] is None
    without_history = replace(status_of(*idle), history=None)
    assert api(without_history)["pods"][0]["gpus"][0]["idleSeconds"] is None


def test_a_simulated_gpu_has_the_sensors_of_its_scenario(clock) -> None:
    figures = {
        "utilization": {0: 20, 10: 90},
        "temperature": 61,
        "power": {0: 100, 10: 140},
        "power_limit": 150,
        "xid": [{"code": 31, "at": 5}, {"code": 13}],
    }
    source = ScenarioGpus(scenario=parse_scenario(node(**figures), "test"), clock=clock)
    try:
        first, other = source.read().gpus
        clock.now += 10
        second = source.read().gpus[0]
    finally:
        source.close()
    assert other.sensors == Sensors()
    assert first.sensors.xid is not None
    assert second.sensors.xid is not None
    assert replace(first.sensors, xid=None) == Sensors(
        utilization_ratio=0.2, temperature_celsius=61, power_watts=100.0, power_limit_watts=150.0
    )
    assert (second.sensors.utilization_ratio, second.sensors.power_watts) == (0.9, 140.0)
    assert (first.sensors.xid.code, second.sensors.xid.code) == (13, 31)
    assert source.errors == {}
