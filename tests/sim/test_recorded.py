"""What a run records for those who look at it: errors of the quantizers, the buffer, and its events."""

import subprocess
import sys
from pathlib import Path

from learners import Quadratic
from qafel.runs.events import EVENTS, read_events
from qafel.runs.folder import METRICS, RunFolder
from qafel.sim import Settings, Simulation


def test_points_have_the_errors_of_both_quantizers_and_the_fill_of_the_buffer() -> None:
    chosen = {"uploads": 130, "evaluate_every": 25, "buffer_size": 10, "rate": 10.0}
    quantized = {"client_quantizer": "qsgd:4,bucket=256,norm=max", "server_quantizer": "topk:0.5"}
    one, two = (
        Simulation(Settings(**chosen, **quantized), Quadratic(), workers=workers)  # type: ignore[arg-type]
        for workers in (1, 2)
    )
    for run in (one, two):
        run.run()
    assert one.tracker.points == two.tracker.points
    assert [point.buffer for point in one.tracker.points] == [0, 5, 0, 5, 0, 5, 0]
    assert one.tracker.points[0].server_error is None  # no step yet
    for point in one.tracker.points[1:]:
        assert 0 < point.server_error < 0.5  # type: ignore[operator]
        assert 0 < point.client_error < 0.2  # type: ignore[operator]
    exact = Simulation(Settings(algorithm="fedbuff", **chosen), Quadratic(), workers=1)  # type: ignore[arg-type]
    exact.run()
    assert {(point.server_error or 0.0, point.client_error) for point in exact.tracker.points} == {(0.0, 0.0)}


def test_events_are_the_same_for_any_workers_and_after_a_resume_and_change_no_byte_of_the_result(
    tmp_path: Path,
) -> None:
    settings = Settings(uploads=130, evaluate_every=25, buffer_size=10, rate=10.0, dropouts=0.1)
    digests, logs, metrics = set(), [], set()
    for name, workers, asked in (("a", 1, True), ("b", 2, True), ("c", 1, False)):
        folder = RunFolder.create(tmp_path / name, settings.to_toml())
        simulation = Simulation(settings, Quadratic(), workers=workers, folder=folder, events=asked)
        simulation.run()
        folder.close()
        digests.add(simulation.digest)
        metrics.add((folder.path / METRICS).read_bytes())
        logs.append((tmp_path / name / EVENTS).read_bytes() if asked else b"")
    assert len(digests) == len(metrics) == 1
    assert logs[0] == logs[1]
    assert not (tmp_path / "c" / EVENTS).exists()
    events = read_events(tmp_path / "a" / EVENTS)
    kinds = [event[0] for event in events]
    assert kinds.count("report") == 130
    assert kinds.count("step") == 13
    assert kinds.count("lost") > 0
    starts = {tuple(event[2:4]): event for event in events if event[0] == "start"}
    versions = {0: 0.0} | {event[2]: event[1] for event in events if event[0] == "step"}
    for _, moment, client, task, staleness in (event for event in events if event[0] == "report"):
        _, began, _, _, version = starts[client, task]
        assert began <= moment
        newest = max(known for known, when in versions.items() if when < moment or known == 0)
        assert staleness in (newest - version, newest - version + 1)
    # stop at a checkpoint in the middle, and go on
    folder = RunFolder.create(tmp_path / "d", settings.to_toml())

    def stop(run: Simulation) -> None:
        run._stop = run.tracker.totals.uploads >= 60

    first = Simulation(settings, Quadratic(), workers=1, folder=folder, events=True, progress=stop)
    first.run()
    folder.close()
    with (tmp_path / "d" / EVENTS).open("ab") as file:
        file.write(b'["start", 99.0, 1, 1')  # written after the checkpoint
    folder = RunFolder.open(tmp_path / "d")
    second = Simulation(settings, Quadratic(), workers=2, folder=folder)
    second.resume(folder.checkpoint() or b"")
    second.run()
    folder.close()
    assert (tmp_path / "d" / EVENTS).read_bytes() == logs[0]
    assert read_events(tmp_path / "d" / EVENTS, 3, 4) == events[3:7]


def test_a_full_disk_leaves_whole_lines_and_no_lock(tmp_path: Path) -> None:
    """In a process of its own: the limit on a file's size makes writes fail as a full disk does."""
    script = """
import resource, signal, sys
import subprocess
import sys
from pathlib import Path
from qafel.errors import QafelError
from qafel.runs.folder import METRICS, RunFolder
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
folder = RunFolder.create(path, "")
folder.append({"uploads": 1})
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
for attempt in (lambda: folder.append({"uploads": 2}), lambda: folder.append({"uploads": 2})):
    try:
        attempt()
    except QafelError:
        print("refused")
for k in range(10):
    folder.note("start", k)
try:
    folder.close()
except QafelError:
    print("not closed")
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
again = RunFolder.open(path)
again.append({"uploads": 2})
again.close()
print((path / METRICS).read_text().split())
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")], capture_output=True, text=True, timeout=240
    )
    lines = """['{"uploads":1}', '{"uploads":2}']"""
    assert done.stdout.splitlines() == ["refused", "refused", "not closed", lines], done.stderr
