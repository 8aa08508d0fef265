"""Checkpoints of the server: in the broker, where another server reads them, and in the server's folder.

A new checkpoint is stored, acknowledged and read back before the pointer moves to it. The folder also has a
journal: every entry that was processed since its checkpoint. An entry is written there before its results
(increments, answers) are sent, so everything that was sent can be restored from the folder alone.

    checkpoint.bin    the state
    journal.bin       records, each after its length (4 bytes)
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from typing import ClassVar

from qafel import wire
from qafel.config import Job
from qafel.errors import FormatError, FrameError, QafelError, StateError
from qafel.federation import objects
from qafel.federation.connection import Connection, Notice
from qafel.federation.objects import Manifest
from qafel.federation.plan import Plan
from qafel.federation.server.increments import Increments
from qafel.federation.server.leader import FencedKey
from qafel.federation.server.state import FederationState
from qafel.federation.subjects import is_decision, owner
from qafel.federation.waiting import in_thread
from qafel.runs.folder import RunFolder
from qafel.vectors import Vector

MAX_CHECKPOINT = 1 << 34


class Record(wire.Sealed, frozen=True):
    """A processed entry; ``processed`` is its number in the order of processing, from 1 on."""

    MAGIC: ClassVar[bytes] = b"QJ"

    processed: int
    sequence: int
    subject: str
    """Empty: the log was rewound to ``sequence``."""
    data: bytes
    frame: bytes | None = None
    """The frame of an upload in pieces."""
    error: str = ""
    """Why the frame of an upload in pieces could not be read."""
    skipped: bool = False


class Journal:
    """The entries since the checkpoint in the folder."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.path / "journal.bin"
        self._file: int | None = None
        self.unwritten: list[Record] = []
        """Records that are not in the file yet; their results must not be sent before ``write``."""

    def write(self) -> None:
        """Write the records that are not in the file yet; an OSError leaves the file as it was."""
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        end = os.fstat(self._file).st_size
        parts = []
        for record in self.unwritten:
            body = record.to_bytes()
            parts += [len(body).to_bytes(4, "little"), body]
        data = memoryview(b"".join(parts))
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError:
            os.ftruncate(self._file, end)
            raise
        self.unwritten = []

    def read(self) -> Iterator[Record]:
        """The records, up to the first that is damaged: it was being written when the server died.

        FormatError if they are of another version.
        """
        data = self._path.read_bytes() if self._path.exists() else b""
        place = 0
        while place < len(data):
            start = place + 4
            place = start + int.from_bytes(data[place:start], "little")
            try:
                yield Record.from_bytes(data[start:place])
            except FormatError:
                raise
            except FrameError:
                return

    def clear(self) -> None:
        """Forget the records: they are in the checkpoint."""
        self.close()
        self.unwritten = []
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def replay(state: FederationState, record: Record) -> None:
    """Process an entry of the journal again."""
    if not record.subject:
        state.rewind(record.sequence)
    elif record.skipped:
        state.skip(record.sequence, record.data)
    elif is_decision(record.subject):
        state.decide(record.sequence, record.data)
    else:
        frame = FrameError(record.error) if record.error else record.frame
        state.take(record.sequence, record.data, owner(record.subject), frame)


class Pointer(wire.Sealed, frozen=True):
    """The newest checkpoint."""

    MAGIC: ClassVar[bytes] = b"QK"
    FORMAT: ClassVar[int] = 2

    newest: Manifest
    processed: int


class Checkpoints:
    """The checkpoints of one federation."""

    def __init__(self, connection: Connection, folder: RunFolder) -> None:
        self._connection, self._folder = connection, folder
        self.key = FencedKey(connection, connection.subjects.private("checkpoint"))
        self.journal = Journal(folder)
        self._pointer: Pointer | None = None

    async def lead(self, term: int) -> None:
        """Take over the pointer: a former leader can no longer write checkpoints."""
        self.key.term = term
        self._read(await self.key.take_over())

    def _read(self, data: bytes | None) -> None:
        self._pointer = None
        try:
            self._pointer = Pointer.from_bytes(data) if data else None
        except FormatError as error:
            raise StateError(f"the broker holds checkpoints of another version: {error}") from error
        except FrameError:
            pass  # damaged: the folder has a copy

    async def broker_state(self, plan: Plan, job: Job) -> FederationState | None:
        """The state in the broker's checkpoint; None if there is none that can be read."""
        subjects = self._connection.subjects
        if not self.key.term:
            self._read(await self.key.read())
        if self._pointer is None:
            return None
        manifest = self._pointer.newest
        data = await objects.get(
            self._connection, subjects.saved, subjects.checkpoint, manifest, MAX_CHECKPOINT, leader=True
        )
        return await asyncio.to_thread(FederationState.from_state, plan, job, data)

    def folder_state(self, plan: Plan, job: Job) -> FederationState | None:
        """The state in the folder: its checkpoint and the journal; None if there is none."""
        data = self._folder.checkpoint()
        if data is None:
            return None
        state = FederationState.from_state(plan, job, data)
        for record in self.journal.read():
            if record.processed == state.processed + 1:
                replay(state, record)
        return state

    async def states(self, plan: Plan, job: Job, notice: Callable[..., None]) -> list[FederationState]:
        """The states that can be read: the broker's and the folder's."""
        states = []
        try:
            states.append(await self.broker_state(plan, job))
        except (StateError, FrameError) as error:
            notice("checkpoint refused", detail=str(error))
        try:
            states.append(await asyncio.to_thread(self.folder_state, plan, job))
        except QafelError as error:
            notice("checkpoint refused", detail=str(error))
        return [state for state in states if state is not None]

    async def save(self, state: FederationState) -> None:
        """Write a checkpoint; it is durable, in the broker and in the folder, when this returns."""
        data, subjects = await in_thread(state.state), self._connection.subjects
        manifest = await objects.put_verified(self._connection, subjects.saved, subjects.checkpoint, data)
        await self.key.write(Pointer(manifest, state.processed).to_bytes())
        await in_thread(self._folder.save, data)
        self.journal.clear()
        await self._connection.purge(subjects.saved, below=manifest.first)


async def load_state(
    checkpoints: Checkpoints,
    increments: Increments,
    plan: Plan,
    job: Job,
    x: Vector,
    key: bytes | None,
    notice: Notice,
    *,
    standby: bool,
) -> FederationState:
    """The newest state that there is, or a new one if there was never any; StateError if it is lost."""
    states = await checkpoints.states(plan, job, notice)
    agree = [state for state in states if await increments.agrees(state.server)]
    if len(agree) < len(states):
        notice("checkpoint refused", detail="it contradicts the increments")
    if agree:
        return max(agree, key=lambda state: state.processed)
    if standby or states or await increments.exist():
        raise StateError(
            f"there is no usable checkpoint of the federation {plan.name!r}; start the server that has its "
            "state folder, or start anew under another name"
        )
    return FederationState(plan, job, x, key)
