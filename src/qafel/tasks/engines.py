"""Engines: they compute gradients and outputs of a model whose parameters are a flat vector.

    plain     PyTorch, one operation after the other
    compile   PyTorch with torch.compile, compiled once for all batch sizes; needs a C++ compiler
    kernel    hand-written kernels for the paper's CNN (``qafel.tasks.cnn``)

All engines return the same gradient up to rounding. Each returns the same bits every time on one machine.
"""

import os
import shutil
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from qafel.errors import ConfigError, unknown
from qafel.tasks import cnn, models
from qafel.tasks.data import arrays
from qafel.tasks.measures import default_loss
from qafel.tasks.models import nn, torch
from qafel.vectors import Vector

Loss = Callable[[Any, Any], Any]
ENGINES = ("auto", "kernel", "plain", "compile")


class Engine(Protocol):
    """Computes gradients and outputs of one model; inputs and targets are arrays, or dictionaries of them."""

    name: str

    def gradient(self, y: Vector, x: Any, targets: Any, seed: int) -> tuple[Vector, float]:
        """The gradient of the mean loss at ``y``, and the loss; the caller may modify the gradient."""

    def outputs(self, y: Vector, x: Any) -> Any:
        """The outputs of the model with parameters ``y``, one row per sample."""


class Torch:
    """PyTorch's autograd. The module's parameters are views of one flat tensor.

    The module's buffers are those of the first model in every task. With ``batch_statistics``, layers that
    keep running statistics (BatchNorm) use those of the batch, in the evaluation, too.
    """

    name = "plain"

    def __init__(
        self,
        module: nn.Module,
        device: str = "cpu",
        loss: Loss = default_loss,
        *,
        batch_statistics: bool = False,
    ) -> None:
        self.module, self.device, self._loss = module.to(device), torch.device(device), loss
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
        self._running = [part for part in module.modules() if models.has_statistics(part)]
        self._buffers = [(b, b.clone()) for b in module.buffers()] if batch_statistics else []

    def gradient(self, y: Vector, x: Any, targets: Any, seed: int) -> tuple[Vector, float]:
        """See Engine."""
        self.load(y)
        loss = self._backward(self._tensors(x), self._tensors(targets), seed)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        return torch.cat([part.reshape(-1) for part in parts]).cpu().numpy(), loss.item()

    def _backward(self, x: Any, targets: Any, seed: int) -> Any:
        """Compute the gradient of the mean loss; returns the loss."""
        self.module.train()
        self._seed(seed)
        for p in self.parameters:
            p.grad = None
        plain = self._compiled is None or arrays.count(targets) == 1
        loss = self._loss(self._forward(x, self.module if plain else self._compiled), targets)
        loss.backward()
        return loss

    def _forward(self, x: Any, module: Any) -> Any:
        return module(**x) if isinstance(x, dict) else module(x)

    def optimize(self, rule: Any, x: Any, targets: Any, seed: int, start: Vector, prox: float) -> float:
        """Take a step of a PyTorch optimizer from where the parameters are; returns the loss."""
        inputs, wanted, losses = self._tensors(x), self._tensors(targets), list[float]()

        def closure() -> Any:
            loss = self._backward(inputs, wanted, seed)
            losses.append(loss.item())
            if prox:
                sizes, ahead = [p.numel() for p in self.parameters], self.parameter_vector() - start
                for p, part in zip(self.parameters, np.split(ahead, np.cumsum(sizes)[:-1]), strict=True):
                    if p.grad is not None:
                        p.grad.add_(torch.from_numpy(part).to(self.device).view(p.shape), alpha=prox)
            return loss

        rule.step(closure)
        return losses[0]

    def parameter_vector(self) -> Vector:
        """A copy of the parameters."""
        return self._flat.cpu().numpy().copy()

    def outputs(self, y: Vector, x: Any) -> Any:
        """See Engine."""
        self.load(y)
        self.module.eval()
        if self._buffers:
            for part in self._running:
                part.train()
        self._seed(0)  # models that are random in the evaluation, too
        with torch.inference_mode():
            return _cpu(self._forward(self._tensors(x), self.module))

    def compile(self, shape: tuple[int, ...], batch: int) -> None:
        """Compile the module once for all batch sizes.

        The first batch decides what torch.compile generates, so it has the same size in every process.
        """
        torch._inductor.config.compile_threads = 1
        compiled, size = torch.compile(self.module), max(batch, 2)
        x, labels = torch.zeros((size, *shape), device=self.device), torch.zeros(size, dtype=torch.int64)
        torch._dynamo.mark_dynamic(x, 0)
        self.module.train()
        self._loss(compiled(x), labels.to(self.device)).backward()
        self._compiled, self.name = compiled, "compile"

    def _seed(self, seed: int) -> None:
        """Seed dropout. On the CPU torch.manual_seed would take longer than the gradient of a small model."""
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def load(self, y: Vector) -> None:
        """Set the parameters, and restore the buffers."""
        np.copyto(self._host, y)
        if self.device.type != "cpu":
            self._flat.copy_(torch.from_numpy(self._host))
        with torch.no_grad():
            for buffer, first in self._buffers:
                buffer.copy_(first)

    def _tensors(self, data: arrays.Arrays) -> Any:
        return arrays.each(lambda part: torch.from_numpy(np.ascontiguousarray(part)).to(self.device), data)


def _cpu(outputs: Any) -> Any:
    if isinstance(outputs, dict):
        return {name: _cpu(part) for name, part in outputs.items()}
    if isinstance(outputs, tuple | list):
        parts = map(_cpu, outputs)
        return type(outputs)(*parts) if hasattr(outputs, "_fields") else type(outputs)(parts)
    return outputs.cpu() if hasattr(outputs, "cpu") else outputs


def engine(
    name: str,
    module: nn.Module,
    shape: Any,
    batch: int,
    device: str = "cpu",
    loss: Loss = default_loss,
    *,
    kernels: bool = True,
    batch_statistics: bool = False,
) -> Engine:
    """The engine called ``name``; ``auto`` is the kernel for the model cnn on the CPU, else plain.

    ``kernels``: whether labels and the default loss allow the kernel. Raises ConfigError if the name is
    unknown or the model, loss, device or machine does not support the engine.
    """
    if name not in ENGINES:
        raise unknown("engine", name, ENGINES)
    is_cnn = isinstance(module, models.Cnn) and device == "cpu" and kernels
    if name == "kernel" and not is_cnn:
        raise ConfigError(
            "the engine kernel is for the model cnn on the device cpu, with labels, SGD and the default loss "
            "only; use auto, plain or compile"
        )
    if isinstance(module, models.Cnn) and is_cnn and name in ("auto", "kernel"):
        return cnn.Cnn(module.shape[0], module.shape[1], module.classes, module.dropout)
    if name == "compile" and not compiler():
        raise ConfigError("the engine compile needs a C++ compiler; install one or use the engine plain")
    if name == "compile" and not kernels:
        raise ConfigError("the engine compile is for labels, SGD and the default loss only; use plain")
    check_device(device)
    result = Torch(module, device, loss, batch_statistics=batch_statistics)
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
        raise unknown("device", device, available)
    if not available[kind]:
        raise ConfigError(f"this machine has no {kind} device that PyTorch can use; use the device cpu")
