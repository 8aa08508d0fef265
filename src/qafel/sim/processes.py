"""Tasks in processes of their own, several at a time."""

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from qafel.coding.threads import cores
from qafel.errors import QafelError, QafelWarning, Stopped
from qafel.sim.simulation import Simulation

STOPPED = "stopped; repeat the command or call to continue"


class State(msgspec.Struct, frozen=True):
    """How far a task is."""

    name: str
    share: float
    """The share of its work that is done."""
    text: str = ""


Tell = Callable[[str, float], None]
"""Called with what is being done, and the share of all work that is done."""
Task = Callable[[Callable[[State], None]], None]


def run_to_the_end(simulation: Simulation) -> None:
    """Run; raise Stopped if the run was interrupted."""
    simulation.run()
    if simulation.stopped:
        raise Stopped(STOPPED)


def in_parallel(tasks: Mapping[str, Task], jobs: int | None, tell: Callable[[State], None]) -> None:
    """Call each task in a process of its own, ``jobs`` at a time (default: one per core).

    With one job, tasks are called in this process. A task that fails does not stop the others; QafelError
    says at the end what went wrong.
    """
    jobs = cores() if jobs is None else jobs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QafelWarning)  # one sentence for each of many runs helps nobody
        apart = jobs > 1 and hasattr(os, "fork")
        failed = _fork(tasks, jobs, tell) if apart else _in_turn(tasks, tell)
    if failed:
        first, *others = failed
        more = f" (failed, too: {', '.join(others)})" if others else ""
        raise QafelError(f"{first}: {failed[first]}{more}")


def _in_turn(tasks: Mapping[str, Task], tell: Callable[[State], None]) -> dict[str, str]:
    failed = {}
    for name, task in tasks.items():
        try:
            task(tell)
        except QafelError as error:
            failed[name] = str(error)
    return failed


def _fork(tasks: Mapping[str, Task], jobs: int, tell: Callable[[State], None]) -> dict[str, str]:
    """What went wrong, by task."""
    context = multiprocessing.get_context("fork")
    waiting = list(tasks)
    running: dict[Any, Any] = {}
    failed: dict[str, str] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, tasks[name]), name=name)
                process.start()
                theirs.close()
                running[mine] = process
            for pipe in wait(list(running), 1.0):
                assert isinstance(pipe, Connection)
                try:
                    message = pipe.recv_bytes()
                except EOFError:
                    process = running.pop(pipe)
                    process.join()
                    if process.exitcode:
                        failed[process.name] = f"it ended with exit code {process.exitcode}"
                    continue
                if message.startswith(b"!"):
                    failed[running[pipe].name] = message[1:].decode()
                    continue
                tell(msgspec.json.decode(message, type=State))
    except KeyboardInterrupt:
        raise Stopped(STOPPED) from None
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()
    return failed


def _child(pipe: Connection, task: Task) -> None:
    """Run a task in its own process group: Ctrl-C reaches only the parent, which then stops its children."""
    os.setpgrp()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: save and stop when the parent dies
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            task(lambda state: pipe.send_bytes(msgspec.json.encode(state)))
        except QafelError as error:
            pipe.send_bytes(b"!" + str(error).encode())
        except Exception as error:
            pipe.send_bytes(f"!{type(error).__name__}: {error}".encode())
        os._exit(0)  # a signal during a regular shutdown would print a traceback
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)  # the parent is gone or asked to stop
