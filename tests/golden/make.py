"""Makes ``vectors.json``: the bytes that every version of qafel on every machine must produce.

Run it only when bytes change on purpose, together with a new format version: ``python tests/golden/make.py``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1]))

from qafel import Client, Job, Layout, Server, Stepped, quantizer, wire
from qafel.wire import Increment, Request, Snapshot, Update
from specs import SPECS

PATH = Path(__file__).with_name("vectors.json")
SIZE, LONG, SEED = 301, 1301, 20230601
LAYOUT = Layout.of({"weight": (20, 5), "kernels": (5, 4, 3, 3), "bias": (21,)})
WITH_LAYOUT = ("affine:4", "dither:step=0.5", "deadzone:step=0.5")
MESSAGES: list[wire.Message] = [
    Update(1, 2, 3, 4, b"payload"),
    Update(2**64 - 1, 2**64 - 1, 2**40 - 1, 2**40 - 1, b"\xff" * 300),
    Increment(2**63, 70000, 2**64 - 1, False, b"payload"),
    Increment(5, 6, 7, True, b""),
    Snapshot(5, 6, 7, b"\0\0\x80?"),
    Request(5, 6, 7, 2**64 - 1),
    Request(5, 6, None, 0),
]


def vector(size: int = SIZE) -> npt.NDArray[np.float32]:
    """Numbers of many magnitudes, exact in float32, made of integers only."""
    i = np.arange(size)
    x: npt.NDArray[np.float32] = (i * 7919 % 2001 - 1000) * np.exp2(-10.0 - 3 * (i % 4)).astype(np.float32)
    return x.astype(np.float32)


def digest(x: npt.NDArray[np.float32]) -> str:
    return f"{wire.fingerprint(x.tobytes()):016x}"


def quantizer_vector(spec: str, layout: Layout | None = None) -> dict[str, str]:
    q = quantizer(spec, layout)
    payload = q.encode(vector(), SEED)
    vectors = {"payload": payload.hex(), "decoded": digest(q.decode(payload, SIZE))}
    if layout is None:
        long = q.encode(vector(LONG), SEED)
        vectors["long_payload"] = f"{wire.fingerprint(long):016x}"
        vectors["long_decoded"] = digest(q.decode(long, LONG))
    return vectors


def federation(algorithm: dict[str, Any]) -> dict[str, Any]:
    """Sixty uploads of two clients, one of them late; trained with nothing but exact arithmetic."""
    plain: dict[str, Any] = {} if "server_optimizer" in algorithm else {"momentum": 0.5, "server_rate": 0.5}
    job = Job(size=SIZE, buffer_size=3, staleness_weight="sqrt", seed=7, **plain, **algorithm)
    server, clients = Server(job, vector()), [Client(job, vector(), client=k) for k in range(2)]
    late = b""
    for n in range(60):
        frame = clients[n % 2].train(lambda x, task: (np.float32(-0.125) * x).astype(np.float32))
        frame, late = (late, frame) if n % 2 else (frame, late)
        for event in server.receive(frame) if frame else []:
            if isinstance(event, Stepped):
                for client in clients:
                    client.apply(event.frame)
    return {
        "job": f"{job.id:016x}",
        "version": server.version,
        "x": digest(server.x),
        "hidden": f"{server.hidden.digest:016x}",
        "server_state": f"{wire.fingerprint(server.state()):016x}",
        "client_state": f"{wire.fingerprint(clients[0].state()):016x}",
    }


FEDERATIONS: dict[str, dict[str, Any]] = {
    "qafel": {},
    "fedbuff": {"client_quantizer": "identity", "server_quantizer": "identity"},
    "naive": {"broadcast": "model"},
    **{name: {"server_optimizer": f"{name}:rate=0.01"} for name in ("sgd", "adam", "adagrad", "yogi")},
}


def make() -> dict[str, Any]:
    return {
        "quantizers": {spec: quantizer_vector(spec) for spec in SPECS},
        "with_layout": {spec: quantizer_vector(spec, LAYOUT) for spec in WITH_LAYOUT},
        "frames": [[type(m).__name__, wire.encode(m).hex()] for m in MESSAGES],
        "federations": {name: federation(options) for name, options in FEDERATIONS.items()},
    }


if __name__ == "__main__":
    PATH.write_text(json.dumps(make(), indent=1) + "\n")
