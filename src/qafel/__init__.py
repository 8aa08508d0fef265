"""Asynchronous federated learning that sends almost nothing.

QAFeL (Ortega and Jafarkhani 2023): buffered asynchronous aggregation, quantized in both directions through a
hidden state that server and clients share. Start with ``Job`` or ``algorithm``, ``Server`` and ``Client``;
``quantizer`` reads spec strings; ``qafel.theory`` has the formulas.
"""

from typing import TYPE_CHECKING, Any

from qafel.client import Advanced, Client, Drifted, Ignored, Missed, Task, local_sgd
from qafel.coding.threads import set_threads
from qafel.config import Job, algorithm
from qafel.errors import (
    BrokerError,
    ConfigError,
    DivergenceError,
    FencedError,
    FormatError,
    FrameError,
    MissingExtraError,
    NormError,
    OutOfSyncError,
    QafelError,
    QafelWarning,
    SpecError,
    StateError,
    Stopped,
    UsageError,
    VectorError,
    WorkerError,
)
from qafel.optimizers import Optimizer, optimizer, register_optimizer, registered_optimizers
from qafel.quantizers import (
    Measured,
    Quantizer,
    measure,
    quantizer,
    register_quantizer,
    registered_quantizers,
)
from qafel.server import Accepted, Dropped, Server, Stepped
from qafel.vectors import Layout
from qafel.wire import Rejected

if TYPE_CHECKING:
    from qafel.tasks.models import group_norm

__version__ = "0.1.0"

__all__ = [
    "Accepted",
    "Advanced",
    "BrokerError",
    "Client",
    "ConfigError",
    "DivergenceError",
    "Drifted",
    "Dropped",
    "FencedError",
    "FormatError",
    "FrameError",
    "Ignored",
    "Job",
    "Layout",
    "Measured",
    "Missed",
    "MissingExtraError",
    "NormError",
    "Optimizer",
    "OutOfSyncError",
    "QafelError",
    "QafelWarning",
    "Quantizer",
    "Rejected",
    "Server",
    "SpecError",
    "StateError",
    "Stepped",
    "Stopped",
    "Task",
    "UsageError",
    "VectorError",
    "WorkerError",
    "__version__",
    "algorithm",
    "group_norm",
    "local_sgd",
    "measure",
    "optimizer",
    "quantizer",
    "register_optimizer",
    "register_quantizer",
    "registered_optimizers",
    "registered_quantizers",
    "set_threads",
]


def __getattr__(name: str) -> Any:
    if name == "group_norm":  # it needs PyTorch, and importing qafel must not
        from qafel.tasks.models import group_norm

        return group_norm
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
