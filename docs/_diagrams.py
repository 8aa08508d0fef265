"""The diagrams of the documentation: ``python docs/_diagrams.py`` writes them to ``docs/figures``.

What can be computed is computed by the real clock, server, client, quantizers and frames.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from _curves import bound, hidden_state, lookahead, qsgd, rate_distortion
from _svg import COLORS, GRAY, INK, PALE, RULE, Drawing

import qafel
from qafel import wire

FIGURES = Path(__file__).parent / "figures"
TEAL, ORANGE, BLUE, PURPLE, GREEN = COLORS


def algorithm() -> str:
    """Four clients, a buffer of three: which task starts from which version, and when the server steps."""
    from qafel.sim import make_settings
    from qafel.sim.timeline import Timeline, kernels

    chosen = {
        "arrivals": "refill", "concurrency": 4, "buffer_size": 3, "sampling": "idle",
        "duration": "lognormal:1,0.5", "seed": 4,
    }  # fmt: skip
    end, left, lane, server = 5.0, 90.0, 44.0, 250.0
    drawing = Drawing(760, 372, "Asynchronous training with a buffer of three updates")
    scale = (740 - left) / end
    drawing.text(
        20, 28, "Four clients train at their own pace; the server steps with every third update", bold=True
    )
    for client in range(4):
        drawing.text(20, 64 + lane * client + 15, f"client {client}", color=GRAY)
    drawing.text(20, server + 18, "buffer", color=GRAY)
    drawing.text(20, server + 62, "x̂", color=GRAY)
    began: dict[int, Any] = {}
    colors, version, filled, since = (TEAL, ORANGE, BLUE, PURPLE, GREEN), 0, 0, 0.0
    timeline = Timeline(make_settings(chosen), clients=4)
    events = list(itertools.takewhile(lambda event: event.time < end, timeline))
    for event in events:
        if event.kind == kernels.REPORT:
            x, top = left + event.time * scale, 86 + lane * event.client
            drawing.line([(x, top), (x, server - 2)], color=RULE, width=1.2, arrow=True)
    for event in events:
        at = left + event.time * scale
        if event.kind == kernels.START:
            began[event.serial] = event
            until, top = left + min(event.due, end) * scale, 64 + lane * event.client
            drawing.box(at + 1, top, until - at - 2, 22, fill=colors[event.version % 5], radius=3)
            words = (
                f"from x̂{event.version}"
                if until - at > 64
                else f"x̂{event.version}"
                if until - at > 24
                else ""
            )
            drawing.text((at + until) / 2, top + 15, words, size=11, color="#ffffff", anchor="middle")
        if event.kind == kernels.REPORT:
            color = colors[began[event.serial].version % 5]
            drawing.box(at - 5, server + 22 - 8 * filled, 10, 7, fill=color, radius=1)
            filled += 1
            if filled == 3:
                drawing.line([(at, server + 32), (at, server + 46)], color=INK, arrow=True)
                drawing.box(
                    left + since * scale, server + 48, at - left - since * scale, 22, fill=PALE, line=RULE
                )
                drawing.text(
                    (left + since * scale + at) / 2, server + 63, f"x̂{version}", size=11, anchor="middle"
                )
                filled, version, since = 0, version + 1, event.time
    drawing.box(left + since * scale, server + 48, 740 - left - since * scale, 22, fill=PALE, line=RULE)
    drawing.text((left + since * scale + 740) / 2, server + 63, f"x̂{version}", size=11, anchor="middle")
    drawing.text(
        left,
        352,
        "A task has the colour of the version that it started from. An update whose colour is",
        size=11,
        color=GRAY,
    )
    drawing.text(
        left, 367, "older than the hidden state below it is stale by as many steps.", size=11, color=GRAY
    )
    return drawing.svg()


def exactly_once() -> str:
    """An update from lease to receipt."""
    drawing = Drawing(760, 470, "An update, from lease to receipt")
    lanes = {"client": 120, "broker": 400, "server": 660}
    for name, x in lanes.items():
        drawing.box(x - 60, 18, 120, 28, fill=PALE, line=RULE)
        drawing.text(x, 37, name, anchor="middle", bold=True)
        drawing.line([(x, 46), (x, 452)], color=RULE, width=1.2)
    messages = [
        ("client", "server", 74, "ask", TEAL),
        ("server", "client", 104, "lease: task, version, token (a MAC)", TEAL),
        ("client", "broker", 194, "upload: frame and token", ORANGE),
        ("broker", "client", 224, "acknowledged: stored", GRAY),
        ("broker", "server", 254, "entry n of the log", ORANGE),
        ("server", "broker", 344, "increment t + 1", BLUE),
        ("broker", "client", 374, "increment t + 1", BLUE),
        ("server", "client", 404, "receipt: counted, or rejected and why", TEAL),
    ]
    for origin, goal, y, words, color in messages:
        start, stop = lanes[origin], lanes[goal]
        drawing.line([(start, y), (stop + (4 if stop < start else -4), y)], color=color, arrow=True)
        drawing.text(
            (start + stop) / 2 if abs(start - stop) < 400 else 260,
            y - 6,
            words,
            size=12,
            color=color,
            anchor="middle",
        )
    notes = [
        ("client", 124, ("trains from x̂; keeps the", "update in its folder")),
        ("server", 272, ("processes it, and writes", "it to its journal")),
        ("client", 418, ("drops the update", "")),
    ]
    for lane, y, lines in notes:
        x = lanes[lane]
        drawing.box(x - 92, y, 184, 42 if lines[1] else 26, fill="#fffdf5", line=RULE)
        for k, words in enumerate(lines):
            drawing.text(x, y + 18 + 16 * k, words, size=12, anchor="middle")
    return drawing.svg()


def frame() -> str:
    """A real update frame, byte by byte."""
    job = qafel.algorithm("qafel", size=4096)
    client = qafel.Client(job, np.zeros(4096, np.float32), client=7)
    data = client.train(lambda _, task: task.generator().normal(0, 1, 4096).astype(np.float32))
    message = wire.decode(data)
    assert isinstance(message, wire.Update)
    fields: list[tuple[str, int, str]] = [
        ("magic", 2, "QF"),
        ("format", 1, str(wire.FORMAT)),
        ("checksum", 8, "xxh3-64 of format and body"),
        ("array of", 1, "6 values"),
        ("kind", 1, "1: Update"),
    ]
    pack = msgspec.msgpack.encode
    for name in ("job", "client", "task", "version"):
        value = getattr(message, name)
        shown = f"{value:016x}, of all settings" if name == "job" else str(value)
        fields.append((name, len(pack(value)), shown))
    around = len(data) - len(message.payload)
    head = around - sum(length for _, length, _ in fields)
    fields += [
        ("length", head, f"{len(message.payload)} bytes of payload follow"),
        (
            "payload",
            len(message.payload),
            f"Q_c(Δ): {job.client_quantizer}, {8 * len(message.payload) / 4096:.2f} bits each",
        ),
    ]
    drawing = Drawing(760, 86 + 30 * len(fields), f"An update of {len(data)} bytes")
    drawing.text(
        20,
        30,
        f"An update of 4,096 coordinates: {len(data)} bytes, {around} of them around the payload",
        bold=True,
    )
    for x, words in ((20, "bytes"), (92, "field"), (186, "as sent"), (476, "what it says")):
        drawing.text(x, 58, words, size=12, color=GRAY)
    at = 0
    for k, (name, length, shown) in enumerate(fields):
        y = 82 + 30 * k
        drawing.box(14, y - 17, 732, 25, fill=PALE if k % 2 == 0 else "#ffffff", radius=3)
        drawing.text(20, y, f"{at}–{at + length - 1}" if length > 1 else str(at), size=12, color=GRAY)
        drawing.text(92, y, name, size=12, bold=True)
        piece = data[at : at + min(length, 9)].hex(" ") + (" …" if length > 9 else "")
        drawing.text(186, y, piece, size=12, color=COLORS[k % 5], mono=True)
        drawing.text(476, y, shown if len(shown) < 46 else shown[:44] + "…", size=11.5)
        at += length
    return drawing.svg()


DIAGRAMS = {
    "algorithm": algorithm,
    "hidden-state": hidden_state,
    "qsgd": qsgd,
    "rate-distortion": rate_distortion,
    "exactly-once": exactly_once,
    "frame": frame,
    "bound": bound,
    "lookahead": lookahead,
}


def main() -> None:
    """Write all diagrams."""
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (FIGURES / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
