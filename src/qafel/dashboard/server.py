"""Serve the page until Ctrl-C."""

import contextlib
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qafel.dashboard.federation import Federation
from qafel.dashboard.runs import Runs
from qafel.errors import ConfigError
from qafel.extras import require
from qafel.machine import is_loopback

HOST, PORT = "127.0.0.1", 8765
HTTP = 80
"""The port that browsers leave out of the host."""


def serve(
    folder: str | Path = "runs",
    *,
    host: str = HOST,
    port: int = PORT,
    federation: Federation | None = None,
    ready: Callable[[str], Any] = lambda _: None,
) -> None:
    """Serve the page of the runs below ``folder``; ``ready`` is called with its address.

    Port 0 is any free port. Where the host is not a loopback address, the address has a token.
    ``federation`` is shown above the runs.
    """
    require("the dashboard", "dashboard")
    import uvicorn

    from qafel.dashboard.app import create

    runs = Runs(Path(folder))
    token = None if is_loopback(host) else secrets.token_urlsafe(18)
    listening = _listen(host, port)
    port = listening.getsockname()[1]
    app = create(runs, federation, hosts(host, port), token)
    quiet: Any = {"log_level": "warning", "access_log": False, "server_header": False}
    server = uvicorn.Server(uvicorn.Config(app, ws="none", timeout_graceful_shutdown=1, **quiet))
    named = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):  # noqa: S104
        named = socket.gethostname()
    ready(f"http://{named}:{port}/" + (f"?token={token}" if token else ""))
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def hosts(host: str, port: int) -> frozenset[str]:
    """What a request may name as its host."""
    names = {host, "127.0.0.1", "localhost", "::1"}
    if not is_loopback(host):
        names |= {socket.gethostname(), socket.getfqdn(), *_addresses()}
    named = {f"[{name}]" if ":" in name else name.lower() for name in names}
    return frozenset(f"{name}:{port}" for name in named) | (named if port == HTTP else frozenset())


def _addresses() -> set[str]:
    """The addresses of this machine."""
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        return set()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(64)
    except OSError as error:
        raise ConfigError(
            f"cannot serve at {host}:{port} ({error.strerror or error}); choose another port, or 0"
        ) from error
    return listening
