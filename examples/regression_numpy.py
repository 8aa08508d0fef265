"""Regression with a training function in plain numpy: no PyTorch, no model, just ``train`` and ``evaluate``.

python examples/regression_numpy.py
"""

import numpy as np

from shared import QUICK, compare

FEATURES, CLIENTS = 300, 20 if QUICK else 100
truth = np.random.default_rng(0).standard_normal(FEATURES)


def clinic(k: int, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Measurements of one clinic; every clinic has a bias of its own."""
    rng = np.random.default_rng(1000 + k)
    x = rng.standard_normal((n, FEATURES)) / np.sqrt(FEATURES)
    return x.astype(np.float32), (x @ truth + 0.1 * rng.standard_normal(n) + 0.1 * rng.standard_normal())


x_test, y_test = (np.concatenate(part) for part in zip(*(clinic(-k - 1) for k in range(20)), strict=True))


def train(x, task, samples):
    """Ten steps of gradient descent on ridge regression; returns the delta, not the model."""
    inputs, targets = samples
    delta = np.zeros_like(x)
    for rows in np.array_split(task.generator("order").permutation(len(targets)), 10):
        errors = inputs[rows] @ (x + delta) - targets[rows]
        delta -= 1.0 * (inputs[rows].T @ errors / len(rows) + 1e-4 * (x + delta))
    return delta


def evaluate(x):
    """The error of a model on clinics that do not train, in units of the variance."""
    error = float(np.square(x_test @ x - y_test).mean())
    return {"r2": 1 - error / float(y_test.var()), "loss": error}


if __name__ == "__main__":
    compare(
        "regression_numpy",
        data=[clinic(k) for k in range(CLIENTS)],
        train=train,
        x=np.zeros(FEATURES),
        evaluate=evaluate,
        uploads=200 if QUICK else 4000,
        evaluate_every=100,
    )
