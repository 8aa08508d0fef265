"""What the examples share: QAFeL beside FedBuff in one table and one figure; ``--quick`` for a short form."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from qafel.records import provenance
from qafel.runs.result import Result
from qafel.sim import compare as side_by_side
from qafel.sim import simulate

QUICK = "--quick" in sys.argv
OUT = Path(os.environ.get("QAFEL_EXAMPLES", "runs/examples"))


def compare(name: str, algorithms: tuple[str, ...] = ("qafel", "fedbuff"), **settings: Any) -> list[Result]:
    """Run each algorithm on the same experiment; print what it reached and sent, and draw it."""
    results = {algorithm: simulate(**(settings | {"algorithm": algorithm})) for algorithm in algorithms}
    show(name, results)
    return list(results.values())


def show(name: str, results: dict[str, Result]) -> None:
    """The table, as text and as JSON, and the figure."""
    OUT.mkdir(parents=True, exist_ok=True)
    rows = []
    for label, result in results.items():
        s = result.summary
        rows.append({
            "run": label, "metric": s.metric, "start": result.points[0].metrics[s.metric],
            "value": s.smoothed[s.metric], "uploads": s.uploads, "parameters": s.size,
            "MB up": s.bytes_up / 1e6, "MB down": s.bytes_down / 1e6, "digest": s.digest,
        })  # fmt: skip
        print(
            f"{label:12} {s.metric} {rows[-1]['start']:.3f} → {rows[-1]['value']:.3f} after {s.uploads:,} "
            f"uploads of {s.size:,} parameters: {rows[-1]['MB up']:.2f} MB up, {rows[-1]['MB down']:.2f} down"
        )
    (OUT / f"{name}.json").write_text(
        json.dumps({"rows": rows, **provenance("qafel", "torch")}, indent=1) + "\n"
    )
    side_by_side(results).figure(OUT / f"{name}.png")
    print("Figure:", OUT / f"{name}.png")
