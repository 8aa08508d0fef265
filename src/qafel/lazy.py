"""Modules that are imported when they are first used: kernels import numba, and importing qafel must not."""

from importlib import import_module
from typing import Any


class Lazy:
    """Stands for a module until an attribute is read, then for that attribute of the module."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(import_module(self._module), name)
        setattr(self, name, value)  # the next time, Python finds it without this function
        return value
