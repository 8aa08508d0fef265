"""Optional dependencies: what a piece of work needs is checked before it starts, all at once."""

import importlib.util

from qafel.errors import MissingExtraError

MODULES = {
    "dashboard": ("starlette", "uvicorn"),
    "data": ("sklearn", "PIL"),
    "federation": ("nats", "nkeys", "cryptography"),
    "figures": ("matplotlib",),
    "notebook": ("pandas",),
    "tensorboard": ("tensorboard",),
    "torch": ("torch", "safetensors"),
}
"""What each extra installs, by the names of its modules."""


def require(what: str, *extras: str) -> None:
    """Raise MissingExtraError, which names all of these extras that are not installed."""
    missing = [extra for extra in dict.fromkeys(extras) if not all(map(_installed, MODULES[extra]))]
    if missing:
        raise MissingExtraError(what, *missing)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # ValueError: None stands in sys.modules
        return False
