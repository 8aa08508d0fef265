"""Scenarios about who leads: a leader that sleeps, and one that has much to do."""

import os
import signal
from pathlib import Path
from typing import Any

from chaos_parts import BUFFER, FENCED, PATIENCE, Crew, cheap, plan, summary_of
from qafel.federation import Broker


def paused(folder: Path) -> dict[str, Any]:
    """The leader sleeps, the standby takes over, the sleeper wakes up: it cannot write."""
    with Broker(folder / "broker") as broker:
        crew = Crew(folder, plan(lease_seconds=1.0), broker.url)
        crew.progress(5)
        crew.run("standby", standby=True)
        first, before = crew.processes.pop("server"), crew.version
        os.kill(first.pid, signal.SIGSTOP)
        crew.leader = "standby"
        crew.until(lambda: crew.version >= before + 5)
        taken = crew.version
        os.kill(first.pid, signal.SIGCONT)
        first.join(PATIENCE)
        woken = first.exitcode
        checks = crew.finish()
    facts = {"version when it slept": before, "version when it woke": taken, "the sleeper's exit code": woken}
    held = checks["held"] and woken == FENCED and taken >= before + 5
    return {"faults": {"SIGSTOP": 1}, **facts, **checks, "held": held}


def large(folder: Path) -> dict[str, Any]:
    """11 million coordinates, a leader and a standby: the leader is never fenced while it works."""
    size = 11_000_000
    chosen = plan(40, checkpoint_seconds=1.0, lease_seconds=300.0)
    with Broker(folder / "broker") as broker:
        crew = Crew(folder, chosen, broker.url, clients=4, size=size, trainer=cheap)
        crew.until(lambda: crew.noted("server", "ready") > 0)
        crew.run("standby", standby=True)

        def taken() -> bool:
            return crew.noted("standby", "leads") > 0 and not crew.noted("server", "done")

        took_over = crew.until(taken, 4 * PATIENCE)
        crew.kill("standby")
        del crew.processes["standby"]
        checks = crew.finish()
    fenced = crew.noted("server", "fenced")
    version = summary_of(crew.path("server")).get("version", 0)
    return {
        "faults": {},
        "coordinates": size,
        "version": version,
        "fenced": fenced,
        "the standby took over": took_over,
        **checks,
        "held": checks["held"] and not fenced and not took_over and version == chosen.uploads // BUFFER,
    }
