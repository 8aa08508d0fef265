"""What a user installs: the extras beside their neighbours, the pins, the wheel."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NEIGHBOURS = ["flwr==1.41.*", "ray==2.55.1"]
LARGEST = 200_000


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_constraints_are_sorted_exact_pins() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    assert pins == sorted(pins, key=str.upper)
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)


@pytest.mark.install
@pytest.mark.timeout(900)
def test_every_extra_installs_beside_the_neighbours() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    everything = [f".[{','.join(extras)}]", *NEIGHBOURS]
    pip("install", "--dry-run", "--ignore-installed", "-c", "constraints.txt", *everything)


@pytest.mark.install
def test_the_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--wheel-dir", str(tmp_path), ".")
    (wheel,) = tmp_path.glob("qafel-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    assert any(file.filename == "qafel/py.typed" for file in files)
    for file in files:
        assert file.file_size <= LARGEST, file.filename
        assert file.filename.split("/")[0] == "qafel" or ".dist-info/" in file.filename
        assert not file.filename.endswith(".npz")
        assert not {"tests", "benchmarks"} & set(file.filename.split("/"))
        assert file.filename.startswith("qafel/") or not file.filename.endswith(".py")
