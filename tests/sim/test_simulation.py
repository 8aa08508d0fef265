"""A run equals the slow twin to the bit, whoever trains, wherever it was interrupted."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import timeline_twin
import twin
from learners import Quadratic, step
from qafel import Client, QafelWarning
from qafel.runs.folder import METRICS, RunFolder
from qafel.sim import Settings, Simulation, simulate
from qafel.streams import derive, generator

pytestmark = pytest.mark.slow

QUANTIZERS = {"qsgd:4,bucket=256,norm=max": twin.qsgd(7, 256, "max"), "topk:0.1": twin.topk(0.1)}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QafelWarning)
        yield


def run(workers: int = 1, learner: Any = None, **values: Any) -> Simulation:
    settings = Settings(**{"uploads": 200, "evaluate_every": 50, "buffer_size": 4, **values})
    simulation = Simulation(settings, learner or Quadratic(), workers=workers)
    simulation.run()
    return simulation


CLOCKS: list[dict[str, Any]] = [
    {"rate": 10.0},
    {"arrivals": "poisson", "rate": 20.0, "dropouts": 0.2, "staleness_weight": "sqrt", "lookahead": 0.3},
    {"arrivals": "closed", "momentum": 0.0, "max_staleness": 3},
    {"arrivals": "refill", "concurrency": 5, "sampling": "idle", "slow_fraction": 0.3},
]


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize("live", [False, True])
def test_a_run_equals_the_slow_twin_to_the_bit(clock: dict[str, Any], live: bool) -> None:
    """Precomputed, and event by event with transfers timed by real bytes."""
    spec = "qsgd:4,bucket=256,norm=max"
    bandwidth: dict[str, Any] = {"up_bandwidth": 2e3, "down_bandwidth": 5e3} if live else {}
    real = run(client_quantizer=spec, server_quantizer="topk:0.1", seed=5, **clock, **bandwidth)
    job = real.server.job
    weight = (lambda tau: 1 / np.sqrt(1.0 + tau)) if "staleness_weight" in clock else (lambda tau: 1.0)
    server = twin.TwinServer(
        np.zeros(job.size, np.float32), QUANTIZERS["topk:0.1"], 4, 1.0, job.momentum, weight, seed=5,
        lookahead=job.lookahead,
    )  # fmt: skip
    hidden, frames = server.hidden.copy(), {}
    queue: list[Any] = []
    upload_bytes, increment_bytes = _sizes(real)
    events = timeline_twin.walk(
        real.settings,
        7,
        upload=lambda serial: upload_bytes / 2e3,
        broadcast=(lambda version: increment_bytes[version - 1] / 5e3) if live else None,
    )
    reports = 0
    for kind, _, serial, client, task, version in events:
        if kind == "start":
            seed = derive(5, "task", client, task)
            delta = step(hidden, client, generator(seed, "train"))
            frames[serial] = QUANTIZERS[spec](delta, derive(seed, "update"))
        elif kind == "deliver":
            hidden = hidden + queue.pop(0)
        elif kind == "report":
            reports += 1
            if job.max_staleness is None or version <= job.max_staleness:
                q = server.receive(frames.pop(serial), server.version - version)
                if q is not None and live:
                    queue.append(q)
                elif q is not None:
                    hidden = hidden + q
            if reports == 200:
                break
    assert np.array_equal(real.server.x, server.x)
    assert np.array_equal(real.server.hidden.x, server.hidden)
    assert real.server.version == server.version


def _sizes(real: Simulation) -> tuple[int, list[int]]:
    """Bytes of an update, and of each increment, from a second run that listens."""
    sizes: list[int] = []
    again = Simulation(real.settings, Quadratic(), workers=1)
    stepped = again._stepped

    def listen(step: Any) -> None:
        sizes.append(len(step.frame))
        stepped(step)

    again._stepped = listen  # type: ignore[method-assign]
    again.run()
    totals = real.tracker.totals
    return totals.bytes_up // totals.uploads, sizes


@pytest.mark.parametrize("clock", CLOCKS)
def test_any_number_of_workers_gives_the_same_bytes(clock: dict[str, Any]) -> None:
    runs = [run(workers, **clock) for workers in (1, 2, 3)]
    assert len({r.digest for r in runs}) == 1
    assert runs[0].tracker.totals == runs[1].tracker.totals == runs[2].tracker.totals


@pytest.mark.parametrize("engine", ["kernel", "plain"])
def test_training_is_the_same_for_one_and_two_workers(engine: str) -> None:
    one, two = (
        simulate(uploads=30, evaluate_every=30, clients=40, held_out_samples=20, engine=engine, workers=n)
        for n in (1, 2)
    )
    assert one.summary.digest == two.summary.digest
    assert one.points == two.points


def test_compiled_training_is_the_same_for_one_and_two_workers() -> None:
    from qafel.tasks.engines import compiler

    if compiler() is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    one, two = (
        simulate(data="digits", model="mlp", partition="dirichlet:1", uploads=60, engine="compile", workers=n)
        for n in (1, 2)
    )
    assert one.summary.digest == two.summary.digest


@pytest.mark.parametrize("cut", [1, 37, 120, 199])
@pytest.mark.parametrize("clock", [*CLOCKS, {"up_bandwidth": 2e3, "down_bandwidth": 5e3}])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_resumed_from_a_checkpoint_ends_in_the_same_bytes(
    clock: dict[str, Any], cut: int, workers: int, tmp_path: Path
) -> None:
    settings = Settings(uploads=200, evaluate_every=50, buffer_size=4, **clock)
    whole = RunFolder.create(tmp_path / "whole", settings.to_toml())
    uninterrupted = Simulation(settings, Quadratic(), workers=1, folder=whole)
    uninterrupted.run()

    folder = RunFolder.create(tmp_path / "cut", settings.to_toml())
    first = Simulation(settings, Quadratic(), workers=workers, folder=folder)
    first._progress = lambda run: setattr(run, "_stop", run.tracker.totals.uploads >= cut)
    first.run()
    assert first.stopped
    saved = folder.checkpoint()
    assert saved is not None
    second = Simulation(settings, Quadratic(), workers=workers, folder=folder)
    second.resume(saved)
    second.run()
    folder.close()
    whole.close()
    assert second.digest == uninterrupted.digest
    assert (folder.path / METRICS).read_bytes() == (whole.path / METRICS).read_bytes()
    assert second.tracker.totals == uninterrupted.tracker.totals


def test_a_run_that_ended_but_was_not_written_down_is_resumed_to_its_end(tmp_path: Path) -> None:
    settings = Settings(uploads=100, evaluate_every=50, buffer_size=4)
    folder = RunFolder.create(tmp_path / "run", settings.to_toml())
    first = Simulation(settings, Quadratic(), workers=2, folder=folder)
    first.run()
    saved = folder.checkpoint()
    assert saved is not None
    second = Simulation(settings, Quadratic(), workers=1, folder=folder)
    second.resume(saved)
    second.run()
    folder.close()
    assert (second.tracker.reason, second.digest) == ("uploads", first.digest)
    assert second.tracker.totals == first.tracker.totals


def test_checkpoints_in_the_middle_change_nothing(tmp_path: Path) -> None:
    settings = Settings(uploads=200, evaluate_every=50, buffer_size=4)
    folder = RunFolder.create(tmp_path / "run", settings.to_toml())
    often = Simulation(settings, Quadratic(), workers=2, folder=folder, checkpoint_seconds=0)
    often.run()
    folder.close()
    assert often.digest == run().digest


def test_bytes_of_clients_that_catch_up_are_the_frames_of_requests_and_answers() -> None:
    settings = Settings(uploads=300, evaluate_every=300, buffer_size=4, rate=10.0, downlink="catch-up")
    simulation = Simulation(settings, Quadratic(), workers=1)
    server, down, asked = simulation.server, 0, 0
    clients: dict[int, Client] = {}
    download = simulation._download

    def listen(event: Any) -> float:
        nonlocal down, asked
        client = clients.setdefault(
            event.client, Client(server.job, simulation.learner.x, client=event.client)
        )
        request = client.request()
        asked += len(request)
        for frame in server.catch_up(request):
            down += len(frame)
            client.apply(frame)
        assert client.digest == server.hidden.digest
        return download(event)

    simulation._download = listen  # type: ignore[method-assign]
    simulation.run()
    totals = simulation.tracker.totals
    assert totals.bytes_down == down > 0
    free = Simulation(msgspec.structs.replace(settings, downlink="broadcast"), Quadratic(), workers=1)
    free.run()
    assert totals.bytes_up == free.tracker.totals.bytes_up + asked


def test_bandwidth_makes_time_of_bytes() -> None:
    fast, slow = (run(rate=10.0, up_bandwidth=width).tracker.totals for width in (None, 100.0))
    size = slow.bytes_up / slow.uploads
    assert slow.in_flight > fast.in_flight
    assert slow.area / slow.time - fast.area / fast.time == pytest.approx(10 * size / 100, rel=0.2)


def test_stops_at_a_target_a_byte_budget_or_a_time_limit() -> None:
    assert run(uploads=10_000, target=0.9).tracker.reason == "target"
    budget = run(uploads=10_000, byte_budget=20_000).tracker.totals
    assert budget.reason == "byte budget"
    assert 20_000 <= budget.bytes_up + budget.bytes_down < 21_000
    limited = run(uploads=10_000, time_limit=1.5).tracker.totals
    assert limited.reason == "time limit"
    assert limited.uploads < 200


def test_the_target_is_held_against_the_median_of_three() -> None:
    class Lucky(Quadratic):
        def evaluate(self, x: Any, chunk: int) -> dict[str, float]:
            Lucky.calls += chunk
            return {"accuracy": 150.0 if Lucky.calls == 5 else 0.0}  # one lucky evaluation

        calls = 0

    assert run(learner=Lucky(), evaluate_every=10, target=0.9).tracker.reason == "uploads"


def test_fedavg_is_synchronous_and_all_algorithms_run() -> None:
    totals = {}
    for name in ("qafel", "fedbuff", "fedasync", "fedavg", "naive"):
        totals[name] = run(algorithm=name, buffer_size=None if name == "fedasync" else 4).tracker.totals
    assert set(totals["fedavg"].staleness) == {0}
    assert totals["fedasync"].version == 200
    assert totals["fedbuff"].bytes_up > 4 * totals["qafel"].bytes_up
    assert totals["fedavg"].time > totals["fedbuff"].time


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_workers_that_dawdle_at_the_queue_change_nothing(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and orders are taken at different moments; whoever comes between them finds what it should."""
    import contextlib
    import os
    import random
    import time

    from qafel.sim import workers as pool

    alone = run(uploads=1200, evaluate_every=100, rate=60.0)
    prompt, parent = pool._Shared.locked, os.getpid()

    @contextlib.contextmanager
    def dawdling(shared: Any, *check: Any) -> Iterator[None]:
        luck = random.Random(time.perf_counter_ns()).random()
        if os.getpid() != parent and luck < 0.1:
            time.sleep(0.02 * luck)
        with prompt(shared, *check):
            yield
        if luck > 0.95:
            time.sleep(0.002)

    monkeypatch.setattr(pool._Shared, "locked", dawdling)
    assert run(workers=workers, uploads=1200, evaluate_every=100, rate=60.0).digest == alone.digest


def test_training_that_diverges_is_a_divergence_whoever_trains() -> None:
    from qafel.errors import DivergenceError

    class Wild(Quadratic):
        def delta(self, task: Any, samples: Any) -> Any:
            raise DivergenceError("the loss is not finite")

    for workers in (1, 2):
        with pytest.raises(DivergenceError, match="the loss is not finite"):
            run(workers=workers, learner=Wild())


def test_a_dead_worker_is_noticed(tmp_path: Path) -> None:
    import os
    import signal

    from qafel import WorkerError

    class Deadly(Quadratic):
        def delta(self, task: Any, samples: Any) -> Any:
            if task.task > 5:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().delta(task, samples)

    with pytest.raises(WorkerError, match="a worker died \\(signal 9\\)"):
        run(workers=2, learner=Deadly())


def test_an_error_in_local_training_is_one_sentence_with_its_traceback_kept() -> None:
    from qafel import WorkerError

    class Faulty(Quadratic):
        def delta(self, task: Any, samples: Any) -> Any:
            raise RuntimeError("no\nluck")

    with pytest.raises(WorkerError, match="local training failed: RuntimeError: no luck") as caught:
        run(workers=2, learner=Faulty())
    assert "Traceback" in caught.value.__notes__[0]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kind", [ValueError, FileNotFoundError, KeyError])
def test_whatever_a_users_code_raises_is_one_sentence(workers: int, kind: type[Exception]) -> None:
    from qafel import WorkerError

    class Faulty(Quadratic):
        def delta(self, task: Any, samples: Any) -> Any:
            raise kind("bad luck")

    with pytest.raises(WorkerError, match=f"local training failed: {kind.__name__}: .*bad luck"):
        run(workers=workers, learner=Faulty())


def test_a_run_stopped_in_python_is_resumed_and_read_in_the_same_process(tmp_path: Path) -> None:
    import torch

    from qafel import sim

    shared: dict[str, Any] = {
        "data": "digits",
        "model": "softmax",
        "clients": 30,
        "uploads": 60,
        "workers": 1,
    }

    def stop(run: Simulation) -> None:
        run._stop = run.tracker.totals.uploads >= 20

    threads = torch.get_num_threads()
    whole = simulate(**shared)
    with pytest.raises(sim.Stopped, match="can be resumed from"):
        simulate(
            out=tmp_path / "run",
            progress=lambda r: setattr(r, "_stop", r.tracker.totals.uploads >= 20),
            **shared,
        )
    result = sim.resume(str(tmp_path / "run"), workers=1)
    assert result.summary.digest == whole.summary.digest
    assert torch.get_num_threads() == threads
    again = sim.load(str(tmp_path / "run"))
    assert again.points == result.points
    assert all(np.array_equal(again.parameters()[k], v) for k, v in result.parameters().items())


def test_frames_that_were_lost_are_noticed_when_a_run_is_resumed(tmp_path: Path) -> None:
    from qafel import StateError

    settings = Settings(uploads=200, evaluate_every=50, buffer_size=4)
    folder = RunFolder.create(tmp_path / "run", settings.to_toml())
    first = Simulation(settings, Quadratic(), workers=1, folder=folder)
    first.frames._budget = 0
    first._progress = lambda run: setattr(run, "_stop", run.tracker.totals.uploads >= 50)
    first.run()
    saved = folder.checkpoint()
    assert saved is not None
    second = Simulation(settings, Quadratic(), workers=1, folder=folder)
    second.frames._budget = 0
    second.resume(saved)
    second.run()
    assert second.digest == run(rate=100.0).digest
    folder.frames.unlink()
    third = Simulation(settings, Quadratic(), workers=1, folder=folder)
    third.resume(saved)
    with pytest.raises(StateError, match="has changed since"):
        third.run()
    folder.close()


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"data": 5}, "the data must be .* got int"),
        ({"model": None}, "model must be a name, an nn.Module, or a function"),
        ({"clients": -5}, "clients must be at least 1"),
        ({"concurrency": 10**30}, "concurrency must be at least 1 and below"),
        ({"local_rate": float("inf"), "data": "digits", "model": "mlp"}, "positive and finite"),
        ({"device": "cpu:x", "data": "digits", "model": "mlp"}, "unknown device"),
        ({"data": lambda: 1 / 0}, "the data factory failed: ZeroDivisionError"),
        ({"model": lambda: 1 / 0, "data": "digits"}, "the model factory failed: ZeroDivisionError"),
        ({"data": lambda: (np.full((50, 2), np.nan), np.arange(50) % 2)}, "sample 0 .* not finite"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_sentence(values: dict[str, Any], sentence: str) -> None:
    from qafel import ConfigError

    with pytest.raises(ConfigError, match=sentence):
        simulate(uploads=10, **values)


def test_numpy_numbers_and_paths_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.random.default_rng(0).random((100, 3)), y=np.arange(100) % 2)
    result = simulate(
        data=path,
        model="logistic",
        clients=np.int64(12),  # type: ignore[arg-type]
        local_rate=np.float64(0.1),
        uploads=20,
        workers=1,
    )
    assert result.summary.clients == 12


def test_a_model_that_keeps_state_in_buffers_is_refused() -> None:
    from torch import nn

    from qafel import ConfigError

    def net(shape: Any, classes: int) -> Any:
        return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(64, classes)))

    with pytest.raises(ConfigError, match="changes its buffers"):
        simulate(data="digits", model=net, uploads=10)
