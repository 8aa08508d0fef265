"""Progress bars in notebooks, without widgets: a line of HTML that is updated in its place."""

import html
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

PATIENCE = 1.0
"""Seconds before a bar appears."""
INTERVAL = 0.25
"""Seconds between two updates."""


def in_notebook() -> bool:
    """Whether this is a notebook: an interactive shell with a kernel behind it."""
    shell = sys.modules.get("IPython")
    if shell is None:
        return False
    current = shell.get_ipython()
    return current is not None and hasattr(current, "kernel")


class Bar:
    """A progress bar below the cell that made it; ``active`` only in a notebook."""

    def __init__(self) -> None:
        self.active = in_notebook()
        self._began = self._last = time.monotonic()
        self._display: Any = None

    def __call__(self, text: str, share: float) -> None:
        """Show what is being done, and the share of the work that is done."""
        now = time.monotonic()
        if not self.active or (now - self._last < INTERVAL and share < 1) or now - self._began < PATIENCE:
            return
        self._last = now
        show: Any = importlib.import_module("IPython.display")

        seconds = (now - self._began) * (1 - share) / share if share > 0 else 0.0
        rest = f", {seconds:,.0f} s to go" if 0 < share < 1 else ""
        line = show.HTML(
            f'<progress value="{share:.4f}" max="1"></progress> {html.escape(text)}<small>{rest}</small>'
        )
        if self._display is None:
            self._display = show.display(line, display_id=True)
        else:
            self._display.update(line)


def run_bar() -> Callable[[Any], None]:
    """A bar for one simulation, to be called after every event."""
    bar = Bar()

    def progress(run: Any) -> None:
        uploads = run.tracker.totals.uploads
        text = f"{run.settings.algorithm}: {uploads:,} uploads {run.tracker.headline}"
        bar(text, min(1.0, uploads / run.settings.uploads))

    return progress if bar.active else lambda _: None
