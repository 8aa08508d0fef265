"""The page in a real browser: what it shows is what the runs recorded."""

import csv
import functools
import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

import parties
from qafel.dashboard import report
from qafel.federation import Broker, join
from qafel.sim import simulate
from test_dashboard import Page, points, small_run

pytestmark = pytest.mark.browser
Visit = Callable[..., Any]
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LONG = """
window.longTasks = [];
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.longTasks.push(entry.duration);
}).observe({ type: "longtask", buffered: true });
"""
COLUMNS: dict[str, Callable[[Any], Any]] = {
    "metric": lambda point: point["smoothed"]["accuracy"],
    "mb-up": lambda point: point["bytes_up"] / 1e6,
    "mb-down": lambda point: point["bytes_down"] / 1e6,
    "in-flight": lambda point: point["in_flight"],
    "buffer": lambda point: point["buffer"],
    "residual": lambda point: point["residual"],
    "server-error": lambda point: point["server_error"],
    "client-error": lambda point: point["client_error"],
}


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "the tests of the page need Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open an address and wait until its panels are drawn; errors of the page fail the test."""
    contexts: list[Any] = []
    problems: list[str] = []

    def go(address: str, *, scheme: str = "light", width: int = 1400, height: int = 900) -> Any:
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": height}, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.add_init_script(LONG)
        page.goto(address)
        page.wait_for_selector("body[data-ready=yes]", timeout=60_000)
        return page

    yield go
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three configurations, one of them with three seeds and one with its events."""
    small: Any = {
        "data": "digits", "model": "mlp", "clients": 60, "rate": 20.0, "uploads": 120, "evaluate_every": 8,
    }  # fmt: skip
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        simulate(**small, seed=seed, out=root / f"qafel-seed{seed}", workers=1)
    simulate(**small, algorithm="fedbuff", out=root / "fedbuff", workers=1, events=True)
    return root


@pytest.fixture(scope="module")
def served(runs: Path) -> Iterator[Page]:
    page = Page(runs)
    yield page
    page.close()


def table(page: Any, panel: str) -> dict[str, list[tuple[float, float | None]]]:
    """What a panel's CSV button downloads, by run."""
    with page.expect_download() as waiting:
        page.click(f"#panel-{panel} button:has-text('CSV')")
    rows = csv.DictReader(io.StringIO(Path(waiting.value.path()).read_text()))
    curves: dict[str, list[tuple[float, float | None]]] = {}
    for row in rows:
        curves.setdefault(row["run"], []).append((float(row["x"]), float(row["y"]) if row["y"] else None))
    return curves


def test_every_panel_shows_what_the_metrics_file_has(served: Page, runs: Path, visit: Visit) -> None:
    page = visit(served.address)
    listed = {run["id"]: run for run in served.json("/api/runs")["runs"]}
    for panel, value in COLUMNS.items():
        drawn = table(page, panel)
        for identity, run in listed.items():
            lines = points(runs / run["name"])
            expected = [(float(point["uploads"]), value(point)) for point in lines]
            mine = drawn[f"{run['group']} [{identity}]"]
            assert [x for x, _ in mine] == [x for x, _ in expected], panel
            for (_, shown_value), (_, real) in zip(mine, expected, strict=True):
                assert shown_value == (real if real is None else pytest.approx(real, rel=1e-12)), panel
    staleness = table(page, "staleness")
    counts: dict[int, int] = {}
    for seed in range(3):
        summary = json.loads((runs / f"qafel-seed{seed}" / "summary.json").read_text())
        for tau, count in summary["staleness"]["histogram"].items():
            counts[int(tau)] = counts.get(int(tau), 0) + count
    total = sum(counts.values())
    assert dict(staleness["qafel"]) == pytest.approx({tau: n / total for tau, n in counts.items()})
    for panel in (*COLUMNS, "staleness"):
        pixels = page.eval_on_selector(
            f"#panel-{panel} canvas",
            "c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size",
        )
        assert pixels > 20, f"{panel} is empty"


def test_the_buffer_has_a_panel_only_if_it_was_not_empty_at_every_evaluation(
    tmp_path: Path, visit: Visit
) -> None:
    settings: Any = {"data": "digits", "model": "mlp", "clients": 60, "uploads": 40, "workers": 1}
    simulate(**settings, evaluate_every=10, out=tmp_path / "steps")
    served = Page(tmp_path)
    try:
        assert not visit(served.address).is_visible("#panel-buffer")
        simulate(**settings, evaluate_every=8, out=tmp_path / "between")
        assert visit(served.address).is_visible("#panel-buffer")
    finally:
        served.close()


def test_the_metric_is_drawn_against_uploads_time_and_bytes(served: Page, runs: Path, visit: Visit) -> None:
    page = visit(served.address)
    lines = points(runs / "fedbuff")
    places: dict[str, Callable[[Any], float]] = {
        "time": lambda point: point["time"],
        "up": lambda point: point["bytes_up"] / 1e6,
    }
    for choice, value in places.items():
        page.select_option("#against", choice)
        page.select_option("#metric", "loss")
        page.wait_for_timeout(300)
        shown = next(rows for name, rows in table(page, "metric").items() if name.startswith("fedbuff"))
        assert [x for x, _ in shown] == pytest.approx([value(point) for point in lines])
        assert [y for _, y in shown] == pytest.approx([point["smoothed"]["loss"] for point in lines])


def test_a_click_in_the_legend_hides_a_configuration_and_pictures_are_files(
    served: Page, visit: Visit
) -> None:
    page = visit(served.address)
    assert any(name.startswith("fedbuff") for name in table(page, "metric"))
    page.get_by_label("fedbuff", exact=True).press("Space")  # the keyboard is enough
    page.wait_for_timeout(300)
    assert not any(name.startswith("fedbuff") for name in table(page, "metric"))
    with page.expect_download() as waiting:
        page.click("#panel-metric button:has-text('PNG')")
    assert Path(waiting.value.path()).read_bytes().startswith(b"\x89PNG")


def test_what_is_new_arrives_within_two_seconds(runs: Path, tmp_path: Path, visit: Visit) -> None:
    shutil.copytree(runs / "fedbuff", tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run" / "metrics.jsonl").write_bytes(b"".join(lines[:5]))
    served = Page(tmp_path)
    try:
        page = visit(served.address)
        page.wait_for_timeout(1500)  # the stream is open
        waits = []
        for k in range(5, 9):
            with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
                file.write(lines[k])
            began = time.monotonic()
            while page.evaluate("page.drawn.get('metric')[0].runs[0].x.length") <= k:
                assert time.monotonic() - began < 30
                page.wait_for_timeout(50)
            waits.append(time.monotonic() - began)
        print("seconds until a new evaluation was drawn:", waits)
        assert min(waits) < 2.0
    finally:
        served.close()


def test_500_runs_and_100_000_points_paint_at_once_and_never_block_the_page(
    runs: Path, tmp_path: Path, visit: Visit
) -> None:
    for k in range(500):
        shutil.copytree(
            runs / "fedbuff",
            tmp_path / f"run-{k:03d}",
            ignore=shutil.ignore_patterns("*.png", "*.safetensors", "events*"),
        )
        config = tmp_path / f"run-{k:03d}" / "config.toml"
        config.write_text(config.read_text().replace("local_rate = 0.1", f"local_rate = {0.1 + k / 1000}"))
    line = points(runs / "fedbuff")[-1]
    with (tmp_path / "run-000" / "metrics.jsonl").open("w") as file:
        for k in range(100_000):
            file.write(json.dumps({**line, "uploads": k}) + "\n")
    os.utime(tmp_path / "run-000" / "metrics.jsonl")  # the newest is drawn
    served = Page(tmp_path)
    try:
        page = visit(served.address)
        page.wait_for_timeout(1000)
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        tasks = page.evaluate("window.longTasks")
        print(f"first paint {paint:.0f} ms, longest task {max(tasks, default=0):.0f} ms")
        assert paint <= 2000
        assert max(tasks, default=0) <= 200
        assert any("run-000" in name for name in table(page, "metric"))
        assert page.locator("#runs .run").count() == 500
    finally:
        served.close()


def test_files_that_cannot_be_read_are_errors_in_the_page_not_a_blank(
    runs: Path, tmp_path: Path, visit: Visit
) -> None:
    shutil.copytree(runs / "fedbuff", tmp_path / "torn")
    shutil.copytree(runs / "qafel-seed0", tmp_path / "good")
    with (tmp_path / "torn" / "metrics.jsonl").open("rb+") as file:
        number = 1 + len(file.readlines())
        file.write(b"{nonsense}\n")
    served = Page(tmp_path)
    try:
        page = visit(served.address)
        page.wait_for_selector("#errors p")
        assert f"torn: line {number} of metrics.jsonl is not an evaluation" in page.inner_text("#errors")
        assert len(table(page, "metric")) == 2
    finally:
        served.close()


def test_hostile_names_and_settings_are_text(runs: Path, tmp_path: Path, visit: Visit) -> None:
    evil = "<img src=x onerror=window.hurt=1>"
    shutil.copytree(runs / "fedbuff", tmp_path / evil)
    with (tmp_path / evil / "metrics.jsonl").open("ab") as file:
        file.write(b'{"uploads": "<script>window.hurt=1</script>"}\n')
    served = Page(tmp_path)
    try:
        for address in (served.address, f"file://{report([tmp_path], tmp_path / 'r.html')}"):
            page = visit(address)
            page.wait_for_timeout(300)
            assert evil in page.inner_text("#runs")
            assert page.evaluate("window.hurt === undefined")
            assert page.locator("#runs img").count() == 0
    finally:
        served.close()


def test_the_timeline_plays_steps_and_tells_the_real_events(served: Page, runs: Path, visit: Visit) -> None:
    page = visit(served.address)
    page.wait_for_selector("#timeline canvas")
    lines = [json.loads(line) for line in (runs / "fedbuff" / "events.jsonl").read_text().splitlines()]
    page.locator("#timeline input[type=range]").fill("0")
    for k in range(1, 40):
        page.click("#timeline button:has-text('step')")
        text = page.inner_text("#timeline p[role=status]")
        assert text.startswith(f"event {k + 1} of {len(lines)}")
        assert f"at {lines[k][1]:.2f}" in text
        if lines[k][0] == "report":
            assert f"client {lines[k][2]} reports, staleness {lines[k][4]}" in text
    page.click("#timeline button:has-text('play')")
    page.wait_for_timeout(600)
    page.click("#timeline button:has-text('pause')")
    assert int(page.input_value("#timeline input[type=range]")) > 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_axe_finds_no_serious_violation(served: Page, visit: Visit, scheme: str, width: int) -> None:
    script = os.environ.get("AXE", "node_modules/axe-core/axe.min.js")
    assert Path(script).exists(), "npm install axe-core; or set AXE to its axe.min.js"
    page = visit(served.address, scheme=scheme, width=width)
    page.wait_for_selector("#timeline canvas")
    page.evaluate(Path(script).read_text())
    violations = page.evaluate("axe.run()")["violations"]
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert not serious, [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in serious]
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")  # nothing is cut off


def test_a_report_shows_the_same_from_a_file(runs: Path, tmp_path: Path, visit: Visit, served: Page) -> None:
    page = visit(f"file://{report([runs], tmp_path / 'report.html')}")
    live = visit(served.address)
    for panel in COLUMNS:
        assert table(page, panel) == table(live, panel)


def test_a_running_federation_is_shown_with_its_clients_and_why_they_were_rejected(
    tmp_path: Path, visit: Visit
) -> None:
    """The panel follows a real broker, server and two clients; one client also sends garbage."""
    chosen = parties.plan(uploads=40, checkpoint_seconds=0.2, evaluate_every=4)
    go_on = threading.Event()

    def slowly(x: Any, task: Any) -> Any:
        if task.task >= 5:
            assert go_on.wait(200)
        return -0.1 * x

    with Broker(tmp_path / "broker") as broker:
        shown_name = ["--federation", chosen.name, "--broker", broker.url]
        serving = parties.server(
            chosen, broker.url, tmp_path / "server", evaluate=lambda x: {"norm": float(x @ x)}
        )
        joined = [
            parties.Background(functools.partial(join, chosen.name, broker.url, client=k, train=slowly))
            for k in range(2)
        ]
        noise = [(40, b"noise")]
        parties.Background(lambda: parties.run(parties.publish(broker.url, noise))).result()
        (tmp_path / "runs").mkdir()
        page = Page(tmp_path / "runs", *shown_name)
        try:
            tab = visit(page.address)
            tab.wait_for_selector("#federation dd:text('1 malformed')", timeout=60_000)
            tab.wait_for_selector("#federation tbody tr:nth-child(2)", timeout=60_000)
            assert "Federation t" in tab.inner_text("#federation h2")
            go_on.set()
            assert sum(one.result().counted for one in joined) == 40
            parties.ended(serving)
            tab.wait_for_selector("#federation dd:text('ended: uploads')", timeout=60_000)
            assert "40 of 40" in tab.inner_text("#federation")
        finally:
            go_on.set()
            page.close()


def test_constant_and_missing_numbers_are_drawn_like_others(tmp_path: Path, visit: Visit) -> None:
    for seed in range(3):  # the mean of three times 0.7 ± their deviation is a band of rounding errors
        small_run(tmp_path, f"constant-seed{seed}", [0.7] * 5, seed=seed)
    small_run(tmp_path, "missing", [None] * 5, local_rate=0.5)
    served = Page(tmp_path)
    try:
        page = visit(served.address)
        (missing,) = [rows for name, rows in table(page, "metric").items() if name.startswith("missing")]
        assert [y for _, y in missing] == [None] * 5
        assert page.locator("#runs .run").count() == 2
    finally:
        served.close()


def test_runs_that_start_later_are_shown_and_a_choice_is_kept(tmp_path: Path, visit: Visit) -> None:
    served = Page(tmp_path)
    try:
        page = visit(served.address)
        small_run(tmp_path, "a-seed0", [0.1, 0.2], local_rate=0.1)
        page.wait_for_selector("#runs .run:has-text('a-seed0') input:checked", timeout=20_000)
        colour = "getComputedStyle(document.querySelector('#runs .swatch')).backgroundColor"
        first = page.evaluate(colour)
        small_run(tmp_path, "a-seed1", [0.1, 0.3], local_rate=0.1, seed=1)
        page.wait_for_selector("#runs .run:has-text('2 seeds') input:checked", timeout=20_000)
        assert page.evaluate(colour) == first
        page.click("#runs .run input")
        small_run(tmp_path, "b", [0.5, 0.6], local_rate=0.2)
        page.wait_for_selector("#runs .run:has-text('b') input:not(:checked)", timeout=20_000)
        assert page.locator("#runs input:checked").count() == 0
    finally:
        served.close()


def test_the_list_has_the_mean_of_the_seeds(visit: Visit, tmp_path: Path) -> None:
    for seed, last in enumerate((0.5, 0.75)):
        small_run(tmp_path, f"run-seed{seed}", [0.1, last], seed=seed)
    served = Page(tmp_path)
    try:
        about = visit(served.address).locator("nav .about").inner_text()
        assert about.startswith("2 seeds")
        assert about.endswith("accuracy 0.625")
    finally:
        served.close()
