"""Engines: they compute gradients and scores of a model whose parameters are a flat vector.

    plain     PyTorch, one operation after the other
    compile   PyTorch with torch.compile, compiled once for all batch sizes; needs a C++ compiler
    kernel    hand-written kernels for the paper's CNN (``qafel.tasks.cnn``)

All engines return the same gradient up to rounding. Each returns the same bits every time on one machine.
"""

import os
import shutil
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qafel.errors import ConfigError
from qafel.tasks import cnn, models
from qafel.tasks.models import Tensor, functional, nn, torch
from qafel.vectors import Vector

Labels = npt.NDArray[np.int64]
ENGINES = ("auto", "kernel", "plain", "compile")


class Engine(Protocol):
    """Computes gradients and scores of one model."""

    name: str

    def gradient(self, y: Vector, x: Vector, labels: Labels, seed: int) -> tuple[Vector, float]:
        """The gradient of the mean loss at ``y``, and the loss; the caller may modify the gradient."""

    def scores(self, y: Vector, x: Vector) -> Vector:
        """The outputs of the model with parameters ``y``, one row per sample."""


class Torch:
    """PyTorch's autograd. The module's parameters are views of one flat tensor."""

    name = "plain"

    def __init__(self, module: nn.Module, device: str = "cpu") -> None:
        self.module, self.device = module.to(device), torch.device(device)
        self.parameters = [p for _, p in models.trained(module)]
        self._flat = torch.zeros(sum(p.numel() for p in self.parameters), device=self.device)
        self._host = (
            self._flat.numpy() if self.device.type == "cpu" else np.zeros(self._flat.numel(), np.float32)
        )
        start = 0
        for p in self.parameters:
            p.data = self._flat[start : start + p.numel()].view(p.shape)
            start += p.numel()
        self._compiled: Any = None

    def gradient(self, y: Vector, x: Vector, labels: Labels, seed: int) -> tuple[Vector, float]:
        """See Engine."""
        self._load(y)
        self.module.train()
        self._seed(seed)
        for p in self.parameters:
            p.grad = None
        forward = self.module if self._compiled is None or len(x) == 1 else self._compiled
        value = loss(forward(self._tensor(x)), self._tensor(labels))
        value.backward()  # type: ignore[no-untyped-call]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        return torch.cat([part.reshape(-1) for part in parts]).cpu().numpy(), value.item()

    def scores(self, y: Vector, x: Vector) -> Vector:
        """See Engine."""
        self._load(y)
        self.module.eval()
        with torch.inference_mode():
            out: Vector = self.module(self._tensor(x)).cpu().numpy()
        return out

    def compile(self, shape: tuple[int, ...], batch: int) -> None:
        """Compile the module once for all batch sizes.

        The first batch decides what torch.compile generates, so it has the same size in every process.
        """
        torch._inductor.config.compile_threads = 1
        compiled, size = torch.compile(self.module), max(batch, 2)
        x, labels = torch.zeros((size, *shape), device=self.device), torch.zeros(size, dtype=torch.int64)
        torch._dynamo.mark_dynamic(x, 0)
        self.module.train()
        loss(compiled(x), labels.to(self.device)).backward()  # type: ignore[no-untyped-call]
        self._compiled, self.name = compiled, "compile"

    def _seed(self, seed: int) -> None:
        """Seed dropout. On the CPU torch.manual_seed would take longer than the gradient of a small model."""
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _load(self, y: Vector) -> None:
        np.copyto(self._host, y)
        if self.device.type != "cpu":
            self._flat.copy_(torch.from_numpy(self._host))

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)


def loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean loss: logistic for one output, cross-entropy for two or more."""
    if outputs.ndim == 2 and outputs.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs.dtype))
    return functional.cross_entropy(outputs, labels)


def evaluate(outputs: Vector, labels: Labels) -> dict[str, float]:
    """Accuracy and loss, each summed over the samples."""
    scores = outputs.astype(np.float64)
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], 1)
    top = scores.max(1)
    likelihood = scores[np.arange(len(labels)), labels] - top
    losses = np.log(np.exp(scores - top[:, None]).sum(1)) - likelihood
    return {"accuracy": float((scores.argmax(1) == labels).sum()), "loss": float(losses.sum())}


def engine(name: str, module: nn.Module, shape: tuple[int, ...], batch: int, device: str = "cpu") -> Engine:
    """The engine called ``name``; ``auto`` is the kernel for the model cnn on the CPU, else plain.

    Raises ConfigError if the name is unknown or the model, device or machine does not support the engine.
    """
    if name not in ENGINES:
        raise ConfigError(f"unknown engine {name!r}; known are {', '.join(ENGINES)}")
    is_cnn = isinstance(module, models.Cnn) and device == "cpu"
    if name == "kernel" and not is_cnn:
        raise ConfigError(
            "the engine kernel is for the model cnn on the device cpu only; use auto, plain or compile"
        )
    if isinstance(module, models.Cnn) and is_cnn and name in ("auto", "kernel"):
        return cnn.Cnn(module.shape[0], module.shape[1], module.classes, module.dropout)
    if name == "compile" and not compiler():
        raise ConfigError("the engine compile needs a C++ compiler; install one or use the engine plain")
    check_device(device)
    result = Torch(module, device)
    if name == "compile":
        result.compile(shape, batch)
    return result


def compiler() -> str | None:
    """The path of the C++ compiler that torch.compile would use; None if there is none."""
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))), None)


def check_device(device: str) -> None:
    """Raise ConfigError unless PyTorch can use the device on this machine."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    kind, _, index = device.partition(":")
    if kind not in available or not (index.isdigit() or ":" not in device):
        raise ConfigError(f"unknown device {device!r}; known are cpu, cuda and mps")
    if not available[kind]:
        raise ConfigError(f"this machine has no {kind} device that PyTorch can use; use the device cpu")
