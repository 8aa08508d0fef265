"""The page as one self-contained file, to send to somebody."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from qafel import files
from qafel.dashboard.runs import Known, Runs, name_groups, readable
from qafel.errors import ConfigError
from qafel.runs.events import EVENTS

PAGE = Path(__file__).with_name("page")
STYLE, SCRIPTS = "style.css", ("chart.js", "timeline.js", "app.js")
"""The files of the page beside index.html."""


def report(folders: Sequence[str | Path], out: str | Path) -> Path:
    """Write a report of some runs, or of all runs below some folders; return its path."""
    if not folders:
        raise ConfigError("a report needs the folder of a run, or a folder of runs")
    path = Path(out)
    if path.is_dir() or not path.name:
        raise ConfigError(f"the report must be a file, and {out} is a folder")
    known: list[Known] = []
    content: dict[str, Any] = {"run": {}, "events": {}, "made": time.strftime("%Y-%m-%d %H:%M")}
    for folder in folders:
        runs = Runs(Path(folder))
        here = runs.known()
        if not here:
            raise ConfigError(f"{folder} is not the folder of a run, and has none in it")
        for _, one, _ in here:
            if one.id in content["run"]:
                raise ConfigError(f"two runs are called {one.name}; name the folder above them instead")
            content["run"][one.id] = runs.run(one.id)
            if (runs.path(one.id) / EVENTS).exists():
                content["events"][one.id] = runs.events(one.id)
        known += here
    name_groups(known)
    listed = [one for _, one, _ in known]
    content["runs"] = {"folder": ", ".join(readable(Path(folder)) for folder in folders), "runs": listed}
    with files.writing(path, "choose another file"):
        files.write(path, _page(content).encode(), sync=False)
    return path


def _page(content: dict[str, Any]) -> str:
    """The page with its style, its scripts and its data inside."""
    text = (PAGE / "index.html").read_text(encoding="utf-8")
    style = (PAGE / STYLE).read_text(encoding="utf-8")
    data = msgspec.json.encode(content).decode().replace("<", "\\u003c")  # nothing in it ends the script
    text = text.replace(f'<link rel="stylesheet" href="{STYLE}">', f"<style>\n{style}</style>")
    for name in SCRIPTS:
        script = (PAGE / name).read_text(encoding="utf-8")
        start = f'<script type="application/json" id="data">{data}</script>\n' if name == SCRIPTS[0] else ""
        text = text.replace(f'<script src="{name}"></script>', f"{start}<script>\n{script}</script>")
    return text
