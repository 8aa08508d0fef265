"""The folder of a client: what it needs to go on after it was killed.

client.bin     x̂ with its version
upload.bin     the update that waits for its receipt
session.bin    the name of this client's process, which a restarted process keeps
"""

import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from qafel import files, wire
from qafel.client import Client
from qafel.config import Job
from qafel.errors import ConfigError, FrameError, StateError
from qafel.federation.connection import Notice
from qafel.federation.entries import Upload
from qafel.federation.messages import SESSION_BYTES


class _Kept(wire.Sealed, frozen=True):
    """An update that waits for its receipt."""

    MAGIC: ClassVar[bytes] = b"QW"

    job: int
    upload: Upload


class ClientFolder:
    """The files of one client; without a folder nothing is kept."""

    def __init__(self, path: Path | None, notice: Notice) -> None:
        self._path, self._notice, self._warned = path, notice, False

    def _read(self, name: str) -> bytes | None:
        path = self._path / name if self._path else None
        return path.read_bytes() if path is not None and path.exists() else None

    def write(self, name: str, data: Callable[[], bytes]) -> None:
        """Write a file; a full disk is reported, and stops nothing."""
        if self._path is None:
            return
        try:
            files.write(self._path / name, data(), mode=0o600)
            self._warned = False
        except OSError as error:
            if not self._warned:
                self._notice("cannot write", detail=f"{self._path}: {error.strerror}")
            self._warned = True

    def core(self, job: Job, client: int) -> Client:
        """The client from the folder, or a new one."""
        data = self._read("client.bin")
        if data is None:
            return Client(job, client=client)
        try:
            core = Client.from_state(data)
        except StateError as error:
            self._notice("state refused", detail=str(error))
            return Client(job, client=client)
        if (core.job.id, core.client) != (job.id, client):
            raise ConfigError(
                f"{self._path} holds client {core.client} of job {core.job.id:016x}, "
                f"not client {client} of {job.id:016x}; choose another state folder"
            )
        return core

    def session(self) -> bytes:
        """The name of this client's process."""
        session = self._read("session.bin") or b""
        if len(session) != SESSION_BYTES:
            session = secrets.token_bytes(SESSION_BYTES)
            self.write("session.bin", lambda: session)
        return session

    def kept(self, job: Job) -> Upload | None:
        """The update of this job that waits for its receipt."""
        data = self._read("upload.bin")
        try:
            kept = _Kept.from_bytes(data) if data is not None else None
        except FrameError as error:
            self._notice("update refused", detail=f"{self._path}: {error}; its task is done again")
            return None
        return kept.upload if kept is not None and kept.job == job.id else None

    def keep(self, job: Job, upload: Upload | None) -> None:
        """Write the update that waits for its receipt to the folder; None: delete it."""
        if upload is not None:
            self.write("upload.bin", lambda: _Kept(job.id, upload).to_bytes())
        elif self._path is not None:
            with contextlib.suppress(OSError):
                (self._path / "upload.bin").unlink(missing_ok=True)
