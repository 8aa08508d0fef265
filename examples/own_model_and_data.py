"""Your own model, data, loss, metric and callback: households that predict their electricity use.

python examples/own_model_and_data.py
"""

import numpy as np
import torch
from torch import nn

from qafel.sim import EarlyStopping
from shared import QUICK, compare

HOUSEHOLDS = 20 if QUICK else 200


def household(k: int) -> tuple[np.ndarray, np.ndarray]:
    """A few weeks of one household: (hour, temperature, weekend, hour before) and kWh."""
    rng = np.random.default_rng(k)
    n = int(rng.integers(50, 300))
    hour, cold, weekend = rng.uniform(0, 24, n), rng.normal(0, 1, n), rng.random(n) < 2 / 7
    habit, heating = rng.normal(19, 1.5), rng.uniform(0.1, 0.6)
    use = 0.4 + np.exp(-(((hour - habit) / 3) ** 2)) + heating * np.maximum(0, -cold) + 0.3 * weekend
    before = use + rng.normal(0, 0.2, n)
    x = np.stack([hour / 12 - 1, cold, weekend, before], 1).astype(np.float32)
    return x, (use + rng.normal(0, 0.05, n)).astype(np.float32)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))


def mae(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean absolute error, in kWh: one number per sample."""
    return (outputs - targets).abs()


if __name__ == "__main__":
    compare(
        "own_model_and_data",
        model=net,
        data={f"household {k}": household(k) for k in range(HOUSEHOLDS)},
        loss=nn.functional.huber_loss,
        metrics={"mae": mae},
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=2e-3),
        callbacks=[EarlyStopping("loss", patience=20)],
        rate=5.0,
        uploads=300 if QUICK else 6000,
        evaluate_every=100,
    )
