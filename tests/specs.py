"""The quantizers that every property is tested on, and vectors to test them with."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

SPECS = [
    "identity",
    "qsgd:2",
    "qsgd:3,bucket=100",
    "qsgd:4",
    "qsgd:4,bucket=256,norm=max",
    "qsgd:5,bucket=7",
    "qsgd:6,norm=max",
    "qsgd:7,bucket=64,norm=max",
    "qsgd:8,bucket=512",
    "qsgd:levels=4,bucket=113",
    "qsgd:9,bucket=64",
    "qsgd:16",
    "affine:1",
    "affine:4",
    "affine:8",
    "affine:13",
    "topk:0.1",
    "topk:5",
    "topk:0.9",
    "randk:0.1",
    "randk:0.1,scaled",
    "randk:20,scaled",
    "contract:qsgd:4",
    "contract:randk:0.5,scaled",
    "induced:topk:0.1+qsgd:4",
    "induced:affine:2+qsgd:4,bucket=64,norm=max",
    "dither:step=6",
    "dither:step=0.5",
    "dither:step=0.02",
    "dither:bits=1",
    "dither:nmse=0.1",
    "deadzone:step=2",
    "deadzone:step=0.05",
    "deadzone:nmse=0.1",
    "rotated:bits=0.4",
    "rotated:bits=3",
    "eden:1",
    "eden:4",
    "sign",
    "natural",
    "ternary",
]


def heavy_tailed(size: int, seed: int = 0, scale: float = 1e-3) -> npt.NDArray[np.float32]:
    """A vector like a client's delta: heavy tails, some exact zeros."""
    rng = np.random.default_rng(seed)
    x = rng.standard_t(3, size) * scale
    x[rng.random(size) < 0.05] = 0
    return x.astype(np.float32)


def deltas() -> dict[str, npt.NDArray[np.float32]]:
    """What clients and the server sent in a recorded run: ``benchmarks/deltas.npz``."""
    with np.load(Path(__file__).parents[1] / "benchmarks" / "deltas.npz", allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}
