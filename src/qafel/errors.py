"""Every error that qafel raises on purpose, as one tree.

    QafelError
    ├── UsageError             you misused it: fix the call (also a ValueError)
    │   ├── SpecError          a quantizer spec that cannot be read; carries the nearest valid one
    │   ├── VectorError        a vector that cannot be coded: wrong type or shape, NaN, infinity
    │   ├── ConfigError        a job or setting outside its range
    │   ├── StateError         saved state that is damaged or belongs to something else
    │   ├── OutOfSyncError     a client asked to train while it has no hidden state
    │   └── MissingExtraError  an optional dependency is not installed; names the pip install
    ├── FrameError             the peer misbehaved: bytes that are not a valid message or payload
    │   ├── FormatError        valid bytes of a format version that this qafel does not read
    │   └── NormError          an update whose norm is above the limit
    ├── BrokerError            the broker cannot be reached, or refused a request
    │   └── FencedError        another server has taken over
    ├── WorkerError            local training failed in a worker process
    └── DivergenceError        the training diverged; the message names the fix

``Stopped`` is a KeyboardInterrupt: the user stopped a run, which can be resumed. ``QafelWarning`` is the
category of every warning.
"""

import difflib
from collections.abc import Iterable

MAX_LINE = 300


def one_line(error: BaseException) -> str:
    """The text of an error on one line, or its type if it has none."""
    return " ".join(str(error).split())[:MAX_LINE] or type(error).__name__


def named(error: BaseException) -> str:
    """The type of an error and its text on one line."""
    return f"{type(error).__name__}: {one_line(error)}"


class QafelError(Exception):
    """Base of every error raised on purpose."""


class UsageError(QafelError, ValueError):
    """The caller made a mistake."""


class SpecError(UsageError):
    """A quantizer spec cannot be read; ``nearest`` is the nearest valid one."""

    def __init__(self, message: str, nearest: str) -> None:
        super().__init__(f"{message}; nearest valid spec: {nearest!r}")
        self.nearest = nearest


class VectorError(UsageError):
    """A vector cannot be coded."""


class ConfigError(UsageError):
    """A job or setting is outside its range."""


class StateError(UsageError):
    """Saved state is damaged or belongs to something else."""


class OutOfSyncError(UsageError):
    """A client was asked to train while it has no hidden state."""


class MissingExtraError(UsageError):
    """Optional dependencies are not installed; ``extras`` are the names to install them by."""

    def __init__(self, what: str, *extras: str) -> None:
        wanted = ",".join(extras)
        super().__init__(f"{what} needs optional dependencies; run: pip install 'qafel[{wanted}]'")
        self.extras = extras


class FrameError(QafelError):
    """Bytes from a peer are not a valid message or payload."""


class FormatError(FrameError):
    """Bytes have a format version that this qafel does not read."""


class NormError(FrameError):
    """The norm of an update is above the limit."""


class BrokerError(QafelError):
    """The broker cannot be reached, or refused a request; ``code`` is its own error code, or 0.

    ``may_pass``: whether the same request may succeed later, without anybody doing anything.
    """

    def __init__(self, message: str, code: int = 0, *, may_pass: bool = True) -> None:
        super().__init__(message)
        self.code, self.may_pass = code, may_pass


class FencedError(BrokerError):
    """Another server has taken over: this one must not write any more."""


class WorkerError(QafelError):
    """Local training failed; what failed in a worker process has its traceback as a note."""


class DivergenceError(QafelError):
    """The training diverged."""


class Stopped(KeyboardInterrupt):
    """The user stopped a run; it can be resumed."""


class QafelWarning(UserWarning):
    """Something is allowed but probably not intended."""


def unknown(what: str, name: str, known: Iterable[str], where: str = "") -> ConfigError:
    """The error for a name that does not exist, with the nearest one that does, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return ConfigError(f"unknown {what} {name!r}{f' ({where})' if where else ''}; {hint}")
