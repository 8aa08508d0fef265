"""Short forms of the scenarios of ``chaos``; ``make chaos`` has them all, with 500 faults."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from nats.errors import ProtocolError

from chaos_history import Seen, Told, check
from chaos_parts import SIZE, Killed, plan, start
from qafel.federation.nats import new_client
from qafel.federation.server.state import FederationState
from qafel.federation.server.streams import open_streams
from qafel.federation.subjects import Subjects
from qafel.runs.folder import RunFolder

GROUPS = [
    ["ordered", "clients", "tls"],
    ["wiped", "wiped while down", "client disk", "lost tail"],
    ["network", "hostile", "disk full"],
    ["paused", "server disk"],
]


@pytest.mark.slow
@pytest.mark.parametrize("names", GROUPS, ids=" ".join)
def test_nothing_is_lost_counted_twice_or_stuck(names: list[str]) -> None:
    command = [sys.executable, str(Path(__file__).with_name("chaos.py")), "--faults", "30", "--seconds", "6"]
    command += [part for name in names for part in ("--only", name)]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=290, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    total = json.loads(done.stdout[done.stdout.rindex("\n{") :])
    assert (total["lost"], total["twice"], total["stuck"]) == (0, 0, 0)
    assert total["held"]


def test_the_kill_switch_of_the_chaos_is_a_real_sigkill() -> None:
    child = os.fork()
    if child == 0:
        Killed("after read", 1)("after read")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_the_checker_of_histories_notices_what_is_lost_counted_twice_or_not_told() -> None:
    chosen = plan(10)
    state = FederationState(chosen, chosen.job(SIZE), start())
    one, two = Seen(0, 0, 7), Seen(0, 1, 8)
    state.server.seen.add(0, 0)
    summary = {"uploads": 1, "version": 0, "digest": 16 * "x" + "abc"}
    fine = Told({one, two}, {one, two}, {one}, {two: "the training had ended: uploads"}, ["0 abc"])
    assert check(state, set(), summary, [fine])["held"]

    def problem(history: Told, what: str, **changes: object) -> None:
        checks = check(state, set(), {**summary, **changes}, [history])
        assert not checks["held"]
        assert checks[what], checks

    problem(fine._replace(rejected={}), "lost")
    problem(fine._replace(counted=set()), "without a receipt")
    problem(fine._replace(counted={one, two}, rejected={}), "told the wrong thing")
    problem(fine._replace(rejected={one: "norm", two: "norm"}), "told the wrong thing")
    problem(fine, "twice", uploads=2)
    assert not check(state, set(), summary, [fine._replace(ends=["0 abd"])])["held"]
    assert not check(state, set(), summary, [fine], stuck=1)["held"]


def test_every_stream_has_as_many_copies_as_the_plan_says() -> None:
    configs: dict[str, dict[str, Any]] = {}

    class Recorder:
        subjects, max_payload = Subjects("t"), 1 << 20

        async def ensure(self, name: str, config: dict[str, Any]) -> None:
            configs[name] = config

    asyncio.run(open_streams(Recorder(), 3, 1000))  # type: ignore[arg-type]
    assert {config["num_replicas"] for config in configs.values()} == {3}
    assert all(config.get("storage") != "memory" for config in configs.values())


def test_a_connection_that_reads_what_no_broker_sends_starts_anew() -> None:
    with pytest.raises(ProtocolError):
        asyncio.run(new_client("nats://127.0.0.1:1")._ps.parse(b'INFO {"server_id" \r\n'))


def test_a_folder_that_was_being_made_when_its_server_was_killed_is_taken(tmp_path: Path) -> None:
    (tmp_path / "config.toml.part").write_bytes(b"name")
    RunFolder.create(tmp_path, "name = 1\n").close()
    assert (tmp_path / "config.toml").read_text(encoding="utf-8") == "name = 1\n"
