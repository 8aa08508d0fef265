"""Diagrams that are curves: what quantizers and servers do, measured, and what the theory says."""

from typing import Any

import numpy as np
from _svg import COLORS, GRAY, INK, RULE, Axes, Drawing

import qafel

TEAL, ORANGE, BLUE, PURPLE, GREEN = COLORS


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
    """The same three-bit quantizer, on the difference to the hidden state and on the model itself."""
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
        points = []
        for spec in specs:
            quantizer = qafel.quantizer(spec)
            data = quantizer.encode(v, 0)
            error = float(np.square(quantizer.decode(data, size) - v).sum() / np.square(v).sum())
            points.append((8 * len(data) / size, error))
        axes.curve([b for b, _ in points], [e for _, e in points], color=color)
        for b, e in points:
            drawing.dot(*axes.at(b, e), color=color, radius=3.5)
        axes.name(*places[name], name, color=color)
    return drawing.svg()


def bound() -> str:
    """The terms of the bound against the number of server steps, with rates that fall as 1/√T."""
    from qafel import theory

    drawing = Drawing(760, 370, "The terms of the theorem's bound")
    axes = Axes(
        drawing,
        (76, 46, 430, 260),
        (100, 1e6),
        (1e-7, 1),
        labels=("server steps T", "relative size"),
        title="Four bits each way: what vanishes how fast",
        log="xy",
    )
    steps = [10 ** (2 + k / 10) for k in range(41)]
    quantizer = qafel.quantizer("qsgd:4,bucket=256,norm=max")
    bounds = []
    for count in steps:
        setting = theory.Setting(
            smoothness=1,
            variance=1,
            gradient_bound=1,
            gap=1,
            steps=round(count),
            buffer_size=10,
            rates=(0.1 / count**0.5,) * 2,
            server_rate=1,
            max_staleness=10,
        )
        bounds.append(theory.bound(setting.with_quantizers(quantizer, quantizer, size=29_282)))
    names = {
        "optimisation": (INK, "distance from the optimum, T^−½"),
        "noise": (TEAL, "gradient noise, T^−½"),
        "client_quantization": (ORANGE, "clients' quantization, T^−½"),
        "staleness": (BLUE, "staleness, T^−1"),
        "server_quantization": (PURPLE, "server's quantization, T^−1"),
        "cross": (GREEN, "staleness × quantization, T^−1"),
    }
    largest = bounds[0].optimisation
    for k, (name, (color, words)) in enumerate(names.items()):
        axes.curve(steps, [getattr(one, name) / largest for one in bounds], color=color)
        drawing.line([(520, 66 + 26 * k), (536, 66 + 26 * k)], color=color, width=3)
        drawing.text(542, 70 + 26 * k, words, size=11.5)
    return drawing.svg()


def _delayed(share: float, delay: int, uploads: int) -> list[float]:
    """‖x − x*‖ after every upload, of a quadratic whose updates arrive ``delay`` uploads late."""
    size = 200
    target = qafel.streams.generator(1, "target").normal(0, 1, size).astype(np.float32)
    curvature = np.linspace(0.05, 1, size, dtype=np.float32)
    job = qafel.Job(size=size, buffer_size=5, server_quantizer="deadzone:step=1", lookahead=share)
    x = np.zeros(size, np.float32)
    server, flying, distances = qafel.Server(job, x), [], []
    clients = [qafel.Client(job, x, client=k) for k in range(delay + 1)]

    def gradient(y: Any, task: Any, p: int) -> Any:
        return curvature * (y - target) + task.generator(p).normal(0, 0.1, size).astype(np.float32)

    for upload in range(uploads):
        flying.append(clients[upload % (delay + 1)].train(qafel.local_sgd(gradient, rates=[0.18])))
        if len(flying) > delay:
            for event in server.receive(flying.pop(0)):
                if isinstance(event, qafel.Stepped):
                    for client in clients:
                        client.apply(event.frame)
        distances.append(float(np.linalg.norm(server.x - target)))
    return distances


def lookahead() -> str:
    """The same training with increments that aim at x, and ahead of it."""
    drawing = Drawing(760, 330, "Looking ahead makes up for staleness")
    axes = Axes(
        drawing,
        (76, 46, 660, 220),
        (0, 600),
        (0.5, 40),
        labels=("uploads", "distance to the optimum"),
        title="Updates that arrive 40 uploads (8 steps) late",
        log="y",
    )
    runs = {0.0: (ORANGE, "aims at x", 12.0), 0.25: (TEAL, "a quarter of the staleness ahead", 0.65)}
    for share, (color, words, height) in runs.items():
        axes.curve(range(600), _delayed(share, 40, 600), color=color)
        axes.name(590, height, words, color=color, anchor="end")
    return drawing.svg()
