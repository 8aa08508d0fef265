"""The way of an entry through the server: processed, journalled, published, answered, saved.

take      process one entry of the log
commit    write the journal, then publish the increments, then answer: nothing is sent that a crash could undo
save      a checkpoint; then the log below it may be purged
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable

from qafel.errors import BrokerError, FrameError, QafelError
from qafel.federation import objects
from qafel.federation.connection import Connection, Notice
from qafel.federation.entries import Upload
from qafel.federation.nats import Message
from qafel.federation.objects import Manifest, is_manifest
from qafel.federation.server.checkpoints import Checkpoints, Record
from qafel.federation.server.increments import Increments
from qafel.federation.server.leases import Leases
from qafel.federation.server.monitoring import Monitor
from qafel.federation.server.state import FederationState
from qafel.federation.subjects import is_decision, owner
from qafel.federation.waiting import Backoff, in_thread
from qafel.server import Accepted, Dropped, Stepped
from qafel.wire import Rejected

MIN_SNAPSHOT_SECONDS = 5.0
"""The shortest time between two snapshots that clients ask for."""
LARGE = 1 << 18
"""Models of this many coordinates are processed in a thread, so that the server stays responsive."""


class Processor:
    """Processes the entries of the log while one server leads; ``at(step)`` is a fault-injection hook."""

    def __init__(
        self,
        connection: Connection,
        state: FederationState,
        checkpoints: Checkpoints,
        increments: Increments,
        leases: Leases,
        monitor: Monitor,
        *,
        skips: set[int],
        notice: Notice,
        at: Callable[[str], None],
    ) -> None:
        self._connection, self.state, self._checkpoints = connection, state, checkpoints
        self._increments, self._leases, self._monitor = increments, leases, monitor
        self._skips, self._notice, self._at = skips, notice, at
        self._unpublished: deque[Stepped] = deque()
        self._pieces: dict[int, int] = {}
        """The last piece of each client's decided uploads; they are removed after the next checkpoint."""
        self._asked_at = 0.0
        """When a snapshot was last written because a client asked."""
        self._saved = -1
        """How many entries the newest checkpoint has."""
        self.saved_at, self.cost = time.monotonic(), 0.0
        """When the last checkpoint was saved, and how many seconds that took."""

    async def take(self, message: Message) -> None:
        """Process one entry."""
        state, journal = self.state, self._checkpoints.journal
        head = (state.processed + 1, message.sequence, message.subject, message.data)
        if message.sequence in self._skips:
            self._notice("skipped", sequence=message.sequence)
            state.skip(message.sequence, message.data)
            journal.unwritten.append(Record(*head, skipped=True))
        elif is_decision(message.subject):
            self._notice("decision", detail=state.decide(message.sequence, message.data))
            journal.unwritten.append(Record(*head))
        else:
            client = owner(message.subject)
            upload, frame = await self._open(client, message.data)
            if isinstance(frame, FrameError):
                record = Record(*head, error=str(frame))
            else:
                record = Record(*head, frame=frame)
            journal.unwritten.append(record)  # first: until it is written, nobody is answered
            await self._receive(message, client, upload, frame)

    async def _open(self, client: int | None, data: bytes) -> tuple[Upload | None, bytes | FrameError | None]:
        """An upload; and its frame if that is in pieces, or why it cannot be read."""
        try:
            upload = Upload.from_bytes(data)
        except FrameError:
            return None, None
        if client is None or not is_manifest(upload.frame) or self.state.refusal(client, upload):
            return upload, None
        subjects, limit = self._connection.subjects, self.state.server.frame_limit
        try:
            manifest = Manifest.from_bytes(upload.frame)
            frame = await objects.get(
                self._connection, subjects.pieces, subjects.piece(client), manifest, limit, leader=True
            )
        except FrameError as error:
            return upload, error
        self._pieces[client] = manifest.last
        return upload, frame

    async def _receive(
        self, message: Message, client: int | None, upload: Upload | None, frame: bytes | FrameError | None
    ) -> None:
        state, leases = self.state, self._leases
        before = state.last(client).task if client is not None else -1
        arguments = (message.sequence, message.data, client, frame, upload)
        if state.job.size >= LARGE:
            events = await in_thread(state.take, *arguments)
        else:
            events = state.take(*arguments)
        if client is not None:
            leases.entries[client] = leases.entries.get(client, 0) + 1
            if upload is not None and state.last(client).task > before:
                counted = bool(events) and isinstance(events[0], Accepted)
                leases.decided(client, upload.task, time.monotonic(), counted=counted, more=upload.more)
            elif upload is not None and isinstance(events[0], Rejected) and events[0].reason == "no_lease":
                leases.refused(client, upload.token)
        for event in events:
            self._monitor.event(event, client, self._notice)
            if isinstance(event, Stepped):
                self._unpublished.append(event)
            if isinstance(event, Stepped | Dropped):
                leases.stepped()

    async def commit(self) -> None:
        """Write the journal, then publish the increments, then answer."""
        journal = self._checkpoints.journal
        if journal.unwritten:
            self._at("before journal")
            await patiently(journal.write, self._notice)
            self._at("after journal")
        await self._publish()
        await self.answer()

    async def _publish(self) -> None:
        """Publish the increments of the steps so far.

        Without broadcast, a snapshot that is due precedes its increment: whoever reads the stream finds a
        snapshot that is no more than a quarter of a model behind.
        """
        while self._unpublished:
            self._at("before publish")
            steps = list(self._unpublished)
            if self.state.plan.downlink != "broadcast":
                steps, size = steps[:1], len(steps[0].frame)
                if self._increments.due(self.state.server, size):
                    await self.snapshot(size=size)
            await self._increments.publish({step.version: step.frame for step in steps})
            for _ in steps:
                self._unpublished.popleft()
            self._leases.version = self._increments.last
            self._at("after publish")

    async def snapshot(self, *, size: int | None = None, asked: bool = False) -> None:
        """Write a snapshot if one is due, or asked for."""
        if await self._increments.snapshot(self.state.server, size=size, asked=asked):
            self._monitor.metrics.add("snapshots_total")

    async def answer(self) -> None:
        """Send receipts and leases, unless there are entries that are not in the journal."""
        leases, subjects = self._leases, self._connection.subjects
        if self._checkpoints.journal.unwritten:
            return
        leases.grant(time.monotonic())
        # taken before anything is awaited: requests and other answers come in between
        resends, leases.resends = leases.resends, {}
        outbox, leases.outbox = leases.outbox, []
        if self.state.server.frame_limit > self._connection.max_payload:
            for client in resends:
                await self._connection.purge(subjects.pieces, subject=subjects.piece(client))
        for client, answer in outbox:
            await self._connection.send(subjects.answer(client), answer.to_bytes())

    async def save(self, *, again: bool = False) -> None:
        """Save a checkpoint and remove what it makes superfluous; ``again``: even if there is nothing new."""
        state, leases, subjects = self.state, self._leases, self._connection.subjects
        began = time.monotonic()
        asked = leases.snapshot_wanted or self._increments.damaged
        asked = asked and began - self._asked_at > MIN_SNAPSHOT_SECONDS
        new = state.processed != self._saved or again or leases.purge_wanted
        if new and state.server.diverged is None:  # the checkpoint before, and the journal, lead there again
            self._at("before checkpoint")
            await patiently(lambda: self._checkpoints.save(state), self._notice)
            self._saved = state.processed
            self._at("after checkpoint")
            self._at("before purge")
            await self._connection.purge(subjects.log, below=max(1, state.sequence))
            leases.entries.clear()
            leases.purge_wanted = False
            for client, piece in self._pieces.items():
                await self._connection.purge(subjects.pieces, below=piece + 1, subject=subjects.piece(client))
            self._pieces.clear()
            self._at("after purge")
            self.cost = time.monotonic() - began
            self._monitor.metrics.add("checkpoints_total")
            self._monitor.metrics.add("checkpoint_seconds_total", self.cost)
            self._monitor.saved_at = time.monotonic()
            await self._monitor.store(self.state, self._leases)
        await self.snapshot(asked=asked)
        if asked:
            leases.snapshot_wanted, self._asked_at = False, began
        self.saved_at = time.monotonic()


async def patiently(write: Callable[[], Awaitable[None] | None], notice: Notice) -> None:
    """Write to the server's folder; while its disk is full, wait and try again."""
    backoff = Backoff(0.1, 5.0)
    while True:
        try:
            result = write()
            if result is not None:
                await result
            return
        except (OSError, QafelError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if isinstance(error, BrokerError) or not isinstance(cause, OSError):
                raise
            notice("cannot write", detail=f"{cause.strerror} in the server's folder; trying again")
        await backoff.pause()
