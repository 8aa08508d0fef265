"""The process of a broker, which ends with the process that started it."""

import os
import socket
import ssl
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

LAUNCH = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the process that started the broker has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""What becomes the broker: on Linux, the kernel sends it SIGTERM when its parent ends (PR_SET_PDEATHSIG = 1).

The child asks for this itself: code between fork and exec could hang where the parent has threads."""


_threads: dict[int, ThreadPoolExecutor] = {}


def spawn(command: list[str], out: int) -> "subprocess.Popen[bytes]":
    """Start the broker, so that it ends with this process.

    The kernel's notice comes when the *thread* ends that started the child, so one thread, which lasts as
    long as the process, starts them all.
    """

    def start() -> "subprocess.Popen[bytes]":
        own = [sys.executable, "-I", "-S", "-c", LAUNCH, str(os.getpid())] if sys.executable else []
        return subprocess.Popen(  # noqa: S603
            [*own, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )

    thread = _threads.setdefault(os.getpid(), ThreadPoolExecutor(1, "qafel-broker"))
    return thread.submit(start).result()


def answers(host: str, port: int, secure: bool) -> bool:
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
