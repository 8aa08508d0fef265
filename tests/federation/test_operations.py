"""Metrics, the command line, and what operators do with a federation."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from parties import SIZE, ended, plan, publish, run, server, update, version
from qafel.bench.federation import PARTS
from qafel.errors import ConfigError
from qafel.federation import Broker, Plan, Subjects, operate
from qafel.federation.broker import free_port
from qafel.federation.entries import Change, Skip, Stop
from qafel.federation.plan import read_plan
from qafel.federation.server.monitoring import Metrics
from qafel.federation.server.state import FederationState
from qafel.federation.subjects import owner

pytestmark = pytest.mark.slow


def test_words_of_others_are_shown_as_they_are(broker: Broker, tmp_path: Path) -> None:
    metrics = Metrics()
    metrics.set("evaluation", 1.0, metric='x"} 1\nqafel_leader 0\n#\\')
    assert [line for line in metrics.text().splitlines() if line.startswith("qafel_leader ")] == [
        "qafel_leader 0"
    ]
    assert r'qafel_evaluation{metric="x\"} 1\nqafel_leader 0\n#\\"} 1.0' in metrics.text()
    serving = server(plan(), broker.url, tmp_path / "server")
    run(version(broker.url, 0))
    operate.decide("t", broker.url, Stop("good [/enough] [abc]"))
    ended(serving)
    assert "ended: good [/enough] [abc]" in qafel("status", "t", "--broker", broker.url, "--once").stdout


def test_metrics_and_health_are_served_on_loopback(broker: Broker, tmp_path: Path) -> None:
    port = free_port()
    chosen = plan(uploads=13)
    job = chosen.job(SIZE)
    serving = server(chosen, broker.url, tmp_path / "server", metrics=port)

    def get(path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(12)] + [(40, b"noise")]))
    until = time.monotonic() + 240
    while "qafel_version 3" not in (text := get("/metrics")[1]) and time.monotonic() < until:
        time.sleep(0.1)
    assert "qafel_uploads_accepted_total 12" in text
    assert 'qafel_uploads_rejected_total{reason="malformed"} 1' in text
    assert 'qafel_staleness_bucket{le="+Inf"} 12' in text
    assert "qafel_leader 1" in text
    for line in text.splitlines():
        assert line.startswith("#") or len(line.rsplit(" ", 1)) == 2
    assert get("/healthz") == (200, "ok\n")
    assert get("/readyz") == (200, "ready\n")
    assert get("/other")[0] == 404
    run(publish(broker.url, [(50, update(job, 50, 0))]))
    ended(serving)


def test_names_and_owners_are_strict() -> None:
    assert owner("qafel.t.up.17") == 17
    for subject in ("qafel.t.up.x", "qafel.t.up.-1", "qafel.t.up.007", "qafel.t.up.", "qafel.t.up.１"):
        assert owner(subject) is None
    for name in ("", "a.b", "a*", "a b", "x" * 33, ">", "-a", "ü", None):
        with pytest.raises(ConfigError):
            Subjects(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("concurrency = 0", "concurrency must be at least 1"),
        ("lease_seconds = -1", "lease_seconds must be at least 0"),
        ("max_norm = 0.0", "max_norm must be positive"),
        ('evaluate_on = "moon"', "evaluate_on in .* must be 'server' or 'clients'"),
        (f"uploads = {'9' * 5000}", "is not a TOML file"),
        (f"target = {'[' * 3000}{']' * 3000}", "is not a TOML file"),
        ('name = "a.b"', "letters, digits and hyphens"),
        ('algorithm = "fedavg"', "a federation is asynchronous"),
        ("concurency = 3", "did you mean 'concurrency'"),
        ("rate = 3.0", "unknown setting 'rate'"),
    ],
)
def test_a_plan_with_a_mistake_gets_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "JOB.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said):
        read_plan(path)


def qafel(*arguments: str, seconds: float = 240) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qafel", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=seconds)


def test_a_federation_from_the_command_line(tmp_path: Path) -> None:
    job = tmp_path / "JOB.toml"
    job.write_text(
        'name = "digits"\ndata = "digits"\nmodel = "softmax"\npartition = "iid"\nclients = 9\nuploads = 40\n'
        "buffer_size = 4\nevaluate_every = 20\nlocal_rate = 0.5\n",
        encoding="utf-8",
    )
    start = [sys.executable, "-m", "qafel"]
    folder = str(tmp_path / "broker")
    broker = subprocess.Popen(
        [*start, "broker", "--dir", folder, "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # a shell may ignore it
    )
    processes = [broker]
    try:
        assert broker.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            text += broker.stdout.readline()
        url = json.loads(text)["url"]
        state = str(tmp_path / "server")
        serve = subprocess.Popen(
            [*start, "serve", str(job), "--broker", url, "--state", state, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        clients = [
            subprocess.Popen(
                [*start, "join", "digits", "--broker", url, "--client", str(k), "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for k in range(2)
        ]
        processes += [serve, *clients]
        out, log = serve.communicate(timeout=240)
        summary = json.loads(out)["summary"]
        assert summary["uploads"] == 40
        assert summary["reason"] == "uploads"
        events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        assert {"leads", "ready", "evaluated", "done"} <= {event["event"] for event in events}
        for client in clients:
            joined = json.loads(client.communicate(timeout=240)[0])
            assert joined["digest"] == summary["digest"][16:]
        assert (tmp_path / "server" / "curves.png").exists()
        assert qafel("serve", str(job), "--broker", url, "--state", state).returncode == 2
        broker.send_signal(signal.SIGINT)
        assert broker.wait(240) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_client_that_waits_for_its_server_is_stopped(broker: Broker, number: int, code: int) -> None:
    client = subprocess.Popen(
        [sys.executable, "-m", "qafel", "join", "nobody", "--broker", broker.url],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with client:
        assert client.stderr is not None
        assert "waiting" in client.stderr.readline()
        client.send_signal(number)
        assert client.wait(240) == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["broker", "--host", "0.0.0.0"], "loopback only"),
        (["broker", "--keys", "nowhere"], "nowhere"),
        (["serve", "missing.toml"], "cannot read missing.toml"),
        (["join", "a.b"], "letters, digits and hyphens"),
        (["keys", "new", "/dev/null/x"], "/dev/null/x"),
        (["federation", "set", "t", "clients=3"], "clients cannot be changed"),
        (["federation", "set", "t", "uploads"], "a change is key=value"),
        (["join", "--keys", "nowhere.key"], "there is no key nowhere.key"),
    ],
)
def test_a_mistake_on_the_command_line_gets_one_sentence(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = qafel(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_status_shows_a_running_federation(broker: Broker, tmp_path: Path) -> None:
    chosen = plan(uploads=5)
    job = chosen.job(SIZE)
    serving = server(chosen, broker.url, tmp_path / "server")
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4)]))
    seen = json.loads(qafel("status", "t", "--broker", broker.url, "--once", "--json").stdout)
    assert (seen["version"], seen["uploads"], seen["wanted"]) == (1, 4, 5)
    assert "of at most 100" in qafel("status", "t", "--broker", broker.url, "--once").stdout
    run(publish(broker.url, [(4, update(job, 4, 0))]))
    ended(serving)
    after = json.loads(qafel("status", "t", "--broker", broker.url, "--json").stdout)
    assert (after["reason"], after["uploads"]) == ("uploads", 5)
    listed = json.loads(qafel("federation", "list", "--broker", broker.url, "--json").stdout)
    assert [(one["name"], one["reason"]) for one in listed] == [("t", "uploads")]
    assert qafel("federation", "delete", "t", "--broker", broker.url).returncode == 0
    assert json.loads(qafel("federation", "list", "--broker", broker.url, "--json").stdout) == []
    gone = qafel("federation", "delete", "t", "--broker", broker.url)
    assert (gone.returncode, "the broker has no federation 't'" in gone.stderr) == (2, True)


def test_an_operator_changes_a_limit_and_stops_a_federation_through_the_log(
    broker: Broker, tmp_path: Path
) -> None:
    chosen = plan(uploads=1000)
    job = chosen.job(SIZE)
    serving = server(chosen, broker.url, tmp_path / "server")
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4)]))
    assert operate.decide("t", broker.url, Change({"max_norm": 1e-6})) == 5
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4, 8)]))
    assert operate.decide("t", broker.url, Change({"max_norm": 1e6, "uploads": 500})) == 10
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(8, 10)]))
    operate.decide("t", broker.url, Stop("good enough"))
    summary = ended(serving).summary
    assert (summary.reason, summary.uploads, summary.rejected) == ("good enough", 6, {"norm": 4})
    assert summary.settings["uploads"] == 500
    rows = operate.clients("t", broker.url)
    assert [row.client for row in rows] == list(range(10))
    assert (rows[4].reason or "").startswith("norm: the update has norm")
    with pytest.raises(ConfigError, match="clients cannot be changed while a federation runs"):
        operate.decide("t", broker.url, Change({"clients": 3}))


def test_an_entry_that_stops_the_server_can_be_skipped(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = plan(uploads=6)
    job = chosen.job(SIZE)
    take = FederationState.take

    def breaks(self: FederationState, sequence: int, *arguments: Any) -> Any:
        if sequence == 3:
            raise RuntimeError("a bug")
        return take(self, sequence, *arguments)

    monkeypatch.setattr(FederationState, "take", breaks)
    for _ in range(2):
        serving = server(chosen, broker.url, tmp_path / "server")
        run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4)]))
        with pytest.raises(RuntimeError, match="a bug"):
            serving.result()
    operate.decide("t", broker.url, Skip(3))
    again = server(chosen, broker.url, tmp_path / "server")
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4, 7)]))
    assert ended(again).summary.uploads == 6


def test_the_configuration_alone_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "nats.conf"
    done = qafel("broker", "--config-only", str(path), "--sync-always", "--dir", str(tmp_path / "b"))
    assert done.returncode == 0
    assert "sync_interval: always" in path.read_text(encoding="utf-8")
    assert not (tmp_path / "b").exists()


def test_a_standby_waits_and_takes_over_when_the_leader_resigns(broker: Broker, tmp_path: Path) -> None:
    chosen: Plan = plan(uploads=8)
    job = chosen.job(SIZE)

    class DeadError(Exception):
        pass

    def at(step: str) -> None:
        if step == "after publish":
            raise DeadError

    events: list[str] = []
    first = server(chosen, broker.url, tmp_path / "one", at=at)
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4)]))
    with pytest.raises(DeadError):
        first.result()

    def journal(event: str, **fields: Any) -> None:
        events.append(event)

    second = server(chosen, broker.url, tmp_path / "two", standby=True, notice=journal)
    run(publish(broker.url, [(k, update(job, k, 0)) for k in range(4, 8)]))
    result = ended(second)
    assert result.summary.uploads == 8
    assert events[:2] == ["waits while another server leads", "leads"]


def test_the_quick_benchmark_has_all_parts_and_clients_are_answered_beside_a_flood(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    command = [sys.executable, "-m", "qafel", "bench", "federation", "--quick", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "request to answer" in done.stdout
    assert "| request to answer |" in out.with_suffix(".md").read_text(encoding="utf-8")
    parts = json.loads(out.read_bytes())["parts"]
    assert tuple(parts) == PARTS
    flood = parts["flood"]
    assert flood["alive"]
    assert flood["flood_per_second"] > 1000
    for part in (flood["without"], flood["with"]):
        assert part["requests"] >= flood["clients"]
        assert 0 < part["p50_ms"] <= part["p99_ms"] <= part["max_ms"] < 60_000


def test_the_readme_has_the_committed_rates() -> None:
    root = Path(__file__).parents[2]
    updates = json.loads((root / "results" / "bench-federation.json").read_bytes())["parts"]["updates"]
    ours, four_bits = (
        (f"{part['updates_per_second']:,.0f}", f"{part['bytes'] / 1000:.1f} kB")
        for part in (updates["defaults"], updates["4-bit QSGD"])
    )
    readme = " ".join((root / "README.md").read_text(encoding="utf-8").split())
    assert f"{ours[0]} updates of {ours[1]} a second" in readme
    assert f"{four_bits[0]} of {four_bits[1]} with 4-bit QSGD" in readme
