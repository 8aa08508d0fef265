"""How a server finds its state, and what operators decided for it while it was down."""

import contextlib

from qafel.config import Job
from qafel.errors import FrameError, StateError
from qafel.federation.checkpoints import Checkpoints
from qafel.federation.entries import Decision, Skip
from qafel.federation.increments import Increments
from qafel.federation.monitoring import Notice
from qafel.federation.nats import Connection
from qafel.federation.plan import Plan
from qafel.federation.state import FederationState
from qafel.federation.streams import open_keys
from qafel.runs.folder import RunFolder
from qafel.vectors import Vector


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
        return max(agree, key=lambda state: state.folded)
    if standby or states or await increments.exist():
        raise StateError(
            f"there is no usable checkpoint of the federation {plan.name!r}; start the server that has its "
            "state folder, or start anew under another name"
        )
    return FederationState(plan, job, x, key)


async def remove_finished(connection: Connection, folder: RunFolder, replicas: int) -> None:
    """Make room for a new federation under the name of one that has ended."""
    subjects = connection.subjects
    ended = await connection.newest(subjects.keys, subjects.public("done"))
    if ended is not None and folder.checkpoint() is None:
        for stream in subjects.streams:
            await connection.delete(stream)
        await open_keys(connection, replicas)


async def find_skips(connection: Connection, sequence: int) -> set[int]:
    """The entries after ``sequence`` that operators want skipped: their decisions come later in the log."""
    subjects, skips = connection.subjects, set[int]()
    while True:
        request = {"seq": sequence + 1, "next_by_subj": subjects.entry("operator")}
        message = await connection.from_leader(subjects.log, request)
        if message is None:
            return skips
        sequence = message.sequence
        with contextlib.suppress(FrameError):
            decision = Decision.from_bytes(message.data).decision
            if isinstance(decision, Skip):
                skips.add(decision.sequence)
