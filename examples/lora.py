"""LoRA: fine-tune a small transformer by its adapters only, and send nothing else.

    python examples/lora.py

A transformer is trained on half of the digits, then fine-tuned by clients on all of them: once whole, once by
adapters of rank 4 beside its frozen weights.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

from qafel.sim import simulate
from shared import QUICK, compare, show


class Lora(nn.Module):
    """A matrix, plus a trained product of two thin ones."""

    def __init__(self, matrix: torch.Tensor, rank: int = 4) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, matrix.shape[1]) / matrix.shape[1] ** 0.5)
        self.up = nn.Parameter(torch.zeros(matrix.shape[0], rank))

    def forward(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix + self.up @ self.down


if __name__ == "__main__":
    digits, rng = load_digits(), np.random.default_rng(0)
    x, y = (digits.images / 16).astype(np.float32), digits.target
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(
        layer, 2, enable_nested_tensor=False
    )  # the rows of a digit are its tokens
    base = nn.Sequential(nn.Linear(8, 64), encoder, nn.Flatten(), nn.Linear(8 * 64, 10))
    rule, known = torch.optim.Adam(base.parameters(), 1e-3), np.flatnonzero(y < 5)
    for _ in range(20 if QUICK else 300):
        rows = rng.choice(known, 64)
        nn.functional.cross_entropy(base(torch.from_numpy(x[rows])), torch.from_numpy(y[rows])).backward()
        rule.step()
        rule.zero_grad()

    experiment = {"data": (x, y), "clients": 60, "local_rate": 0.05, "epochs": 2, "rate": 20.0}
    experiment |= {"uploads": 60 if QUICK else 2000, "evaluate_every": 20 if QUICK else 100}
    whole = simulate(model=base, **experiment)
    base.requires_grad_(False)
    for part in encoder.layers:
        for linear in (part.linear1, part.linear2):
            register_parametrization(linear, "weight", Lora(linear.weight))
    base[3].requires_grad_(True)
    lora, full = compare("lora", model=base, **experiment)
    show("lora", {"qafel, LoRA": lora, "fedbuff, LoRA": full, "qafel, whole model": whole})
