"""CIFAR-10 with FedAdam at the server, and label skew: each class is divided by a Dirichlet distribution.

    python examples/cifar10_fedadam.py cifar10.npz

The file has ``x`` (uint8 images) and ``y``; a folder with the binary version of CIFAR-10 works, too. Without
one, random images stand in, to try it.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

from shared import QUICK, compare


def stand_in() -> str:
    """Images whose brightness depends on their class."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 400)
    x = rng.integers(0, 60, (400, 32, 32, 3)) + 18 * y[:, None, None, None]
    path = Path(tempfile.mkdtemp()) / "images.npz"
    np.savez(path, x=x.astype(np.uint8), y=y)
    return str(path)


if __name__ == "__main__":
    files = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    compare(
        "cifar10_fedadam",
        data=files[0] if files else stand_in(),
        partition="dirichlet:0.5",
        clients=20 if QUICK else 200,
        model="cnn",
        batch_size=32,
        local_rate=0.1,
        server_optimizer="adam:rate=0.003",
        rate=20.0,
        uploads=40 if QUICK else 4000,
        evaluate_every=20 if QUICK else 200,
        held_out_samples=64 if QUICK else 1000,
    )
