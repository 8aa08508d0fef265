"""A newcomer: installs the wheel, follows the tutorial, looks at the page, sends a report (make newcomer).

Everything runs in a clean environment that was made from the built wheel; the checkout is not in its path.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_page import browser, table, visit  # noqa: F401 (fixtures)

from test_dashboard import points

pytestmark = [pytest.mark.browser, pytest.mark.install, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
EXTRAS = "torch,data,figures,dashboard,federation"
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}


class Newcomer:
    """A folder, and a clean environment beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "work", folder / "venv" / "bin"
        self.folder.mkdir()
        self.run(sys.executable, "-m", "venv", str(self.bin.parent))
        self.run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT))
        (wheel,) = folder.glob("qafel-*.whl")
        pip = [str(self.bin / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        self.run(*pip, "-c", str(ROOT / "constraints.txt"), f"{wheel}[{EXTRAS}]")

    def run(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """Somebody who has followed the tutorial from top to bottom."""
    one = Newcomer(tmp_path_factory.mktemp("newcomer"))
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert f'".[{EXTRAS}]"' in text, "the tutorial installs something else"
    blocks = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
    (one.folder / "tutorial.py").write_text("\n".join(block for block, _ in blocks), encoding="utf-8")
    where = one.run(str(one.bin / "python"), "-c", "import qafel; print(qafel.__file__)")
    assert str(ROOT) not in where
    assert one.run(str(one.bin / "python"), "tutorial.py") == "".join(printed for _, printed in blocks)
    return one


@pytest.fixture
def dashboard(newcomer: Newcomer) -> Iterator[str]:
    command = [str(newcomer.bin / "qafel"), "dashboard", "runs", "--port", "0", "--json"]
    process = subprocess.Popen(
        command, cwd=newcomer.folder, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    yield json.loads(process.stdout.readline())["address"]
    process.terminate()
    process.communicate(timeout=60)


def shown(page: Any, folder: Path) -> None:
    """The page has the run's accuracy as its metrics file has it."""
    expected = [(point["uploads"], point["smoothed"]["accuracy"]) for point in points(folder)]
    (drawn,) = table(page, "metric").values()
    assert [x for x, _ in drawn] == [x for x, _ in expected]
    assert [y for _, y in drawn] == pytest.approx([y for _, y in expected])


def test_the_page_shows_the_run_of_the_tutorial(
    newcomer: Newcomer,
    dashboard: str,
    visit: Callable[..., Any],  # noqa: F811
) -> None:
    shown(visit(dashboard), newcomer.folder / "runs" / "first")


def test_the_report_is_one_file_that_shows_the_same(
    newcomer: Newcomer,
    visit: Callable[..., Any],  # noqa: F811
) -> None:
    newcomer.run(str(newcomer.bin / "qafel"), "report", "runs/first", "-o", "report.html")
    shown(visit((newcomer.folder / "report.html").as_uri()), newcomer.folder / "runs" / "first")


def test_the_documentation_is_searched_without_a_server(browser: Any) -> None:  # noqa: F811
    site = ROOT / "build" / "site" / "index.html"
    assert site.exists(), "make docs builds the site"
    page = browser.new_page()
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.goto(site.as_uri())
    page.keyboard.press("/")
    page.locator(".md-search__input").first.press_sequentially("hidden state")
    page.wait_for_selector(".md-search-result__item", timeout=30_000)
    assert not failed, "nothing is loaded from elsewhere"
    page.close()
