"""Every error qafel raises on purpose, as one tree.

    QafelError
    ├── UsageError          you misused it: fix the call (also a ValueError)
    │   ├── SpecError       a quantizer spec that cannot be read; carries the nearest valid one
    │   ├── VectorError     a vector that cannot be coded: wrong type or shape, NaN, infinity
    │   ├── ConfigError     a job or option outside its range
    │   ├── StateError      saved state that is damaged or belongs to something else
    │   ├── OutOfSyncError  a client asked to train before it has a trustworthy hidden state
    │   └── MissingExtraError  an optional dependency is not installed; names the pip install
    ├── FrameError          the other side misbehaved: bytes that are not a valid message or payload
    ├── BrokerError         the broker cannot be reached, or refuses
    │   └── FencedError     another server has taken over
    └── DivergenceError     the training left the rails; the message names the fix

``QafelWarning`` is the category of every warning.
"""


class QafelError(Exception):
    """Base of every error raised on purpose."""


class UsageError(QafelError, ValueError):
    """You misused it."""


class SpecError(UsageError):
    """A quantizer spec that cannot be read."""

    def __init__(self, message: str, nearest: str) -> None:
        super().__init__(f"{message}; nearest valid spec: {nearest!r}")
        self.nearest = nearest


class VectorError(UsageError):
    """A vector that cannot be coded."""


class ConfigError(UsageError):
    """A job or option outside its range."""


class StateError(UsageError):
    """Saved state that is damaged or belongs to something else."""


class OutOfSyncError(UsageError):
    """A client asked to train before it has a trustworthy hidden state."""


class FrameError(QafelError):
    """The other side misbehaved: bytes that are not a valid message or payload."""


class BrokerError(QafelError):
    """The broker cannot be reached, or refuses; ``code`` is its own number for why, or 0."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class FencedError(BrokerError):
    """Another server has taken over: this one must not write any more."""


class DivergenceError(QafelError):
    """The training left the rails."""


class MissingExtraError(UsageError):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional dependency; run: pip install 'qafel[{extra}]'")


class QafelWarning(UserWarning):
    """Something is allowed but probably not what you want."""
