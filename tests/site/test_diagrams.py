"""The committed diagrams are what the code draws."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"-?\d+\.\d+")


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "_diagrams.py"))["DIAGRAMS"]  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore::qafel.errors.QafelWarning")
@pytest.mark.parametrize(
    "name",
    ["algorithm", "hidden-state", "qsgd", "rate-distortion", "exactly-once", "frame", "bound", "lookahead"],
)
def test_the_committed_diagram_is_what_the_code_draws(name: str, drawn: dict[str, Any]) -> None:
    committed, now = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8"), drawn[name]()
    assert NUMBER.sub("", committed) == NUMBER.sub("", now)
    for old, new in zip(NUMBER.findall(committed), NUMBER.findall(now), strict=True):
        assert float(old) == pytest.approx(float(new), abs=0.3)  # pixels
    assert set(drawn) == {path.stem for path in (DOCS / "figures").glob("*.svg")}
