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

STOPPED = "stopped; the same again continues"


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

    With one job, tasks are called in this process.
    """
    jobs = cores() if jobs is None else jobs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QafelWarning)  # one sentence for each of many runs helps nobody
        if jobs > 1 and hasattr(os, "fork"):
            _fork(tasks, jobs, tell)
        else:
            for task in tasks.values():
                task(tell)


def _fork(tasks: Mapping[str, Task], jobs: int, tell: Callable[[State], None]) -> None:
    context = multiprocessing.get_context("fork")
    waiting = list(tasks)
    running: dict[Any, Any] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                mine, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(theirs, name, tasks[name]))
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
                        raise QafelError(
                            f"a run ended with exit code {process.exitcode}; the same again continues"
                        ) from None
                    continue
                if message.startswith(b"!"):
                    raise QafelError(message[1:].decode())
                tell(msgspec.json.decode(message, type=State))
    except KeyboardInterrupt:
        raise Stopped(STOPPED) from None
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.join()


def _child(pipe: Connection, name: str, task: Task) -> None:
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
            pipe.send_bytes(f"!{name} failed: {type(error).__name__}: {error}".encode())
        os._exit(0)  # a signal during a regular shutdown would print a traceback
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)  # the parent is gone or asked to stop
