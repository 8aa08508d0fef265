"""The page's server and the report, without a browser: what they tell, and what they refuse."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from command import call, call_json, check_mistake
from qafel.dashboard import Runs, report
from qafel.dashboard.runs import MAX_POINTS, full_precision, thinned
from qafel.dashboard.server import hosts
from qafel.machine import is_loopback
from qafel.runs.summary import Point
from qafel.sim import simulate

SMALL: dict[str, Any] = {
    "data": "digits", "model": "mlp", "clients": 60, "rate": 20.0, "uploads": 60, "evaluate_every": 10,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        simulate(**SMALL, seed=seed, out=root / "small" / f"qafel-seed{seed}", workers=1)
    simulate(**SMALL, algorithm="fedbuff", out=root / "small" / "fedbuff", workers=1, events=True)
    return root


class Page:
    """A running ``qafel dashboard``."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "qafel", "dashboard", str(folder), "--port", "0", "--json", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.address = json.loads(self.process.stdout.readline())["address"]
        self.host, _, rest = self.address.removeprefix("http://").partition(":")
        self.port = int(rest.partition("/")[0])

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {"Host": f"127.0.0.1:{self.port}", **headers}
        connection.putrequest("GET", path, skip_host=True)
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        reply = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        connection.close()
        return reply

    def json(self, path: str) -> Any:
        status, _, body = self.get(path)
        assert status == 200, body
        return json.loads(body)

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    one = Page(folder)
    yield one
    one.close()


def points(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_the_list_has_every_run_and_seeds_of_one_configuration_are_a_group(page: Page) -> None:
    runs = {run["name"]: run for run in page.json("/api/runs")["runs"]}
    assert set(runs) == {"small/qafel-seed0", "small/qafel-seed1", "small/fedbuff"}
    assert runs["small/qafel-seed0"]["group"] == runs["small/qafel-seed1"]["group"] == "small/qafel"
    assert runs["small/fedbuff"]["state"] == "ended"
    assert runs["small/fedbuff"]["metrics"].keys() == {"accuracy", "loss"}


def test_a_run_is_told_as_its_metrics_file_has_it(page: Page, folder: Path) -> None:
    for run in page.json("/api/runs")["runs"]:
        told, lines = page.json(f"/api/run/{run['id']}"), points(folder / run["name"])
        for name in ("uploads", "time", "bytes_up", "bytes_down", "in_flight", "residual", "buffer"):
            assert told["points"][name] == [line[name] for line in lines]
        for name in ("server_error", "client_error"):
            assert told["points"][name] == [line.get(name) for line in lines]
        for kind in ("metrics", "smoothed"):
            assert told["points"][kind]["accuracy"] == [line[kind]["accuracy"] for line in lines]
        summary = json.loads((folder / run["name"] / "summary.json").read_text())
        assert told["staleness"] == summary["staleness"]["histogram"]
        fedbuff = run["name"] == "small/fedbuff"
        assert told["events"] == fedbuff
        if fedbuff:  # it sends full precision: what is drawn beside it is what it sent
            assert told["full_up"][-1] == pytest.approx(summary["bytes_up"], abs=60 * 12)
            assert told["full_down"][-1] == pytest.approx(summary["bytes_down"], abs=6 * 12)


def test_full_precision_is_the_length_of_a_real_frame_at_any_size() -> None:
    assert full_precision(1000)[0] - 4000 == pytest.approx(30, abs=25)
    small, large = full_precision(2_000_000)[0], full_precision(3_000_000)[0]
    assert large - small == 4_000_000


def test_the_events_of_a_run_are_told_from_any_place(page: Page) -> None:
    run = next(run for run in page.json("/api/runs")["runs"] if run["name"] == "small/fedbuff")
    told = page.json(f"/api/events/{run['id']}")
    assert told["buffer"] == 10
    assert told["total"] == len(told["events"])
    assert [event[0] for event in told["events"]].count("report") == 60
    assert page.json(f"/api/events/{run['id']}?first=5")["events"] == told["events"][5:]


def test_many_points_become_few_that_are_real_and_keep_the_extremes() -> None:
    def point(k: int, accuracy: float) -> Point:
        return Point(k, 0, 0.0, {"accuracy": accuracy}, {"accuracy": accuracy}, 0, 0, 0.0, 0, 0.0)

    many = [point(k, 0.5 if k != 7777 else 0.9) for k in range(100_000)]
    chosen = thinned(many)
    assert len(chosen) <= MAX_POINTS
    assert (chosen[0], chosen[-1]) == (0, 99_999)
    assert 7777 in chosen
    assert thinned(many[:300]) == list(range(300))


def test_runs_that_cannot_be_read_say_so_and_show_what_was_read(folder: Path, tmp_path: Path) -> None:
    for name in ("torn", "half", "nothing", "config", "summary"):
        shutil.copytree(folder / "small" / "fedbuff", tmp_path / name)
    lines = (tmp_path / "torn" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "torn" / "metrics.jsonl").write_bytes(
        b"".join([*lines[:3], b'{"uploads": "x"}\n', *lines[3:]])
    )
    (tmp_path / "half" / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    (tmp_path / "nothing" / "metrics.jsonl").unlink()
    (tmp_path / "config" / "config.toml").write_bytes(b"= \xff")
    (tmp_path / "summary" / "summary.json").write_bytes(b'{"uploads": ')
    runs = Runs(tmp_path)
    listed = {one.name: one for one in runs.list()}
    told = {name: runs.run(one.id) for name, one in listed.items()}
    assert len(told["torn"]["points"]["uploads"]) == 3
    assert "line 4 of metrics.jsonl is not an evaluation" in told["torn"]["error"]
    assert len(told["half"]["points"]["uploads"]) == 3
    assert told["half"]["error"] is None  # its last line is being written
    assert "metrics.jsonl cannot be read" in told["nothing"]["error"]
    assert listed["config"].state == listed["summary"].state == "unreadable"
    assert "the run cannot be read" in (listed["config"].error or "")
    with (tmp_path / "half" / "metrics.jsonl").open("ab") as file:
        file.write(lines[3][40:])
    assert len(runs.run(listed["half"].id)["points"]["uploads"]) == 4


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2fruns.py", "/api/run/../../etc", "/index.htm",
        "/api/run/..%2f..%2fetc%2fpasswd", "/api/run/0000000000000000", "/api/events/nothing", "/page/app.js",
    ],
)  # fmt: skip
def test_nothing_but_the_page_and_its_runs_is_served(page: Page, path: str) -> None:
    status, _, body = page.get(path)
    assert status == 404
    assert b"root:" not in body


def test_other_hosts_and_origins_are_refused_and_every_answer_has_the_policy(page: Page) -> None:
    own = f"127.0.0.1:{page.port}"
    assert page.get("/", Host="evil.example")[0] == 421
    assert page.get("/", Host=f"evil.example:{page.port}")[0] == 421
    assert page.get("/api/runs", Origin="http://evil.example")[0] == 403
    assert page.get("/api/runs", Origin="null")[0] == 403
    assert page.get("/api/runs", Origin=f"http://{own}")[0] == 200
    assert page.get("/", Host=f"localhost:{page.port}")[0] == 200
    for path in ("/", "/app.js", "/api/runs", "/nothing"):
        headers = page.get(path)[1]
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=60)
    connection.request("POST", "/api/runs")
    assert connection.getresponse().status == 405
    connection.close()


def test_an_address_that_is_not_loopback_needs_its_token(folder: Path) -> None:
    assert is_loopback("127.0.0.1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert f"{socket.gethostname()}:80" in hosts("0.0.0.0", 80)
    page = Page(folder, "--host", "0.0.0.0")
    try:
        token = page.address.partition("?token=")[2]
        assert len(token) >= 20
        assert page.get("/")[0] == 401
        assert page.get("/api/runs")[0] == 401
        assert page.get("/?token=wrong")[0] == 401
        assert page.get("/", Cookie="qafel-token=wrong")[0] == 401
        status, headers, _ = page.get(f"/?token={token}")
        assert status == 303
        assert headers["location"] == "/"
        assert "httponly" in headers["set-cookie"].lower()
        assert page.get("/api/runs", Cookie=headers["set-cookie"].partition(";")[0])[0] == 200
    finally:
        page.close()


def test_changes_arrive_as_server_sent_events(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "small" / "fedbuff", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"".join(lines[:3]))
    page = Page(tmp_path)
    try:
        (run,) = page.json("/api/runs")["runs"]
        assert run["state"] == "running"
        with socket.create_connection(("127.0.0.1", page.port), timeout=60) as stream:
            stream.sendall(f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1:{page.port}\r\n\r\n".encode())
            _receive(stream, b"event: changed")
            with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
                file.write(lines[3])
            received = _receive(stream, b"event: changed")
            assert run["id"].encode() in received
            shutil.copytree(tmp_path / "run", tmp_path / "another")
            _receive(stream, b"event: runs")
        assert len(page.json(f"/api/run/{run['id']}")["points"]["uploads"]) == 4
    finally:
        page.close()


def _receive(stream: socket.socket, wanted: bytes) -> bytes:
    data, deadline = b"", time.monotonic() + 60
    while wanted not in data or not data.endswith(b"\n\n\r\n"):
        assert time.monotonic() < deadline
        data += stream.recv(4096)
    return data


def test_a_report_is_one_file_with_everything_in_it_and_hostile_names_do_no_harm(
    folder: Path, tmp_path: Path
) -> None:
    evil = "<img src=x onerror=alert(1)></script><script>alert(2)"
    shutil.copytree(folder / "small" / "fedbuff", tmp_path / "runs" / evil.replace("/", "∕"))
    answer = call_json("report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html"))
    text = (tmp_path / "report.html").read_text()
    assert answer["bytes"] == (tmp_path / "report.html").stat().st_size < 500_000
    assert "src=" not in text.replace("src=x", "").split("<body>")[0]
    assert "<script src" not in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "<img src=x" not in text  # it is escaped within the data
    data = text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    told = json.loads(data)
    (run,) = told["runs"]["runs"]
    assert run["name"] == evil.replace("/", "∕")
    accuracies = [point["metrics"]["accuracy"] for point in points(folder / "small" / "fedbuff")]
    assert told["run"][run["id"]]["points"]["metrics"]["accuracy"] == accuracies
    assert told["events"][run["id"]]["total"] > 100


def test_reports_of_the_same_runs_twice_and_of_nothing_are_refused(folder: Path, tmp_path: Path) -> None:
    assert report([folder], tmp_path / "all.html").exists()
    check_mistake("is not the folder of a run, and has none in it", "report", str(tmp_path))
    run = str(folder / "small" / "fedbuff")
    check_mistake("two runs are called fedbuff", "report", run, run, "-o", str(tmp_path / "x.html"))
    check_mistake("there is no folder", "report", str(tmp_path / "nope"))
    check_mistake("there is no folder", "dashboard", str(tmp_path / "nope"))
    check_mistake("--keys are for --federation", "dashboard", str(folder), "--keys", "x.key")
    check_mistake("cannot write", "report", run, "-o", str(tmp_path / "no" / "x.html"))


def test_the_help_has_an_example() -> None:
    assert "qafel report runs/demo-1 -o report.html" in call("report", "--help").stdout


def small_run(root: Path, name: str, values: list[float | None], **settings: Any) -> Path:
    """A folder as a run that has not ended leaves it, with these accuracies."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in {"seed": 0, **settings}.items()]
    (folder / "config.toml").write_text("".join(lines))
    with (folder / "metrics.jsonl").open("w") as file:
        for k, value in enumerate(values):
            point = {
                "uploads": 10 * k, "version": k, "time": float(k), "metrics": {"accuracy": value},
                "smoothed": {"accuracy": value}, "bytes_up": 100 * k, "bytes_down": 10 * k, "staleness": 0.5,
                "in_flight": 3, "residual": 0.1,
            }  # fmt: skip
            file.write(json.dumps(point) + "\n")
    return folder


def test_a_metric_that_is_not_a_number_is_left_out_of_the_list(tmp_path: Path) -> None:
    small_run(tmp_path, "nan", [0.5, None])
    runs = Runs(tmp_path)
    (listed,) = runs.list()
    assert listed.metrics == {}
    assert json.loads(msgspec.json.encode(runs.run(listed.id)))["points"]["smoothed"]["accuracy"] == [
        0.5,
        None,
    ]


def test_a_run_that_was_made_again_shows_only_its_new_numbers(tmp_path: Path) -> None:
    folder, runs = small_run(tmp_path, "again", [0.1, 0.2]), Runs(tmp_path)
    (listed,) = runs.list()
    assert runs.run(listed.id)["points"]["smoothed"]["accuracy"] == [0.1, 0.2]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("{]\n")
    assert "line 3 of metrics.jsonl" in runs.run(listed.id)["error"]
    shutil.rmtree(folder)
    small_run(tmp_path, "again", [0.7, 0.8, 0.9, 0.95])
    assert runs.list()[0].metrics == {"accuracy": 0.95}
    told = runs.run(listed.id)
    assert told["error"] is None
    assert told["points"]["smoothed"]["accuracy"] == [0.7, 0.8, 0.9, 0.95]


def test_requests_at_the_same_time_read_every_evaluation_once(tmp_path: Path) -> None:
    small_run(tmp_path, "long", [k / 5000 for k in range(5000)])
    for _ in range(3):
        runs = Runs(tmp_path)
        (identity,) = [listed.id for listed in runs.list()]
        runs._metrics.clear()
        with ThreadPoolExecutor(4) as pool:
            told = list(pool.map(lambda _: runs.run(identity)["points"], range(8)))  # noqa: B023
        assert all(one == told[0] for one in told)
        assert len(runs._metrics[identity].points) == 5000


def test_a_name_that_is_not_utf8_is_shown_with_replacement_characters(tmp_path: Path) -> None:
    small_run(tmp_path, os.fsdecode(b"caf\xe9/run"), [0.5])
    small_run(tmp_path, "good", [0.5])
    assert {listed.name for listed in Runs(tmp_path).list()} == {"caf?/run", "good"}
    assert report([tmp_path], tmp_path / "r.html").stat().st_size > 10_000


def test_a_report_groups_the_runs_of_all_its_folders(tmp_path: Path) -> None:
    for folder, seeds in (("a", (0, 1)), ("b", (2, 3))):
        for seed in seeds:
            rate = 0.1 if folder == "a" else 0.2
            small_run(tmp_path / folder, f"qafel-seed{seed}", [0.5, 0.6], seed=seed, local_rate=rate)

    def groups(*folders: str) -> list[set[int]]:
        page = report([tmp_path / folder for folder in folders], tmp_path / "r.html").read_text()
        data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
        seeds: dict[str, set[int]] = {}
        for run in data["runs"]["runs"]:
            seeds.setdefault(run["group"], set()).add(run["seed"])
        return sorted(seeds.values(), key=min)

    assert groups("a", "b") == [{0, 1}, {2, 3}]
    assert groups("a/qafel-seed0", "a/qafel-seed1") == [{0, 1}]


def test_a_report_that_names_a_folder_is_refused_in_one_sentence(tmp_path: Path) -> None:
    small_run(tmp_path, "run", [0.5])
    for out in (".", "/", str(tmp_path)):
        check_mistake("the report must be a file, and", "report", str(tmp_path), "-o", out)


def test_hosts_are_compared_as_browsers_send_them(page: Page) -> None:
    assert page.get("/", Host=f"LOCALHOST:{page.port}")[0] == 200
    assert page.get("/", Origin=f"http://LocalHost:{page.port}")[0] == 200
    assert {"localhost", "localhost:80"} <= hosts("127.0.0.1", 80)
    assert "localhost" not in hosts("127.0.0.1", 8765)
    run = page.json("/api/runs")["runs"][0]["id"]
    assert page.get(f"/api/events/{run}?first=%C2%B2")[0] in (200, 404)
