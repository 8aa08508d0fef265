"""Take the pictures of the page anew: ``python docs/_page_pictures.py``, with chromium and playwright.

Nine runs of digits are simulated, `qafel dashboard` serves them, and chromium takes the pictures. A picture
ends below a row of panels, so that no panel is cut.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from qafel.sim import simulate

FIGURES = Path(__file__).parent / "figures"
TASK: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "partition": "dirichlet:1",
    "clients": 60,
    "rate": 60,
    "epochs": 2,
    "uploads": 2000,
    "evaluate_every": 50,
}
FOUR_BITS = {"client_quantizer": "affine:4", "server_quantizer": "affine:4", "lookahead": 0.0}
RUNS: dict[str, dict[str, Any]] = {
    "four-bits": FOUR_BITS,
    "fedbuff": {"algorithm": "fedbuff"},
    "qafel": {},
}
"""The page lists the newest first, and gives colours in that order."""
PICTURES = {  # name: width, rows of panels, colours
    "dashboard": (1400, 3, "light"),
    "dashboard-light": (700, 3, "light"),
    "dashboard-dark": (700, 3, "dark"),
    "dashboard-phone": (390, 3, "light"),
}
BOTTOM = """rows => {
  const panels = [...document.querySelectorAll("#panels figure")].filter((one) => !one.hidden);
  const bottoms = panels.map((one) => Math.round(one.getBoundingClientRect().bottom + scrollY));
  return [...new Set(bottoms)].sort((a, b) => a - b)[rows - 1];
}"""


def main() -> None:
    """Simulate the runs and take the pictures."""
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more tasks in flight than clients
        folder = Path(temporary) / "digits"
        for name, settings in RUNS.items():
            for seed in range(3):
                simulate(**TASK, **settings, seed=seed, out=folder / f"{name}-seed{seed}")
        command = [sys.executable, "-m", "qafel", "dashboard", folder.name, "--port", "0", "--json"]
        page = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=temporary)  # noqa: S603
        assert page.stdout is not None
        try:
            _take(json.loads(page.stdout.readline())["address"])
        finally:
            page.terminate()
            page.wait()


def _take(address: str) -> None:
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for name, (width, rows, scheme) in PICTURES.items():
            page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector("body[data-ready=yes]")
            height = page.evaluate(BOTTOM, rows) + 12
            file = FIGURES / f"{name}.png"
            clip = {"x": 0, "y": 0, "width": width, "height": height}
            page.screenshot(path=file, full_page=True, clip=clip)
            Image.open(file).convert("P", palette=Image.Palette.ADAPTIVE).save(file, optimize=True)
        chromium.close()


if __name__ == "__main__":
    main()
