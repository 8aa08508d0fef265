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

from _svg import COLORS, GRAY, INK, PALE, RULE, Axes, Drawing

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


def _train(job: qafel.Job, steps: int) -> tuple[list[float], list[float]]:
    """‖x − x̂‖ and ‖x − x*‖ after every server step, of a quadratic that eight clients share."""
    size = job.size
    target = qafel.streams.generator(1, "target").normal(0, 1, size).astype(np.float32)
    x = np.zeros(size, np.float32)
    server = qafel.Server(job, x)
    clients = [qafel.Client(job, x, client=k) for k in range(8)]
    gaps, distances, upload = [], [], 0

    def gradient(y: Any, task: Any, p: int) -> Any:
        return y - target + task.generator(p).normal(0, 0.05, size).astype(np.float32)

    while server.version < steps:
        frame = clients[upload % 8].train(qafel.local_sgd(gradient, rates=[0.05, 0.05]))
        upload += 1
        try:
            events = server.receive(frame)
        except qafel.DivergenceError:
            break
        for event in events:
            if isinstance(event, qafel.Stepped):
                for client in clients:
                    client.apply(event.frame)
                gaps.append(float(np.linalg.norm(server.x - server.hidden.x)))
                distances.append(float(np.linalg.norm(server.x - target)))
    return gaps, distances


def hidden_state() -> str:
    """The same two-bit quantizer, on the difference to the hidden state and on the model itself."""
    drawing = Drawing(760, 330, "A hidden state lets the error vanish; naive quantization repeats it")
    options = {"size": 2000, "buffer_size": 4, "client_quantizer": "qsgd:4,bucket=256,norm=max"}
    coarse = "qsgd:3,bucket=256,norm=max"
    runs = {
        "hidden state: Q(x − x̂)": (qafel.Job(**options, server_quantizer=coarse), TEAL),
        "naive: Q(x)": (qafel.Job(**options, server_quantizer=coarse, broadcast="model"), ORANGE),
    }
    left = Axes(
        drawing,
        (76, 46, 290, 220),
        (0, 300),
        (1e-2, 1e2),
        labels=("server steps", "‖x − x̂‖"),
        title="What clients have wrong",
        log="y",
    )
    right = Axes(
        drawing,
        (456, 46, 290, 220),
        (0, 300),
        (0.1, 1e2),
        labels=("server steps", "distance to the optimum"),
        title="What it costs",
        log="y",
    )
    for name, (job, color) in runs.items():
        gaps, distances = _train(job, 300)
        steps = list(range(1, len(gaps) + 1))
        left.curve(steps, gaps, color=color)
        right.curve(steps, distances, color=color)
        left.name(290, gaps[-1] * (2.2 if color == ORANGE else 3.5), name, color=color, anchor="end")
    return drawing.svg()


def qsgd() -> str:
    """The error of QSGD with one norm grows with the vector; above one, a server quantizer diverges."""
    drawing = Drawing(760, 330, "Textbook QSGD is not a contraction for long vectors")
    sizes = [2**k for k in range(4, 18)]
    left = Axes(
        drawing,
        (76, 46, 290, 220),
        (sizes[0], sizes[-1]),
        (1e-2, 100),
        labels=("coordinates d", "‖Q(v) − v‖² / ‖v‖²"),
        title="Error of four bits, measured",
        log="xy",
    )
    left.curve([sizes[0], sizes[-1]], [1, 1], color=GRAY, dash="4 4")
    left.name(sizes[-1] * 0.8, 0.6, "below this line, it contracts", color=GRAY, anchor="end")
    for spec, words, color, height in (
        ("qsgd:4", "one L2 norm: qsgd:4", ORANGE, 55.0),
        ("qsgd:4,bucket=256,norm=max", "buckets of 256, max norm", TEAL, 0.045),
    ):
        quantizer, errors = qafel.quantizer(spec), []
        for size in sizes:
            v = qafel.streams.generator(0, "normal", size).normal(0, 1, size).astype(np.float32)
            decoded = quantizer.decode(quantizer.encode(v, 0), size)
            errors.append(float(np.square(decoded - v).sum() / np.square(v).sum()))
        left.curve(sizes, errors, color=color)
        left.name(sizes[-1] * 0.8, height, words, color=color, anchor="end")
    right = Axes(
        drawing,
        (456, 46, 290, 220),
        (0, 40),
        (0.1, 1e4),
        labels=("server steps", "‖x − x̂‖"),
        title="At the server, 29,282 coordinates",
        log="y",
    )
    for spec, words, color in (
        ("qsgd:4", "stopped: DivergenceError", ORANGE),
        ("qsgd:4,bucket=256,norm=max", "", TEAL),
    ):
        gaps, _ = _train(qafel.Job(size=29_282, buffer_size=4, server_quantizer=spec), 40)
        right.curve(range(1, len(gaps) + 1), gaps, color=color)
        if words:
            x, y = right.at(len(gaps), gaps[-1])
            drawing.dot(x, y, color=color)
            drawing.text(x + 9, y + 4, words, size=12, color=color)
        else:
            right.name(38, gaps[-1] * 1.8, "buckets", color=color, anchor="end")
    return drawing.svg()


def rate_distortion() -> str:
    """Bits against error of the quantizers, on a vector of normal numbers."""
    drawing = Drawing(760, 430, "Bits per coordinate against error")
    axes = Axes(
        drawing,
        (76, 46, 660, 310),
        (0.2, 12),
        (1e-4, 10),
        labels=("bits per coordinate (all bytes of the payload)", "‖Q(v) − v‖² / ‖v‖²"),
        title="Where each quantizer lies: 65,536 normal numbers",
        log="xy",
    )
    size = 1 << 16
    v = qafel.streams.generator(0, "normal", size).normal(0, 1, size).astype(np.float32)
    bits = [0.2 * 1.06**k for k in range(60)]
    axes.curve(bits, [2 ** (-2 * b) for b in bits], color=RULE)
    axes.name(1.05, 0.016, "no code for these", color=GRAY, anchor="end")
    axes.name(1.05, 0.0085, "numbers lies below this line", color=GRAY, anchor="end")
    families = {
        "qsgd, buckets": [f"qsgd:{n},bucket=256,norm=max" for n in (2, 3, 4, 6)],
        "dither": [f"dither:step={step}" for step in (0.25, 0.5, 1, 2, 4)],
        "rotated": [f"rotated:bits={b}" for b in (0.25, 0.4, 0.7, 1, 1.5)],
        "deadzone": [f"deadzone:step={step}" for step in (0.5, 1, 1.4, 1.8, 2.4)],
        "topk": [f"topk:{share}" for share in (0.02, 0.05, 0.1, 0.2)],
    }
    places = {
        "qsgd, buckets": (2.3, 1.5),
        "dither": (0.95, 1.6),
        "rotated": (0.28, 4.4),
        "deadzone": (0.36, 0.3),
        "topk": (6.6, 0.5),
    }
    for (name, specs), color in zip(families.items(), COLORS, strict=True):
        found = []
        for spec in specs:
            quantizer = qafel.quantizer(spec)
            data = quantizer.encode(v, 0)
            error = float(np.square(quantizer.decode(data, size) - v).sum() / np.square(v).sum())
            found.append((8 * len(data) / size, error))
        axes.curve([b for b, _ in found], [e for _, e in found], color=color)
        for b, e in found:
            drawing.dot(*axes.at(b, e), color=color, radius=3.5)
        axes.name(*places[name], name, color=color)
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
}


def main() -> None:
    """Write all diagrams."""
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (FIGURES / f"{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
