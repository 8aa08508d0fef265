"""Scenarios with a bad network, and with a client that means harm."""

import asyncio
import random
import secrets
import time
from pathlib import Path
from typing import Any

import numpy as np

from chaos_history import History, events
from chaos_parts import SIZE, Crew, fork, plan, spawn
from proxy import MODES, ORDER, SECONDS, Proxy
from qafel import wire
from qafel.errors import BrokerError, FrameError
from qafel.federation import Broker, Subjects
from qafel.federation.broker import free_port
from qafel.federation.connection import Connection
from qafel.federation.entries import TOKEN_BYTES, Upload
from qafel.federation.messages import Answer, Ask, Lease
from qafel.federation.objects import Manifest

STRANGER = 77
HUGE_TASK = (1 << 40) - 1


def _proxy(host: str, port: int, listen: int, mode: Any, counts: Any) -> None:
    asyncio.run(Proxy(host, port, mode, counts).serve(listen))


def network(folder: Path, seconds: float) -> dict[str, Any]:
    """Faults in turn for so long, and until each has happened; then the network is fine again."""
    mode, counts = fork.Value("q", 0), fork.Array("q", len(MODES))
    with Broker(folder / "broker") as broker:
        port = free_port()
        proxy = spawn(_proxy, broker.host, broker.port, port, mode, counts)
        crew = Crew(folder, plan(), f"nats://{broker.host}:{port}", watch=broker.url)
        crew.until(lambda: crew.version > 0)
        end, k = time.monotonic() + seconds, 0
        while crew.serving and (time.monotonic() < end or not all(counts[1:])):
            fault = ORDER[k % len(ORDER)]
            mode.value = MODES.index(fault)
            crew.pause(SECONDS[fault], SECONDS[fault])
            k += 1
        during, mode.value = crew.version, 0
        checks = crew.finish()
        proxy.kill()
    faults = {name: counts[k] for k, name in enumerate(MODES) if name != "clean"}
    held = checks["held"] and during > 0 and all(faults.values())
    return {"faults": faults, "version when the faults ended": during, **checks, "held": held}


class _Stranger:
    """A client that asks for leases as others do, and then sends whatever does harm."""

    def __init__(self, connection: Connection, job: Any, note: History) -> None:
        self._connection, self._job, self._note = connection, job, note
        self._session = secrets.token_bytes(16)
        self._lease: Lease | None = None
        self._kept: list[bytes] = []

    async def hear(self, message: Any) -> None:
        try:
            answer = Answer.from_bytes(message.data)
        except FrameError:
            return
        if answer.lease is not None:
            self._lease = answer.lease

    async def ask(self, task: int = -1) -> None:
        ask = Ask(self._session, task, random.choice((0, 1 << 40)), resyncs=1 << 20)
        await self._connection.send(self._connection.subjects.ask(STRANGER), ask.to_bytes())

    def frame(self, task: int, scale: float, client: int = STRANGER) -> bytes:
        delta = np.full(SIZE, scale, np.float32)
        payload = self._job.quantizers()[0].encode(delta, 1)
        return wire.encode(wire.Update(self._job.id, client, task, 1 << 20, payload))

    def attack(self, kind: str) -> bytes:
        lease = self._lease or Lease(0, 0, bytes(TOKEN_BYTES))
        values = {"task": lease.task, "version": lease.version, "token": lease.token}
        if kind == "garbage":
            return secrets.token_bytes(2000)
        if kind == "huge norm":
            return Upload(**values, frame=self.frame(lease.task, 1e30)).to_bytes()  # type: ignore[arg-type]
        if kind == "other client":
            return Upload(**values, frame=self.frame(lease.task, 0.01, 0)).to_bytes()  # type: ignore[arg-type]
        if kind == "wrong token":
            wrong = {**values, "token": secrets.token_bytes(TOKEN_BYTES)}
            return Upload(**wrong, frame=self.frame(lease.task, 0.01)).to_bytes()  # type: ignore[arg-type]
        if kind == "no pieces":
            manifest = Manifest("0" * 32, 5000, list(range(1, 200))).to_bytes()
            return Upload(**values, frame=manifest).to_bytes()  # type: ignore[arg-type]
        if kind == "huge task":
            return Upload(
                HUGE_TASK, 0, secrets.token_bytes(TOKEN_BYTES), self.frame(HUGE_TASK, 0.01)
            ).to_bytes()
        return random.choice(self._kept) if self._kept else b""  # replay

    async def work(self) -> None:
        """Attack as fast as the broker lets it, until this process is killed."""
        subjects, k = self._connection.subjects, 0
        await self._connection.subscribe(subjects.answer(STRANGER), self.hear)
        await self.ask()
        while True:
            kind = ATTACKS[k % len(ATTACKS)]
            data = self.attack(kind)
            self._kept = [*self._kept[-20:], data]
            try:
                await self._connection.publish(subjects.upload(STRANGER), data)
                self._note("sent", kind=kind)
            except BrokerError:
                self._note("refused", kind=kind)
                await asyncio.sleep(0.01)
            if k % 5 == 0:
                await self.ask(random.choice((-1, HUGE_TASK)))
            k += 1


ATTACKS = ("garbage", "huge norm", "replay", "wrong token", "no pieces", "huge task", "other client")


def _run_stranger(url: str, job: Any, history: Path) -> None:
    async def attack() -> None:
        connection = await Connection.open(url, Subjects("chaos"), STRANGER, patience=60)
        await _Stranger(connection, job, History(history)).work()

    asyncio.run(attack())


def hostile(folder: Path, messages: int = 5000) -> dict[str, Any]:
    """A client floods, lies and replays beside honest ones: those all go on."""
    chosen = plan()
    with Broker(folder / "broker") as broker:
        crew = Crew(folder, chosen, broker.url)
        crew.progress(1)
        stranger = spawn(_run_stranger, broker.url, chosen.job(SIZE), folder / "stranger")
        crew.until(lambda: len(events(folder / "stranger", "sent")) > messages and crew.progress(10))
        alive = stranger.is_alive()
        stranger.kill()
        checks = crew.finish(strangers=[STRANGER])
    sent = [event["kind"] for event in events(folder / "stranger", "sent")]
    attacks = {kind: sent.count(kind) for kind in ATTACKS}
    refused = len(events(folder / "stranger", "refused"))
    shares = [len(events(crew.history(k), "counted")) for k in crew.clients]
    held = checks["held"] and alive and min(shares) > 0 and all(attacks.values())
    facts = {"messages": attacks, "refused by the broker": refused, "honest updates by client": shares}
    return {"faults": dict.fromkeys(ATTACKS, 1), **facts, **checks, "held": held}
