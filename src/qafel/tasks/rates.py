"""The default local learning rates of the built-in models."""

from typing import Any

LOCAL_RATES = {"cnn": 0.01, "logistic": 0.1, "softmax": 0.1, "mlp": 0.1, "resnet18": 0.01, "lstm": 1.0}
"""The default local learning rate of each built-in model, with which it learns its built-in data."""
LOCAL_RATE = 0.01
"""The default local learning rate of any other model."""


def default_rate(model: Any) -> float:
    """The default local learning rate of a model."""
    return LOCAL_RATES.get(model, LOCAL_RATE) if isinstance(model, str) else LOCAL_RATE
