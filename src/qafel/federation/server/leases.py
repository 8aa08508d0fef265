"""Leases: which clients train now.

A lease is a token for one task of one client. The rules:

- A client gets its next lease when its last task was decided, so it has at most one task in flight.
- There are at most ``concurrency`` leases at a time. A lease ends when its task is decided, when its client
  asks again or leaves, or when it has expired *and* the log was read to its end after that.
- A free place goes to the client that has waited longest, of those without an update in the current buffer if
  there are any, and last to those that gave up a lease since the buffer was empty; ``rest_seconds`` lie
  between two leases of one client.

So a place is free, or a task is in flight that will be decided or expire: the training goes on as long as any
client asks. Leases decide who is asked to train, never which update is accepted; that follows from the log.
"""

from typing import NamedTuple

import msgspec

from qafel.federation.entries import TOKEN_BYTES, token
from qafel.federation.messages import WAIT_SECONDS, Answer, Ask, Lease
from qafel.federation.server.state import FederationState

PING_SECONDS = 3.0
"""If a client's process does not answer for this many seconds, another process may run as this client."""


class _Held(NamedTuple):
    task: int
    until: float


class Leases:
    """Answers clients. It has no clock and no connection: ``outbox`` has (client, answer) to be sent."""

    def __init__(self, state: FederationState, version: int, max_entries: int) -> None:
        self._state, self._max_entries = state, max_entries
        self.version = version
        """The newest version in the broker."""
        self.outbox: list[tuple[int, Answer]] = []
        self.snapshot_wanted = False
        """Whether a client could not follow the increments."""
        self.purge_wanted = False
        """Whether a client waits for room in the log."""
        self.entries: dict[int, int] = {}
        """Entries of each client in the log since the last purge."""
        self.ended: str | None = None
        self.seen: dict[int, float] = {}
        """When each client was last heard."""
        self.granted: dict[int, int] = {}
        """The version of each client's newest lease."""
        self.resends: dict[int, int] = {}
        """Clients that are to send their upload again, and its number."""
        self._asked: dict[int, tuple[int, float]] = {}
        """The upload that each client asked about, and when it did so first."""
        self._read_at = 0.0
        """When the log was last read to its end."""
        self._held: dict[int, _Held] = {}
        self._waiting: dict[int, None] = {}
        self._resting: dict[int, float] = {}
        self._in_buffer: set[int] = set()
        self._gave_up: set[int] = set()
        """Clients whose lease ended without an update since the buffer was empty."""
        self._receipts: dict[int, None] = {}
        self._sessions: dict[int, bytes] = {}
        self._contests: dict[int, tuple[bytes, float]] = {}
        self._evaluated: dict[int, int] = {}
        self._unknown: dict[int, bytes] = {}

    @property
    def in_flight(self) -> int:
        """The number of tasks that were leased and are not decided."""
        return len(self._held)

    def reopen(self, version: int) -> None:
        """Go on after a reconnection: leases that are not decided still count."""
        self.version, self.outbox = version, []
        for client, held in list(self._held.items()):
            if held.task <= self._state.last(client).task:
                del self._held[client]

    def asked(self, client: int, ask: Ask, now: float) -> None:
        """Take a request; ``grant`` answers it."""
        self.seen[client] = now
        if not self._is_current(client, ask.session, now) or ask.busy:
            return
        if ask.resyncs:
            self.snapshot_wanted = True
        self._receipts[client] = None
        if ask.task > self._state.last(client).task:
            self.purge_wanted = self.purge_wanted or not ask.sequence  # it may need room for its upload
            if self._is_lost(client, ask.sequence, now):
                self.resends[client] = ask.sequence
            return
        self._give_up(client)  # it asks, so it does not train: it restarted, or missed the answer
        if ask.wants:
            self._waiting.setdefault(client)
        else:
            self._waiting.pop(client, None)

    def _is_lost(self, client: int, sequence: int, now: float) -> bool:
        """Whether an undecided upload is missing from the log, so that the client must send it again.

        It is missing if the log was processed beyond it, or was read to its end after the client first asked.
        """
        if self._asked.get(client, (-1, 0.0))[0] != sequence:
            self._asked[client] = sequence, now
        return 0 < sequence <= self._state.sequence or self._read_at > self._asked[client][1]

    def _is_current(self, client: int, session: bytes, now: float) -> bool:
        """Whether this process runs the client; if another one may, ask that one for a sign of life first."""
        current = self._sessions.setdefault(client, session)
        contest = self._contests.get(client)
        if current == session:
            if contest is not None:
                del self._contests[client]
                self._refuse(client, contest[0])
            return True
        if contest is None:
            self._contests[client] = session, now + PING_SECONDS
            self.outbox.append((client, self._answer(client, wait=0.0)))
        elif contest[0] != session:
            self._refuse(client, session)
        return False

    def _refuse(self, client: int, session: bytes) -> None:
        refused = f"another process runs as client {client}; stop it, or use another client id"
        self.outbox.append(
            (client, msgspec.structs.replace(self._answer(client), session=session, refused=refused))
        )

    def decided(self, client: int, task: int, now: float, *, counted: bool, more: bool) -> None:
        """An upload was decided: its client may get another lease."""
        self.seen[client] = now
        self._asked.pop(client, None)
        held = self._held.get(client)
        if held is not None and held.task <= task:
            del self._held[client]
        if counted:
            self._in_buffer.add(client)
        if self._state.plan.rest_seconds:
            self._resting[client] = now + self._state.plan.rest_seconds
        if more:
            self._waiting.setdefault(client)
        self._receipts[client] = None

    def refused(self, client: int, token: bytes) -> None:
        """An upload carried a token of no lease: its client is told when it asks."""
        self._unknown[client] = token[:TOKEN_BYTES]

    def stepped(self) -> None:
        """The buffer is empty again."""
        self._in_buffer.clear()
        self._gave_up.clear()

    def grant(self, now: float) -> None:
        """Give free places to clients that wait, and answer everybody who has asked or reported."""
        for client, (session, until) in list(self._contests.items()):
            if until <= now:
                del self._contests[client]
                self._refuse(client, self._sessions[client])
                self._sessions[client] = session
                self._give_up(client)
                self._waiting.setdefault(client)
                self._receipts[client] = None
        free = self._state.plan.concurrency - len(self._held)
        if free > 0 and self._waiting and self.ended is None and self._state.tracker.reason is None:
            self._grant(free, now)
        for client in self._receipts:
            self.outbox.append((client, self._answer(client)))
        self._receipts.clear()

    def _grant(self, free: int, now: float) -> None:
        first, second, third = list[int](), list[int](), list[int]()
        for client in self._waiting:
            if len(first) >= free:
                break
            if self._resting.get(client, now) > now:
                continue
            if self.entries.get(client, 0) >= self._max_entries:
                self.purge_wanted = True
                continue
            others = second if client in self._in_buffer else first
            (third if client in self._gave_up else others).append(client)
        for client in (first + second + third)[:free]:
            self._lease(client, now)

    def _lease(self, client: int, now: float) -> None:
        state = self._state
        task = state.last(client).task + 1
        points = len(state.tracker.points)
        evaluate = state.plan.evaluate_on == "clients" and self._evaluated.get(client, -1) != points
        self._evaluated[client] = points
        del self._waiting[client]
        self._resting.pop(client, None)
        self._held[client] = _Held(task, now + state.plan.lease_seconds)
        self.granted[client] = self.version
        lease = Lease(task, self.version, token(state.key, client, task, self.version), evaluate)
        self.outbox.append((client, self._answer(client, lease=lease)))
        self._receipts.pop(client, None)

    def _answer(self, client: int, lease: Lease | None = None, wait: float | None = None) -> Answer:
        last = self._state.last(client)
        if wait is None:
            wait = min(60.0, max(WAIT_SECONDS, len(self._waiting) / 100))
        return Answer(
            session=self._sessions.get(client, b""),
            task=last.task,
            reason=last.reason,
            frame=last.frame,
            again=self.resends.get(client, -1),
            lease=lease,
            wait=wait,
            ended=self.ended,
            unknown=self._unknown.get(client, b""),
        )

    def expire(self, read_at: float) -> None:
        """Drop leases that had expired when the log was last read to its end."""
        self._read_at = read_at
        for client in [client for client, held in self._held.items() if held.until <= read_at]:
            self._give_up(client)

    def _give_up(self, client: int) -> None:
        """End the lease of a client, if it has one, without an update."""
        if self._held.pop(client, None) is not None:
            self._gave_up.add(client)

    def end(self, reason: str) -> None:
        """Tell all clients that the training has ended."""
        self.ended = reason
        for client in self._sessions:
            self._receipts[client] = None
