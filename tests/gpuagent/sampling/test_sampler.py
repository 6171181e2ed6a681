"""The sampling thread, over simulated nodes and an event loop."""

import asyncio
import io
import json
import threading
import time
from random import SystemRandom

import pytest

from gpuagent.gpus.gpu_reading import GpuProcess
from gpuagent.problems import Cause
from gpuagent.sampling.processes import Processes
from gpuagent.sampling.sample import LookupResult
from gpuagent.sampling.sampler import UNPREDICTABLE, Sampler, next_gap
from service.log import JsonLog
from tests.support.scenarios import GIB, node, process
from tests.support.scenarios.loading import parse_scenario
from tests.support.scenarios.source import ScenarioGpus
from tests.support.waiting import until

SOON = 20  # seconds that nothing here may take, however busy the machine


class Run:
    """A sampler at work, and what it handed to the loop."""

    def __init__(self, source, **timing):
        self.source = source
        self.samples = []
        self.fatal = []
        self.threads = set()
        self.logged = io.BytesIO()
        self.sampler = Sampler(
            source=source,
            look_up=Processes(proc_root=source.proc_root).look_up,
            **{"interval": 0.02, **timing},
            log=JsonLog(self.logged),
        )

    def _take(self, sample):
        self.threads.add(threading.get_ident())
        self.samples.append(sample)

    def lines(self):
        return [json.loads(line) for line in self.logged.getvalue().splitlines()]

    async def until(self, condition):
        await until(condition, seconds=SOON)

    async def __aenter__(self):
        self.sampler.start(on_sample=self._take, on_fatal=self.fatal.append)
        return self

    async def __aexit__(self, *_):
        self.sampler.stop()


@pytest.fixture
def simulated():
    made = []

    def make(*processes, kind=ScenarioGpus, faults=(), **options):
        gpus = kind(scenario=parse_scenario(node(*processes, faults=faults), "test"), **options)
        made.append(gpus)
        return gpus

    yield make
    for gpus in made:
        gpus.close()


async def test_samples_come_with_the_origin_of_every_process(simulated):
    async with Run(simulated(process(100), process(101, gpu=1))) as run:
        await run.until(lambda: len(run.samples) >= 3)
    first, second, *_ = run.samples
    assert first.reading.gpus[0].processes == (GpuProcess(100, GIB),)
    assert {origin.result for origin in first.origins.values()} == {LookupResult.HOST}
    assert first.origins.keys() == {100, 101}
    assert first.problems == ()
    assert second.taken_at > first.taken_at
    assert abs(first.wall_time - time.time()) < 3600
    assert 0 < first.seconds < SOON
    assert run.threads == {threading.get_ident()}
    assert run.lines() == []


async def test_the_random_source_is_the_systems():
    """Others, such as `random.random`, can be reconstructed from the times that they led to."""
    assert isinstance(UNPREDICTABLE.__self__, SystemRandom)


async def test_a_sample_can_be_requested(simulated):
    async with Run(simulated(), interval=3600) as run:
        await run.until(lambda: run.samples)
        await run.until(lambda: run.sampler.seconds_since_start_of_call == 0)  # between calls
        requested_at = time.monotonic()
        run.sampler.sample_now()
        await run.until(lambda: len(run.samples) == 2)
        assert run.samples[1].taken_at >= requested_at
        assert [sample.is_extra for sample in run.samples] == [False, True]


async def test_requested_samples_shift_no_regular_one(simulated):
    began = time.monotonic()
    async with Run(simulated(), interval=1, random=lambda: 0.5) as run:
        while sum(not sample.is_extra for sample in run.samples) < 3:
            run.sampler.sample_now()
            await asyncio.sleep(0.05)
    regular = [sample.taken_at - began for sample in run.samples if not sample.is_extra]
    gap = next_gap(1, 0.5)
    assert len(run.samples) > 10
    for number, at in enumerate(regular):
        assert number * gap <= at < (number + 0.5) * gap


async def test_a_request_during_a_sample_gives_a_later_sample(simulated):
    inside, go_on = threading.Event(), threading.Event()

    class Held(ScenarioGpus):
        def read(self):
            inside.set()
            go_on.wait(SOON)
            return super().read()

    async with Run(simulated(kind=Held), interval=3600) as run:
        await run.until(inside.is_set)
        requested_at = time.monotonic()
        run.sampler.sample_now()
        go_on.set()
        await run.until(lambda: len(run.samples) == 2)
        assert run.samples[0].taken_at <= requested_at <= run.samples[1].taken_at


@pytest.fixture
def hanging(simulated, clock):
    """A source whose calls hang until they are let go."""

    def release():
        clock.now += 10
        source._look()  # a sampler that was stopped does not read any more

    source = simulated(process(100), faults=[{"fault": "hang", "until": 5}], clock=clock, deadline=0.05)
    return source, release


async def test_calls_that_hang_are_visible_and_do_not_delay_the_stop(hanging):
    source, release = hanging
    async with Run(source) as run:
        await run.until(lambda: len(run.samples) >= 2)
        for sample in run.samples:
            assert (sample.reading.gpus, sample.reading.is_hanging) == ((), True)
        await run.until(lambda: run.sampler.seconds_hanging > 0.1)
        assert run.sampler.has_unanswered_call
        began = time.monotonic()
        run.sampler.stop()
        assert time.monotonic() - began < 5
        assert run.sampler.has_unanswered_call
        release()
        await run.until(lambda: not run.sampler.has_unanswered_call)
    assert run.fatal == []


async def test_calls_that_hang_never_end_the_sampler_and_are_forgotten_when_a_gpu_responds(hanging):
    """Ending the process in a driver call has frozen GPUs: `give_up_after` is for drivers that answer."""
    source, release = hanging
    async with Run(source, give_up_after=0.05) as run:
        await run.until(lambda: run.sampler.seconds_hanging > 0.3)
        assert run.fatal == []
        release()
        await run.until(lambda: run.samples and run.samples[-1].reading.gpus)
        await run.until(lambda: run.sampler.seconds_hanging == 0)


async def test_gpus_that_stay_lost_end_the_sampler_after_a_time(simulated):
    faults = [{"fault": "gpu-lost", "gpu": gpu, "from": 0.1} for gpu in (0, 1)]
    async with Run(simulated(faults=faults), give_up_after=0.5) as run:
        await run.until(lambda: run.fatal)
    lost = [sample for sample in run.samples if not sample.reading.gpus]
    assert lost[-1].taken_at - lost[0].taken_at >= 0.5
    assert [problem.cause for problem in lost[0].reading.problems] == [Cause.NVML]
    (reason,) = run.fatal
    assert reason.startswith("no GPU answered for ")
    assert "GpuIsLost" in reason


@pytest.mark.parametrize("fault", ["driver-not-loaded", "library-missing"])
async def test_a_missing_driver_never_ends_the_sampler(simulated, fault):
    async with Run(
        simulated(process(100), faults=[{"fault": fault, "until": 0.5}]), give_up_after=0.1
    ) as run:
        await run.until(lambda: run.samples and run.samples[-1].reading.gpus)
    assert run.fatal == []
    assert run.samples[0].reading.gpus == ()


async def test_a_driver_that_is_away_is_looked_for_between_two_intervals(simulated):
    async with Run(simulated(faults=[{"fault": "driver-not-loaded", "until": 0.2}]), interval=3600) as run:
        await run.until(lambda: run.samples and run.samples[-1].reading.gpus)
    assert run.sampler.errors == {("nvmlInit", "DriverNotLoaded"): 1}
    await run.until(lambda: not run.source.proc_root.exists())  # stopping closes the source


async def test_an_unexpected_error_is_logged_and_counted_and_sampling_goes_on(simulated):
    class Broken(ScenarioGpus):
        reads = 0

        def read(self):
            self.reads += 1
            if self.reads <= 3:
                raise ZeroDivisionError("of the source")
            return super().read()

    async with Run(simulated(process(100), kind=Broken)) as run:
        await run.until(lambda: run.samples)
    assert run.sampler.errors == {("sample", "ZeroDivisionError"): 3}
    (line,) = run.lines()  # once, not three times
    assert line["message"] == "sample failed"
    assert "ZeroDivisionError: of the source" in line["traceback"]


def test_a_loop_that_ended_ends_the_thread(simulated):
    source = simulated()
    run = Run(source)
    loop = asyncio.new_event_loop()

    async def start():
        run.sampler.start(on_sample=run.samples.append, on_fatal=run.fatal.append)

    loop.run_until_complete(start())
    loop.close()
    deadline = time.monotonic() + SOON
    while source.proc_root.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not source.proc_root.exists()
