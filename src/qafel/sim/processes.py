"""Tasks in processes of their own, several at a time."""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

import msgspec

from qafel.errors import QafelError, QafelWarning, Stopped, named
from qafel.machine import cores, signal_at_parents_end
from qafel.sim.simulation import Simulation

STOPPED = "stopped; repeat the command or call to continue"


class TaskProgress(msgspec.Struct, frozen=True):
    """How far a task is."""

    name: str
    share: float
    """The share of its work that is done."""
    text: str = ""


Progress = Callable[[str, float], None]
"""Called with what is being done, and the share of all work that is done."""
Task = Callable[[Callable[[TaskProgress], None]], None]


def run_to_the_end(simulation: Simulation) -> None:
    """Run; raise Stopped if the run was interrupted."""
    simulation.run()
    if simulation.stopped:
        raise Stopped(STOPPED)


def in_parallel(
    tasks: Mapping[str, Task], jobs: int | None, progress: Callable[[TaskProgress], None]
) -> None:
    """Call each task in a process of its own, ``jobs`` at a time (default: one per core).

    With one job, tasks are called in this process. A task that fails does not stop the others; QafelError
    says at the end what went wrong.
    """
    jobs = cores() if jobs is None else jobs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", QafelWarning)  # one sentence for each of many runs helps nobody
        apart = jobs > 1 and hasattr(os, "fork")
        failed = _fork(tasks, jobs, progress) if apart else _in_turn(tasks, progress)
    if failed:
        first, *others = failed
        more = f" (failed, too: {', '.join(others)})" if others else ""
        raise QafelError(f"{first}: {failed[first]}{more}")


def _in_turn(tasks: Mapping[str, Task], progress: Callable[[TaskProgress], None]) -> dict[str, str]:
    failed = {}
    for name, task in tasks.items():
        try:
            task(progress)
        except QafelError as error:
            failed[name] = str(error)
    return failed


def _fork(tasks: Mapping[str, Task], jobs: int, progress: Callable[[TaskProgress], None]) -> dict[str, str]:
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
                progress(msgspec.json.decode(message, type=TaskProgress))
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
    signal_at_parents_end(signal.SIGTERM)  # save and stop
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            task(lambda state: pipe.send_bytes(msgspec.json.encode(state)))
        except QafelError as error:
            pipe.send_bytes(b"!" + str(error).encode())
        except Exception as error:
            pipe.send_bytes(f"!{named(error)}".encode())
        os._exit(0)  # a signal during a regular shutdown would print a traceback
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(130)  # the parent is gone or asked to stop
